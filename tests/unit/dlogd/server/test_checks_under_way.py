"""Topics that check compressed records: what happens around a check that takes its time."""

import asyncio
import dataclasses
import gzip
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest

from dlog.batch.header import HEADER_BYTES, decode_header, iter_headers
from dlog.batch.records import Record, decode, encode
from dlog.compression import _GZIP_OUTPUT_BYTES, Codec, compress, decompress
from dlog.errors import (
    CorruptMessageError,
    DecompressedTooLargeError,
    InvalidRecordError,
    InvalidTimestampError,
    NotLeaderOrFollowerError,
    UnsupportedCompressionTypeError,
)
from dlog.types import LeaderEpoch
from dlog.wire import produce_client
from dlogd.replication.partition import record_validation
from dlogd.server import batch_unpacker
from tests.fakes.batches import timed, with_head, with_records
from tests.fakes.checked import CHECKED, CODECS, HeldChecks
from tests.fakes.front import (
    PRODUCE_VERSION,
    SETTINGS,
    Client,
    Front,
    produce_frame,
    run_on,
    stored,
    until,
    written,
)

T = 1_700_000_000_000
MIB = 1 << 20
each_codec = pytest.mark.parametrize("codec", CODECS, ids=[each.name for each in CODECS])
each_size = pytest.mark.parametrize("value_bytes", [10, MIB], ids=["at once", "in a thread"])


def check(scenario: Callable[[Front, Client], Awaitable[None]], folder: Path) -> None:
    async def work() -> None:
        async with Front.open(folder) as front:
            front.partition("t").settings = CHECKED
            await scenario(front, await front.connect())

    run_on(asyncio.new_event_loop, work())


def made(codec: Codec, value_bytes: int, *times: int, **identity: int) -> bytearray:
    """Return a batch of zeros, which is large when `value_bytes` are many."""
    records = [Record(value=bytes(value_bytes), timestamp_ms=each) for each in times]
    return encode(records, codec=codec, **identity)


def packed(codec: Codec, data: bytes, count: int = 2) -> bytearray:
    """Return a batch with these compressed bytes, and a CRC that fits."""
    return with_records(timed(T, codec=codec), data, count)


async def read_back(client: Client) -> list[Record]:
    """Return what the log holds, as the reference reads it."""
    data = await stored(client)
    return [each for at, _ in iter_headers(data) for each in decode(data, at)]


def test_requests_of_a_connection_keep_their_order(tmp_path: Path) -> None:
    """Large, plain and small batches of an idempotent producer under way at once, some twice."""

    async def scenario(front: Front, client: Client) -> None:
        frames = []
        for sequence in range(12):
            codec = (Codec.ZSTD, Codec.NONE, Codec.GZIP)[sequence % 3]
            value_bytes = MIB if sequence % 3 == 0 else 10
            identity = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
            frames.append(produce_frame("t", made(codec, value_bytes, T + sequence, **identity)))
        await client.send(*frames, frames[-1], frames[-3])
        for offset in (*range(12), 11, 9):
            ((_, ((_, code, base_offset, *_),)),) = await client.produced()
            assert (code, base_offset) == (0, offset)
        times = [each.timestamp_ms for each in await read_back(client)]
        assert times == [T + each for each in range(12)]

    check(scenario, tmp_path)


def test_two_large_batches_of_one_small_request_are_both_checked(tmp_path: Path) -> None:
    async def scenario(front: Front, client: Client) -> None:
        assert await written(client, timed(T)) == (0, 0)
        broken = packed(Codec.ZSTD, compress(Codec.ZSTD, bytes(MIB)))
        batches = [made(Codec.ZSTD, MIB, T), broken, made(Codec.ZSTD, MIB, T)]
        topics = [("t", [(0, bytes(each)) for each in batches])]
        await client.send(produce_client.encode_request(PRODUCE_VERSION, 1, "t", -1, 5000, topics))
        ((_, results),) = await client.produced()
        assert [each[1:3] for each in results] == [(0, 1), (InvalidRecordError.code, -1), (0, 2)]

    check(scenario, tmp_path)


def test_a_batch_behind_a_request_in_the_same_read_is_found_where_it_was_moved(
    tmp_path: Path,
) -> None:
    """Waiting takes a frame out of the buffer that all connections share."""

    async def scenario(front: Front, client: Client) -> None:
        frames = [produce_frame("t", made(Codec.ZSTD, size, T)) for size in (10, MIB, 10, MIB)]
        await client.send(b"".join(frames))
        for offset in range(4):
            ((_, ((_, code, base_offset, *_),)),) = await client.produced()
            assert (code, base_offset) == (0, offset)

    check(scenario, tmp_path)


