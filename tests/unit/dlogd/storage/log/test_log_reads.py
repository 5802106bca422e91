"""A partition log: reads within their limits, from memory and from the disk, and by time."""

import asyncio
from collections.abc import Callable

import pytest

from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES
from dlog.batch.records import Record, encode
from dlog.compression import Codec
from dlog.errors import OffsetOutOfRangeError
from dlog.types import LeaderEpoch
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.filled_logs import BATCH_BYTES, CONFIG, config, opened, quiet
from tests.fakes.lies import with_body
from tests.fakes.logs import (
    LogHost,
    append,
    append_waiting,
    batch_of,
    bytes_of,
    run_virtual,
    settle,
    values_in,
    values_of,
)

# -- reads


def test_read_respects_its_limits() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 50)
        for max_bytes in (BATCH_BYTES, BATCH_BYTES * 3 + 1, 10**9):
            found = plog.read(7, max_bytes, 50)
            assert found is not None and found.base_offset == 7
            assert found.bytes == min(max_bytes // BATCH_BYTES, 43) * BATCH_BYTES or (
                max_bytes > 1000 and found.bytes <= max_bytes
            )
        one = plog.read(7, 1, 50)
        assert one is not None and one.bytes == BATCH_BYTES
        none = plog.read(7, 1, 50, minimum_one=False)
        assert none is not None and (none.ranges, none.bytes) == ([], 0)
        few = plog.read(7, 10**9, 12)
        assert few is not None and few.bytes == 5 * BATCH_BYTES

    run_virtual(scenario)


