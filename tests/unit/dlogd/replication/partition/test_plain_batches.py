"""Plain batches by the wire: what their heads say about records is checked before the append."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dlog.batch.header import HEADER_BYTES, decode_header, verify_crc
from dlog.compression import Codec
from dlog.errors import CorruptMessageError, InvalidRecordError, InvalidTimestampError
from dlog.wire import produce_client
from dlogd.replication.partition.partition import Partition
from dlogd.server.request_turns import PIECE_ENTRIES
from tests.fakes.bad_batches import no_gzip
from tests.fakes.batches import timed, with_head, with_records
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
LIES = {"none": -1, "zero": 0, "first": T, "too large": T + 1000, "before 1970": -7}


def check(scenario: Callable[[Front, Client], Awaitable[None]], folder: Path) -> None:
    async def work() -> None:
        async with Front.open(folder, ["t"]) as front:
            await scenario(front, await front.connect())

    run_on(asyncio.new_event_loop, work())


def many(data: bytearray, copies: int, acks: int) -> bytes:
    """Return a request with the same batch several times, for a partition each time."""
    parts = [(0, bytes(data))] * copies
    return produce_client.encode_request(PRODUCE_VERSION, 1, "test", acks, 5000, [("t", parts)])


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_head_gets_the_largest_timestamp_of_its_records(tmp_path: Path, lie: int) -> None:
    async def scenario(front: Front, client: Client) -> None:
        assert await written(client, timed(T - 9000)) == (0, 0)
        lying = with_head(timed(T, T + 20, T + 10), max_timestamp_ms=lie)
        assert await written(client, lying) == (0, 1)
        data = await stored(client)
        start = len(timed(T))
        header = decode_header(data, start)
        assert header.max_timestamp_ms == T + 20 and header.base_timestamp_ms == T
        assert verify_crc(data, start, header.batch_bytes)
        honest = timed(T, T + 20, T + 10, base_offset=1, leader_epoch=0)
        assert data[start + 17 :] == honest[17:]
        log = front.partition("t").log
        assert log.active.max_timestamp_ms == T + 20
        for time_ms, offset in ((T, 1), (T + 1, 2), (T + 20, 2), (T - 9000, 0)):
            found = await log.offset_for_timestamp(time_ms)
            assert found is not None and found.offset == offset
        assert await log.offset_for_timestamp(T + 21) is None
        newest = await log.offset_of_max_timestamp()
        assert newest is not None and newest[:2] == (T + 20, 2)

    check(scenario, tmp_path)


@pytest.mark.parametrize("acks", [-1, 0])
def test_every_way_into_the_log_corrects_heads(tmp_path: Path, acks: int) -> None:
    """Alone, one of several partitions, and behind a rest of a request for many."""

    async def scenario(front: Front, client: Client) -> None:
        lying = with_head(timed(T, T + 20), max_timestamp_ms=-1)
        copies = PIECE_ENTRIES + 2
        await client.send(produce_frame("t", lying, acks=acks), many(lying, copies, acks))
        end = 2 * (copies + 1)
        await until(lambda: front.partition("t").high_watermark == end)
        if acks:
            await client.produced()
            await client.produced()
        data = await stored(client)
        assert len(data) == len(lying) * (copies + 1)
        for start in range(0, len(data), len(lying)):
            assert decode_header(data, start).max_timestamp_ms == T + 20
            assert verify_crc(data, start, len(lying))

    check(scenario, tmp_path)


def test_a_small_request_that_rests_twice_keeps_its_frame(tmp_path: Path) -> None:
    async def scenario(front: Front, client: Client) -> None:
        assert await written(client, timed(T)) == (0, 0)  # so that the next one is read at once
        parts = [(0, b"")] * (2 * PIECE_ENTRIES) + [(0, bytes(timed(T)))]
        topics = [("t", parts)]
        await client.send(produce_client.encode_request(PRODUCE_VERSION, 1, "t", -1, 5000, topics))
        ((_, results),) = await client.produced()
        assert {code for _, code, *_ in results[:-1]} == {CorruptMessageError.code}
        assert results[-1][1:3] == (0, 1)

    check(scenario, tmp_path)


def nonsense() -> dict[str, bytearray]:
    """Batches with a CRC that fits, which no reader can read."""
    whole = timed(T, T + 1)
    records = bytes(whole[HEADER_BYTES:])
    return {
        "a count of three": with_head(whole, record_count=3, last_offset_delta=2),
        "a count of one": with_head(whole, record_count=1, last_offset_delta=0),
        "a cut record": with_records(whole, records[:-1], 2),
        "bytes behind": with_records(whole, records + b"\0", 2),
        "gzip said to be plain": with_head(timed(T, T + 1, codec=Codec.GZIP), attributes=0),
        "zeros": with_records(whole, bytes(40), 2),
        "the first record twice": with_records(whole, records[: len(records) // 2] * 2, 2),
        "time beyond 64 bits": with_head(whole, base_timestamp_ms=2**63 - 1),
        "a count far beyond": with_head(whole, record_count=2**31 - 1, last_offset_delta=2**31 - 2),
    }


@pytest.mark.parametrize("stamps", [False, True], ids=["create time", "append time"])
@pytest.mark.parametrize("name", nonsense())
def test_what_nobody_can_read_is_refused(tmp_path: Path, name: str, stamps: bool) -> None:
    async def scenario(front: Front, client: Client) -> None:
        partition = front.partition("t")
        partition.settings = dataclasses.replace(SETTINGS, stamps_append_time=stamps)
        data = nonsense()[name]
        assert await written(client, data) == (InvalidRecordError.code, -1)
        await client.send(many(data, PIECE_ENTRIES + 1, -1))
        ((_, parts),) = await client.produced()
        assert {part[1] for part in parts} == {InvalidRecordError.code}
        nameless = await front.connect()
        await nameless.send(produce_frame("t", data, acks=0))
        assert await nameless.is_closed_by_peer()
        assert partition.log.log_end_offset == 0
        assert await written(client, timed(T)) == (0, 0)

    check(scenario, tmp_path)


def test_the_refusal_says_which_record_is_wrong(tmp_path: Path) -> None:
    async def scenario(front: Front, client: Client) -> None:
        await client.send(produce_frame("t", nonsense()["a cut record"], acks=1))
        frame = bytes(await client.receive())
        assert b"No client could read the batch: record 1: a record is cut" not in frame
        request = produce_client.encode_request(
            9, 1, "test", 1, 5000, [("t", [(0, bytes(nonsense()["a cut record"]))])]
        )
        await client.send(request)
        frame = bytes(await client.receive())
        assert b"No client could read the batch: record 1: a record is cut" in frame

    check(scenario, tmp_path)


def test_a_repeated_batch_with_a_head_that_lies_is_recognised(tmp_path: Path) -> None:
    async def scenario(front: Front, client: Client) -> None:
        def of(sequence: int) -> bytearray:
            identity = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
            return with_head(timed(T, T + 20, T + 10, **identity), max_timestamp_ms=0)

        broken = with_head(of(0), record_count=4, last_offset_delta=3)
        assert await written(client, broken) == (InvalidRecordError.code, -1)
        assert not len(front.partition("t").producers)
        for sequence, offset in ((0, 0), (3, 3), (0, 0), (3, 3), (6, 6)):
            assert await written(client, of(sequence)) == (0, offset)
        assert front.partition("t").log.log_end_offset == 9
        header = decode_header(await stored(client))
        assert (header.producer_id, header.base_sequence) == (9, 0)

    check(scenario, tmp_path)


def test_lack_of_memory_behind_a_corrected_head_changes_nothing(tmp_path: Path) -> None:
    async def scenario(partition: Partition) -> None:
        await partition.log._flusher.freeze()
        filler = timed(*[T] * 40_000)
        while partition.append_as_leader(filler, 0, len(filler), -1) is not None:
            pass
        end = partition.log.log_end_offset
        lying = with_head(timed(*[T, T + 5] * 20_000), max_timestamp_ms=-1)
        assert partition.append_as_leader(lying, 0, len(lying), -1) is None
        called: list[bool] = []
        partition.log.when_writable(lambda: called.append(True))
        partition.log._flusher.thaw()
        await until(lambda: called)
        assert partition.append_as_leader(lying, 0, len(lying), -1) == (end, end + 40_000, -1)

    check(lambda front, _: scenario(front.partition("t")), tmp_path)


@pytest.mark.parametrize(
    ("times", "is_refused"),
    [
        ((0, -900, 900), False),
        ((0, 0, 5000, 0), True),
        ((0, 0, -5000, 0), True),
        ((-5000, 0), True),
        ((0, None), False),
        ((None, None), False),
        ((None, 5000), True),
        ((None, -5000, None), True),
    ],
)
def test_each_record_must_be_near_to_now(
    tmp_path: Path, times: tuple[int | None, ...], is_refused: bool
) -> None:
    """Whatever the head says; records without a timestamp are exempt."""

    async def scenario(front: Front, client: Client) -> None:
        front.partition("t").settings = dataclasses.replace(
            SETTINGS, timestamp_before_ms_max=2000, timestamp_after_ms_max=2000
        )
        now_ms = front.clock.timestamp_ms()
        data = timed(*[-1 if each is None else now_ms + each for each in times])
        for claim in (-1, now_ms, now_ms + 5000):
            code, _ = await written(client, with_head(data, max_timestamp_ms=claim))
            assert code == (InvalidTimestampError.code if is_refused else 0)

    check(scenario, tmp_path)


@pytest.mark.parametrize(("ahead_ms", "code"), [(1000, 0), (5000, 32), (2**62, 32)])
def test_the_base_of_a_compressed_batch_must_be_near_to_now(
    tmp_path: Path, ahead_ms: int, code: int
) -> None:
    """A batch that nobody can decode would else keep its segment for ever."""

    async def scenario(front: Front, client: Client) -> None:
        front.partition("t").settings = dataclasses.replace(SETTINGS, timestamp_after_ms_max=2000)
        now_ms = front.clock.timestamp_ms()
        data = with_head(
            no_gzip(0, 1), base_timestamp_ms=now_ms + ahead_ms, max_timestamp_ms=now_ms
        )
        assert (await written(client, data))[0] == code

    check(scenario, tmp_path)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize(
    ("times", "newest"), [((-9, -7), -1), ((-7, -1), -1), ((-9,), -1), ((-9, T), T)]
)
def test_times_before_1970_are_taken_and_count_as_none(
    tmp_path: Path, codec: Codec, times: tuple[int, ...], newest: int
) -> None:
    async def scenario(front: Front, client: Client) -> None:
        assert await written(client, timed(*times, codec=codec)) == (0, 0)
        data = await stored(client)
        header = decode_header(data)
        assert header.max_timestamp_ms == newest and header.base_timestamp_ms == times[0]
        assert verify_crc(data, 0, header.batch_bytes)
        log = front.partition("t").log
        assert log.active.max_timestamp_ms == newest
        found = await log.offset_for_timestamp(0)
        assert (found and found[:2]) == (None if newest < 0 else (T, 1))

    check(scenario, tmp_path)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_times_before_1970_are_no_older_than_a_topic_allows(tmp_path: Path, codec: Codec) -> None:
    async def scenario(front: Front, client: Client) -> None:
        before_ms = front.clock.timestamp_ms() + 60_000
        front.partition("t").settings = dataclasses.replace(
            SETTINGS, timestamp_before_ms_max=before_ms
        )
        assert await written(client, timed(-50_000, codec=codec)) == (0, 0)
        refused = (InvalidTimestampError.code, -1)
        assert await written(client, timed(-70_000, codec=codec)) == refused
        assert await written(client, timed(-70_000, T, codec=codec)) == refused

    check(scenario, tmp_path)


def test_append_time_takes_records_of_any_time(tmp_path: Path) -> None:
    async def scenario(front: Front, client: Client) -> None:
        front.partition("t").settings = dataclasses.replace(
            SETTINGS, stamps_append_time=True, timestamp_before_ms_max=0, timestamp_after_ms_max=0
        )
        now_ms = front.clock.timestamp_ms()
        assert await written(client, with_head(timed(-9, 5, 2**62), max_timestamp_ms=3)) == (0, 0)
        data = await stored(client)
        header = decode_header(data)
        assert header.is_log_append_time and header.max_timestamp_ms >= now_ms
        assert verify_crc(data, 0, header.batch_bytes)

    check(scenario, tmp_path)