def test_the_append_follows_the_leader_epoch_of_its_own_time(tmp_path: Path) -> None:
    async def scenario(front: Front, client: Client) -> None:
        partition = front.partition("t")
        for leads_again, code in ((False, NotLeaderOrFollowerError.code), (True, 0)):
            partition.lead(LeaderEpoch(2))
            held = HeldChecks(front)
            await client.send(produce_frame("t", made(Codec.ZSTD, MIB, T)))
            await until(lambda held=held: held.begun == 1)
            partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("Another node leads"))
            if leads_again:
                partition.lead(LeaderEpoch(4))
            held.release.set()
            ((_, ((_, found, *_),)),) = await client.produced()
            assert found == code
            assert partition.log.log_end_offset == leads_again
        assert decode_header(await stored(client)).leader_epoch == 4

    check(scenario, tmp_path)


def test_a_client_that_left_is_noticed_before_its_batch_is_unpacked(tmp_path: Path) -> None:
    """Nothing is read from a connection that waits for a check, so the loop hears of no end."""

    async def scenario(front: Front, client: Client) -> None:
        held = HeldChecks(front)
        leaving = [await front.connect() for _ in range(5)]
        for each in leaving:
            await each.send(produce_frame("t", made(Codec.ZSTD, MIB, T)))
        await until(lambda: held.begun == batch_unpacker.CHECKED_MAX and len(front.tasks) >= 5)
        for each in leaving:
            each.close()
            await each.writer.wait_closed()
        held.release.set()
        assert await written(client, made(Codec.ZSTD, MIB, T)) == (0, 0)
        assert held.begun == batch_unpacker.CHECKED_MAX + 1

    check(scenario, tmp_path)


def test_the_loop_serves_others_while_bombs_are_unpacked(tmp_path: Path) -> None:
    """Plain batches are acknowledged all the time, a lot of them for each bomb."""

    async def scenario(front: Front, client: Client) -> None:
        bomb = made(Codec.ZSTD, 64 * MIB, T)
        senders = [await front.connect() for _ in range(20)]
        for each in senders:
            await each.send(produce_frame("t", bomb))
        answers = [asyncio.ensure_future(each.produced()) for each in senders]
        during = 0
        while not all(each.done() for each in answers):
            assert (await written(client, timed(T)))[0] == 0
            during += 1
        assert [answer.result()[0][1][0][1] for answer in answers] == [0] * 20
        assert during >= 40

    check(scenario, tmp_path)


def test_a_refusal_does_not_hold_the_records(tmp_path: Path) -> None:
    """The traceback of an error would: its frames have them."""
    records = bytes(made(Codec.NONE, MIB, T, T)[HEADER_BYTES:-1])
    outcome = batch_unpacker.outcome_of(bytes(packed(Codec.ZSTD, compress(Codec.ZSTD, records))))
    assert isinstance(outcome, InvalidRecordError)
    assert str(outcome) == "No client could read the batch: record 1: a record is cut"
    chain: list[BaseException] = [outcome]
    while (error := chain[-1].__context__ or chain[-1].__cause__) is not None:
        chain.append(error)
    assert [each.__traceback__ for each in chain] == [None] * len(chain)


def test_what_other_clients_compress_is_taken(tmp_path: Path) -> None:
    """gzip in several members, raw snappy, zstd without its size, linked blocks of lz4."""

    async def scenario(front: Front, client: Client) -> None:
        records = bytes(made(Codec.NONE, 1000, T, T)[HEADER_BYTES:])
        half = len(records) // 2
        zstd: Any = cramjam.zstd.Compressor(level=1)
        zstd.compress(records)
        linked: Any = cramjam.lz4.Compressor(block_linked=True, content_checksum=True)
        linked.compress(records)
        made_by_others = [
            (Codec.GZIP, gzip.compress(records[:half]) + gzip.compress(records[half:])),
            (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(records))),
            (Codec.ZSTD, bytes(zstd.finish())),
            (Codec.LZ4, bytes(linked.finish())),
        ]
        for number, (codec, data) in enumerate(made_by_others):
            assert await written(client, packed(codec, data)) == (0, 2 * number)
        assert len(await read_back(client)) == 8

    check(scenario, tmp_path)


