"""Topics that check compressed records: nonsense is refused, the rest stays as it was sent."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.batch.header import HEADER_BYTES, decode_header, iter_headers, verify_crc
from dlog.batch.records import RECORDS_BYTES_MAX, Record, decode, encode
from dlog.compression import Codec, compress
from dlog.errors import (
    DecompressedTooLargeError,
    InvalidRecordError,
    UnknownTopicOrPartitionError,
)
from dlog.wire import produce_client
from dlogd.replication.partition.record_validation import times_in
from dlogd.server import batch_unpacker
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.batches import with_head
from tests.fakes.checked import CHECKED, CODECS, HeldChecks
from tests.fakes.front import SETTINGS, Front, produce_frame, run_on, stored, until, written

Run = Callable[[Callable[[], Awaitable[None]]], None]
NOW_MS = 1_700_000_000_000
INVALID_RECORD = 87


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


def plain(count: int, size: int = 10, step_ms: int = 1) -> bytearray:
    """Return a plain batch; its newest record is the last one."""
    records = [
        Record(value=bytes([number % 251]) * size, timestamp_ms=NOW_MS + number * step_ms)
        for number in range(count)
    ]
    return bytearray(encode(records))


def packed(codec: Codec, batch: bytes | bytearray, records: bytes | None = None) -> bytearray:
    """Return `batch` compressed, with the head of its first record's time, as old clients send it.

    `records`: these bytes in the place of its records.
    """
    records = bytes(batch[HEADER_BYTES:]) if records is None else records
    body = compress(codec, records)
    head = bytearray(batch[:HEADER_BYTES]) + body
    length = HEADER_BYTES + len(body) - 12
    return with_head(head, length=length, attributes=int(codec), max_timestamp_ms=NOW_MS)


def nonsense() -> dict[str, bytes]:
    """Return what no reader can decode in the place of three records."""
    good = bytes(plain(3)[HEADER_BYTES:])
    return {
        "nothing": b"",
        "one record less": bytes(plain(2)[HEADER_BYTES:]),
        "one record more": bytes(plain(4)[HEADER_BYTES:]),
        "bytes behind": good + b"x",
        "a record is cut": good[:-1],
        "no records": bytes(100),
        "a length of nonsense": b"\xff" * 30,
    }


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_segment_ends_by_the_true_time_of_a_batch_that_was_opened(
    run: Run, tmp_path: Path, is_checked: bool
) -> None:
    """An unopened one whose head lies stays beside the older ones."""

    async def scenario() -> None:
        config = LogConfig(segment_bytes=1 << 20, preallocate_bytes=0, segment_ms=1_000)
        async with Front.open(tmp_path, config=config) as front:
            partition = front.partition("t")
            partition.settings = CHECKED if is_checked else SETTINGS
            client = await front.connect()
            for offset, step_ms in ((0, 1), (2, 5_000)):
                data = packed(Codec.GZIP, plain(2, step_ms=step_ms))
                assert await written(client, data) == (0, offset)
            assert partition.log.active.base_offset == (2 if is_checked else 0)

    run(scenario)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 3, 20_000], ids=["one", "few", "large"])
def test_the_head_that_is_stored_says_the_true_time(
    run: Run, tmp_path: Path, codec: Codec, count: int
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            partition = front.partition("t")
            client = await front.connect()
            sent = packed(codec, plain(count))
            await client.send(produce_frame("t", sent))
            await client.produced()
            partition.settings = CHECKED
            await client.send(produce_frame("t", sent))
            ((_, (result,)),) = await client.produced()
            assert result[1:3] == (0, count)
            data = memoryview(await stored(client))
            first, second = decode_header(data), decode_header(data, len(sent))
            assert first.max_timestamp_ms == NOW_MS  # as it was sent, without a check
            assert second.max_timestamp_ms == NOW_MS + count - 1
            assert verify_crc(data, len(sent), len(sent))
            assert data[len(sent) + HEADER_BYTES :] == sent[HEADER_BYTES:]
            read = decode(data[len(sent) :])
            assert [each.timestamp_ms for each in read] == [NOW_MS + n for n in range(count)]

    run(scenario)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("what", nonsense())
def test_what_no_reader_can_decode_is_refused_and_nothing_is_appended(
    tmp_path: Path, codec: Codec, what: str
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            partition = front.partition("t")
            client = await front.connect()
            bad = produce_frame("t", packed(codec, plain(3), nonsense()[what]))
            await client.send(bad)
            assert (await client.produced())[0][1][0][1] == 0  # believed by default
            partition.settings = CHECKED
            good = produce_frame("t", packed(codec, plain(3)))
            await client.send(bad, good)
            ((_, (result,)),) = await client.produced()
            assert (result[1], partition.log.log_end_offset) == (INVALID_RECORD, 6)
            assert (await client.produced())[0][1][0][1:3] == (0, 3)

    run_on(uvloop.new_event_loop, scenario())


def test_a_batch_that_decompresses_beyond_all_readers_is_refused(tmp_path: Path) -> None:
    """Zeros for four records; where the bound of readers is lower, so is this one."""
    huge = packed(Codec.ZSTD, plain(4, 1 << 20))
    with pytest.raises(DecompressedTooLargeError):
        times_in(bytes(huge), 4 << 20)
    assert times_in(bytes(huge), RECORDS_BYTES_MAX).newest_ms == NOW_MS + 3

    async def scenario() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(batch_unpacker, "RECORDS_BYTES_MAX", 4 << 20)
            async with Front.open(tmp_path) as front:
                front.partition("t").settings = CHECKED
                client = await front.connect()
                await client.send(produce_frame("t", huge))
                ((_, (result,)),) = await client.produced()
                assert result[1] == INVALID_RECORD
                assert front.partition("t").log.log_end_offset == 0

    run_on(uvloop.new_event_loop, scenario())


LARGE = packed(Codec.ZSTD, plain(20_000))


def test_others_go_on_while_large_batches_are_checked_two_at_a_time(
    run: Run, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            held = HeldChecks(front)
            front.partition("t").settings = CHECKED
            clients = [await front.connect() for _ in range(5)]
            for client in clients:
                await client.send(produce_frame("t", LARGE), produce_frame("t", plain(1)))
            await until(lambda: held.begun == batch_unpacker.CHECKED_MAX)
            other = await front.connect()
            await other.send(produce_frame("t", plain(1)), produce_frame("t", packed_small()))
            for offset in (0, 1):
                assert (await other.produced())[0][1][0][1:3] == (0, offset)
            assert held.begun == batch_unpacker.CHECKED_MAX
            held.release.set()
            offsets = []
            for client in clients:  # what is behind a batch stays behind it
                pair = [(await client.produced())[0][1][0][2] for _ in range(2)]
                assert pair[0] < pair[1]
                offsets.append(pair[0])
            assert front.partition("t").log.log_end_offset == 2 + 5 * 20_001
            assert not len(front.tasks)

    run(scenario)


def packed_small() -> bytearray:
    """Return a batch that is checked at once."""
    return packed(Codec.LZ4, plain(1))


def test_each_part_of_a_request_is_judged_by_its_own_records(run: Run, tmp_path: Path) -> None:
    bad = packed(Codec.GZIP, plain(3), b"")
    small, later = packed(Codec.GZIP, plain(2)), packed(Codec.ZSTD, plain(20_000, step_ms=7))

    async def scenario() -> None:
        async with Front.open(tmp_path, ["t"]) as front:
            partition = front.partition("t")
            partition.settings = CHECKED
            client = await front.connect()
            batches = [LARGE, later, bad, small, plain(1), bad, LARGE]
            parts = [("t", [(0, bytes(each)) for each in batches])]
            await client.send(produce_client.encode_request(7, 1, "test", -1, 5000, parts))
            ((_, results),) = await client.produced()
            codes = [each[1] for each in results]
            assert codes == [0, 0, INVALID_RECORD, 0, 0, INVALID_RECORD, 0]
            data = memoryview(await stored(client))
            newest = [each.max_timestamp_ms - NOW_MS for _, each in iter_headers(data)]
            assert newest == [19_999, 7 * 19_999, 1, 0, 19_999]

    run(scenario)


def test_who_no_longer_leads_after_the_check_appends_nothing(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            held = HeldChecks(front)
            partition = front.partition("t")
            partition.settings = CHECKED
            client = await front.connect()
            await client.send(produce_frame("t", LARGE))
            await until(lambda: held.begun == 1)
            del front.replicas.by_name["t", 0]
            held.release.set()
            assert (await client.produced())[0][1][0][1] == UnknownTopicOrPartitionError.code
            assert partition.log.log_end_offset == 0
            front.replicas.by_name["t", 0] = partition

    run(scenario)


def test_a_client_that_leaves_during_the_check_leaves_nothing(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            held = HeldChecks(front)
            front.partition("t").settings = CHECKED
            gone, waits, third = [await front.connect() for _ in range(3)]
            for client in (gone, waits, third):
                await client.send(produce_frame("t", LARGE))
            await until(lambda: held.begun == 2)
            third.close()
            gone.close()
            held.release.set()
            assert (await waits.produced())[0][1][0][1] == 0
            await until(lambda: not len(front.tasks))
            assert front.partition("t").log.log_end_offset == 20_000

    run(scenario)


def test_without_an_answer_nonsense_ends_the_connection(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            front.partition("t").settings = CHECKED
            client = await front.connect()
            good, bad = packed(Codec.GZIP, plain(3)), packed(Codec.GZIP, plain(3), b"")
            await client.send(*(produce_frame("t", each, acks=0) for each in (good, LARGE, bad)))
            assert await asyncio.wait_for(client.is_closed_by_peer(), 10)
            assert front.partition("t").log.log_end_offset == 20_003

    run(scenario)


@settings(max_examples=60)
@given(st.sampled_from(CODECS), st.data())
def test_what_is_taken_is_what_the_reader_reads(codec: Codec, data: st.DataObject) -> None:
    """Whatever is changed in a batch: it is refused, or all records come out, with these times."""
    batch = plain(data.draw(st.integers(1, 20)), step_ms=data.draw(st.integers(-5, 5)))
    records = bytearray(batch[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 3))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    made = bytes(packed(codec, batch, bytes(records)))
    try:
        times = times_in(made, RECORDS_BYTES_MAX)
    except InvalidRecordError:
        return
    read = [each.timestamp_ms for each in decode(memoryview(made))]
    assert len(read) == decode_header(memoryview(made)).record_count
    assert times.newest_ms == max(read)