def test_h18_offset_equal_to_the_end_is_empty_and_beyond_is_out_of_range() -> None:
    """H18: the end is exclusive."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 10)
        for end in (5, 10):
            found = plog.read(end, 1000, end)
            assert found is not None and found.ranges == []
        last = plog.read(4, 1000, 5)
        assert last is not None and last.bytes == BATCH_BYTES
        for offset in (-1, 11):
            with pytest.raises(OffsetOutOfRangeError):
                plog.read(offset, 1000, 10)
        await plog.trim_to(3)
        with pytest.raises(OffsetOutOfRangeError):
            plog.read(2, 1000, 10)

    run_virtual(scenario)


def test_a_read_in_the_middle_of_a_batch_begins_with_the_batch() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        for _ in range(10):
            append(plog, b"a", b"b", b"c")
        found = plog.read(16, 1, 30)
        assert found is not None and found.base_offset == 15

    run_virtual(scenario)


def test_old_data_is_found_by_asking_the_disk_once() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await opened(host, 500)
        plog = await host.reopen()
        assert plog.read(123, 1000, 500) is None
        await plog.locate(123)
        found = plog.read(123, 1000, 500)
        assert found is not None and found.base_offset == 123
        data = await bytes_of(plog, *found.ranges[0][:3])
        assert values_in(data)[0][1][:3] == b"123"
        # A consumer that reads on asks where the last range ended: no search, no disk.
        following = values_in(data)[-1][0] + 1
        assert plog.read(following, 10**6, 500) is not None
        rest = plog.read(following, 10**6, 500)
        assert rest is not None and rest.bytes + len(data) == (500 - 123) * BATCH_BYTES

    run_virtual(scenario)


def test_closed_segments_are_opened_for_readers_and_closed_again() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=1000))
        await opened(host, 40)
        plog = await host.reopen()
        assert len(plog.segments) > 5
        assert all(segment.file is None for segment in plog.segments[:-1])
        assert len(await values_of(plog)) == 40
        await quiet(plog)
        assert sum(segment.file is not None for segment in plog.segments[:-1]) <= 2
        assert len(host.services.open_segments) <= 2

    run_virtual(scenario)


def test_a_held_segment_stays_readable_when_it_is_dropped() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=1000))
        plog = await opened(host, 40)
        await plog.locate(0)
        found = plog.read(0, 10**6, 40)
        assert found is not None
        expected = await bytes_of(plog, *found.ranges[0][:3])
        segment: Segment = found.ranges[0].segment
        segment.acquire()
        await plog.trim_to(40)
        await quiet(plog)
        assert segment.state is SegmentState.DROPPED
        assert not host.directory.exists(file_name(0))
        assert await bytes_of(plog, *found.ranges[0][:3]) == expected
        segment.release()
        await settle()
        assert segment.file is None

    run_virtual(scenario)


def test_reads_of_unflushed_records_come_from_memory() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 5)
        host.machine.disks["/data"].stick()
        for number in range(5, 30):
            append(plog, b"%03d" % number + b"x" * 97)
        await settle()
        assert plog.flushed_offset == 5
        for end in (5, 3):
            found = plog.read(0, 10**6, end)
            assert found is not None and found.bytes == end * BATCH_BYTES
        assert [offset for offset, _ in await values_of(plog, 3)] == list(range(3, 30))
        host.machine.heal()

    run_virtual(scenario)


# -- time


def test_timestamps_find_the_first_record_at_or_after() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=2000))
        plog = await opened(host)
        for number in range(60):
            batch = batch_of(b"a", b"b", b"c", timestamp_ms=number * 100, step_ms=30)
            fields = BATCH_STRUCT.unpack_from(batch)
            plog.append(memoryview(batch), fields, leader_epoch=LeaderEpoch(2))
            await settle()
        for check in range(2):
            for timestamp_ms, expected in (
                (-5, (0, 0, 2)),
                (100, (100, 3, 2)),
                (101, (130, 4, 2)),
                (161, (200, 6, 2)),
                (5960, (5960, 179, 2)),
            ):
                assert await plog.offset_for_timestamp(timestamp_ms) == expected, check
            assert await plog.offset_for_timestamp(5961) is None
            assert await plog.offset_of_max_timestamp() == (5960, 179, 2)
            plog = await host.reopen()
        await plog.trim_to(100)
        assert await plog.offset_for_timestamp(0) == (3330, 100, 2)

    run_virtual(scenario)


def test_records_without_timestamps() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        assert await plog.offset_of_max_timestamp() is None
        await append_waiting(plog, b"x", timestamp_ms=-1)
        assert await plog.offset_for_timestamp(0) is None
        assert await plog.offset_of_max_timestamp() is None

    run_virtual(scenario)


def test_what_a_producer_has_made_of_nonsense_is_found_by_time_as_a_batch() -> None:
    """No broker has looked into it; a consumer is told of it, and others find what is behind it."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        packed = encode([Record(value=b"v", timestamp_ms=200)] * 3, codec=Codec.ZSTD)
        named = encode([Record(value=b"v", timestamp_ms=300, headers=(("?", b""),))] * 3)
        for batch in (
            with_body(batch_of(b"a", b"b", timestamp_ms=100), b"\xff" * 20),
            with_body(packed, b"\xff" * 20),
            with_body(named, bytes(named[HEADER_BYTES:]).replace(b"?", b"\xff")),
        ):
            fields = BATCH_STRUCT.unpack_from(batch)
            plog.append(memoryview(batch), fields, leader_epoch=LeaderEpoch(2))
            await settle()
        assert await plog.offset_for_timestamp(5) == (100, 0, 2)
        assert await plog.offset_for_timestamp(150) == (200, 2, 2)
        assert await plog.offset_for_timestamp(250) == (300, 5, 2)
        await plog.trim_to(3)
        assert await plog.offset_for_timestamp(0) == (200, 3, 2)

    run_virtual(scenario)


def test_one_batch_at_a_time_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few KiB become 128 MiB: a client that asks a hundred times must not take that often."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 3)
        engine, under_way, most = plog.services.engine, 0, 0
        run = engine.run

        async def counted(work: Callable[[], object]) -> object:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await settle()
            try:
                return await run(work)
            finally:
                under_way -= 1

        monkeypatch.setattr(engine, "run", counted)
        found = await asyncio.gather(*(plog.offset_for_timestamp(0) for _ in range(20)))
        assert set(found) == {found[0]} and found[0] is not None
        assert most == 1

    run_virtual(scenario)