@each_codec
def test_bytes_that_no_codec_reads_are_refused(tmp_path: Path, codec: Codec) -> None:
    async def scenario(front: Front, client: Client) -> None:
        records = bytes(made(Codec.NONE, MIB, T, T)[HEADER_BYTES:])
        whole = compress(codec, records)
        refused = (InvalidRecordError.code, -1)
        for data in (b"", records[:50_000], whole[: len(whole) * 2 // 3], bytes(80)):
            assert await written(client, packed(codec, data)) == refused
        assert front.partition("t").log.log_end_offset == 0

    check(scenario, tmp_path)


def test_gzip_of_any_length_comes_out_whole() -> None:
    """Also where a member ends at what zlib is asked for at once, or the bound does."""
    at_once = _GZIP_OUTPUT_BYTES
    for first in (0, 1, at_once - 1, at_once, at_once + 1, 3 * at_once):
        for second in (0, 1, at_once, 2 * at_once + 5):
            data = gzip.compress(bytes(first), 9) + gzip.compress(bytes(second), 1)
            size = first + second
            assert len(memoryview(decompress(Codec.GZIP, data, size))) == size
            if size:
                with pytest.raises(DecompressedTooLargeError):
                    decompress(Codec.GZIP, data, size - 1)
            with pytest.raises(CorruptMessageError):
                decompress(Codec.GZIP, data[:-1], size + 1)


def test_a_length_that_lies_takes_no_memory(tmp_path: Path) -> None:
    async def scenario(front: Front, client: Client) -> None:
        raw = b"\xff\xff\xff\xff\x07" + bytes(100)  # 2 GiB
        xerial = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(raw)) + raw
        for data in (raw, xerial):
            assert await written(client, packed(Codec.SNAPPY, data)) == (87, -1)

    check(scenario, tmp_path)


@each_size
def test_a_codec_that_is_missing_is_named(
    tmp_path: Path, value_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Front, client: Client) -> None:
        def missing(*_: object) -> None:
            raise UnsupportedCompressionTypeError("zstd needs the package cramjam")

        data = made(Codec.ZSTD, value_bytes, T)
        monkeypatch.setattr(record_validation, "decompress", missing)
        assert await written(client, data) == (UnsupportedCompressionTypeError.code, -1)
        assert front.partition("t").log.log_end_offset == 0

    check(scenario, tmp_path)


@each_codec
@each_size
def test_each_record_must_be_near_to_now(tmp_path: Path, codec: Codec, value_bytes: int) -> None:
    async def scenario(front: Front, client: Client) -> None:
        front.partition("t").settings = dataclasses.replace(
            CHECKED, timestamp_before_ms_max=20_000, timestamp_after_ms_max=20_000
        )
        now_ms = front.clock.timestamp_ms()
        refused = InvalidTimestampError.code
        for delta, code in ((50_000, refused), (-50_000, refused), (0, 0)):
            data = made(codec, value_bytes, now_ms, now_ms + delta, now_ms)
            assert (await written(client, with_head(data, max_timestamp_ms=-1)))[0] == code

    check(scenario, tmp_path)


@each_size
def test_append_time_is_written_behind_the_check(tmp_path: Path, value_bytes: int) -> None:
    async def scenario(front: Front, client: Client) -> None:
        front.partition("t").settings = dataclasses.replace(CHECKED, stamps_append_time=True)
        broken = made(Codec.ZSTD, value_bytes, T, T)
        broken = with_head(broken, record_count=3, last_offset_delta=2)
        assert await written(client, broken) == (InvalidRecordError.code, -1)
        now_ms = front.clock.timestamp_ms()
        assert await written(client, made(Codec.ZSTD, value_bytes, T, T)) == (0, 0)
        assert all(each.timestamp_ms >= now_ms for each in await read_back(client))

    check(scenario, tmp_path)


def test_lack_of_memory_ends_one_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Front, client: Client) -> None:
        other = await front.connect()

        def without_memory(*_: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(batch_unpacker, "times_in", without_memory)
            data = made(Codec.ZSTD, MIB, T)
            await client.send(produce_frame("t", packed(Codec.ZSTD, bytes(40_000))))
            assert await client.is_closed_by_peer()
        assert await written(other, data) == (0, 0)
        front.partition("t").settings = SETTINGS

    check(scenario, tmp_path)
