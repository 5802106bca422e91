"""A partition log on the simulated disk: what is promised when, reads, rolls, errors, closing."""

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest

from dlog.batch.header import BATCH_STRUCT
from dlog.errors import (
    InvalidRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    WireError,
)
from dlog.types import LeaderEpoch
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.storage.flusher import FULL_DISK_RETRY_SECONDS
from dlogd.storage.log import PartitionLog
from dlogd.storage.log_config import LogConfig
from dlogd.storage.segment import Segment, SegmentState, file_name
from tests.fakes.faults import DiskFault, Latency
from tests.fakes.logs import (
    LogHost,
    append,
    append_waiting,
    batch_of,
    bytes_of,
    read_batches,
    run_virtual,
    settle,
    values_in,
    values_of,
)

CONFIG = LogConfig(
    segment_bytes=1 << 20, preallocate_bytes=1 << 16, index_interval_bytes=256, segment_ms=10**9
)
BATCH_BYTES = len(batch_of(b"x" * 100))


def config(**changes: Any) -> LogConfig:
    return replace(CONFIG, **changes)


async def opened(host: LogHost, count: int = 0) -> PartitionLog:
    """Open the log and append and flush some batches of one record."""
    plog = await host.open()
    for number in range(count):
        await append_waiting(plog, b"%03d" % number + b"x" * 97)
    await plog.flush()
    await settle()
    return plog


async def quiet(plog: PartitionLog) -> None:
    """Wait until no background job is left."""
    for _ in range(10):
        await settle()
    async with plog._maintenance.lock:
        pass


# -- what is promised when


def test_appends_of_one_iteration_are_one_flush() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        promised: list[int] = []
        plog.on_promised = lambda log: promised.append(log.promised_offset)
        for _ in range(7):
            append(plog, b"x")
        assert (plog.log_end_offset, plog.promised_offset) == (7, 0)
        await plog.flush()
        assert promised == [7]
        assert plog.flushed_offset == plog.promised_offset == 7

    run_virtual(scenario)


def test_a_new_flush_starts_only_when_the_last_has_ended() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        host.machine.disks["/data"].latency = Latency(fixed=0.02)
        promised: list[int] = []
        plog.on_promised = lambda log: promised.append(log.promised_offset)
        append(plog, b"x")
        await asyncio.sleep(0.005)
        for _ in range(5):
            append(plog, b"x")
            await asyncio.sleep(0)
        assert promised == []
        await plog.flush()
        assert promised == [1, 6], "what waited went out together"
        assert not host.process.misuses

    run_virtual(scenario)


def test_always_is_on_the_disk_when_it_is_promised() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 10)
        append(plog, b"not promised")
        await settle()
        kept = plog.promised_offset
        plog = await host.power_cut(keep=0.0)
        assert plog.log_end_offset == kept == 11

    run_virtual(scenario)


@pytest.mark.parametrize("policy", [FlushPolicy.INTERVAL, FlushPolicy.NEVER])
def test_weak_policies_survive_the_process_but_not_the_power(policy: FlushPolicy) -> None:
    async def scenario() -> None:
        host = LogHost(config=config(flush_policy=policy, flush_interval_ms=60_000))
        plog = await opened(host)
        append(plog, b"x")
        await settle()
        assert (plog.promised_offset, plog.flushed_offset) == (1, 0)
        plog = await host.crash()
        assert plog.log_end_offset == plog.flushed_offset == 1, "recovery has made it durable"
        append(plog, b"x")
        await settle()
        plog = await host.power_cut(keep=0.0)
        assert plog.log_end_offset == 1

    run_virtual(scenario)


def test_interval_syncs_in_the_background_and_never_does_not() -> None:
    async def scenario() -> None:
        for policy, expected in ((FlushPolicy.INTERVAL, 1), (FlushPolicy.NEVER, 0)):
            host = LogHost(config=config(flush_policy=policy, flush_interval_ms=10))
            plog = await opened(host)
            append(plog, b"x")
            await asyncio.sleep(0.05)
            assert plog.flushed_offset == expected
            await plog.flush()
            assert plog.flushed_offset == 1

    run_virtual(scenario)


def test_large_weak_writes_go_through_the_engine() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(flush_policy=FlushPolicy.NEVER))
        plog = await opened(host)
        for _ in range(3):
            append(plog, b"x" * 60_000)
        await asyncio.sleep(0)
        assert plog.promised_offset == 0
        await settle()
        assert plog.promised_offset == 3
        assert len(await values_of(plog)) == 3

    run_virtual(scenario)


def test_a_policy_changes_with_the_next_segment() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(flush_policy=FlushPolicy.NEVER))
        plog = await opened(host)
        append(plog, b"weak")
        plog.reconfigure(CONFIG)
        assert [segment.durable for segment in plog.segments] == [False, True]
        append(plog, b"strong")
        await plog.flush()
        # A durable promise covers the weak records before it.
        plog = await host.power_cut(keep=0.0)
        assert [value for _, value in await values_of(plog)] == [b"weak", b"strong"]
        host.config = config(flush_policy=FlushPolicy.NEVER)
        plog.reconfigure(host.config)
        append(plog, b"weak again")
        await settle()
        assert (plog.promised_offset, plog.flushed_offset) == (3, 2)

    run_virtual(scenario)


def test_an_empty_segment_takes_over_a_new_policy_as_it_is() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        plog.reconfigure(config(flush_policy=FlushPolicy.NEVER))
        assert len(plog.segments) == 1
        append(plog, b"x")
        await quiet(plog)
        assert (plog.promised_offset, plog.flushed_offset) == (1, 0)

    run_virtual(scenario)


# -- appends


def test_offsets_and_epochs_are_patched_into_the_copy() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        original = batch_of(b"a", b"b")
        before = bytes(original)
        fields = BATCH_STRUCT.unpack_from(original)
        for expected in (0, 2, 4):
            offset = plog.append(memoryview(original), fields, leader_epoch=LeaderEpoch(9))
            assert offset == expected
        assert bytes(original) == before
        data = await read_batches(plog, 0)
        heads = [BATCH_STRUCT.unpack_from(data, n * len(before)) for n in range(3)]
        assert [(head[0], head[2]) for head in heads] == [(0, 9), (2, 9), (4, 9)]
        assert [offset for offset, _ in values_in(data)] == list(range(6))

    run_virtual(scenario)


def test_h2_followers_append_verbatim_and_only_what_comes_next() -> None:
    """H2: a follower never assigns an offset."""

    async def scenario() -> None:
        leader, follower = LogHost(1, CONFIG), LogHost(2, CONFIG)
        source, copy = await opened(leader), await opened(follower)
        for epoch in (3, 3, 5):
            append(source, b"x", b"y", epoch=epoch)
        data = await read_batches(source, 0)
        size = len(data) // 3
        with pytest.raises(InvalidRecordError):
            copy.append_verbatim(memoryview(data)[size : 2 * size])
        for number in range(3):
            copy.append_verbatim(memoryview(data)[number * size : (number + 1) * size])
        with pytest.raises(InvalidRecordError):
            copy.append_verbatim(memoryview(data)[2 * size :])
        assert await read_batches(copy, 0) == data
        assert copy.epochs.entries == source.epochs.entries == [(3, 0), (5, 4)]

    run_virtual(scenario)


def test_refusals_change_nothing() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 3)
        plog.refusal = KafkaStorageError("the reserve is touched")
        with pytest.raises(KafkaStorageError, match="reserve"):
            append(plog, b"x")
        assert plog.log_end_offset == 3
        assert host.services.metrics.append_refusals_total == 1
        assert len(await values_of(plog)) == 3, "reads go on"
        plog.refusal = None
        assert append(plog, b"x") == 3

    run_virtual(scenario)


def test_without_memory_an_append_waits_its_turn() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG, pool_bytes=65536)
        plog = await opened(host)
        host.machine.disks["/data"].latency = Latency(fixed=0.005)
        count = 0
        while append(plog, b"x" * 3000) is not None:
            count += 1
        assert count >= 15
        assert host.services.metrics.append_waits_total == 1
        called: list[int] = []
        plog.when_writable(lambda: called.append(plog.promised_offset))
        await asyncio.sleep(0.03)
        assert called and called[0] > 0
        assert append(plog, b"x" * 3000) == count

    run_virtual(scenario)


def test_a_batch_that_can_never_fit_is_refused() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG, pool_bytes=65536)
        plog = await opened(host)
        with pytest.raises(RecordTooLargeError):
            append(plog, b"x" * 70_000)
        assert append(plog, b"x" * 20_000) == 0
        await plog.flush()
        assert len((await values_of(plog))[0][1]) == 20_000

    run_virtual(scenario)


# -- rolls


def test_roll_by_size() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=1000))
        plog = await opened(host, 20)
        per_segment = 1000 // BATCH_BYTES
        bases = [segment.base_offset for segment in plog.segments]
        assert bases == list(range(0, 20, per_segment))
        assert all(segment.end_position <= 1000 for segment in plog.segments)
        await append_waiting(plog, b"y" * 3000)  # larger than a segment: has one for itself
        await append_waiting(plog, b"z")
        assert [segment.base_offset for segment in plog.segments[-2:]] == [20, 21]
        assert len(await values_of(plog)) == 22

    run_virtual(scenario)


def test_roll_by_age_of_the_first_record() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_ms=1000))
        plog = await opened(host)
        for timestamp_ms in (5000, 5999, 6000, 4000, 6001, 7001, 7002):
            await append_waiting(plog, b"x", timestamp_ms=timestamp_ms)
        assert [segment.base_offset for segment in plog.segments] == [0, 4, 6]
        plog.maybe_roll(8002)
        assert len(plog.segments) == 3
        plog.maybe_roll(8003)
        assert len(plog.segments) == 4
        plog.maybe_roll(10**12)
        assert len(plog.segments) == 4, "an empty segment is not rolled"
        await plog.flush()
        plog = await host.crash()
        assert plog.active.base_offset == 6
        plog.maybe_roll(8003)
        assert plog.active.base_offset == 7, "the age is known after a restart"

    run_virtual(scenario)


def test_roll_before_relative_offsets_overflow() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        batch = batch_of(b"x")
        fields = list(BATCH_STRUCT.unpack_from(batch))
        for delta in (10, (1 << 31) - 1, (1 << 31) - 1, 5):
            batch[23:27] = delta.to_bytes(4, "big")
            fields[6] = delta
            plog.append(memoryview(batch), tuple(fields), leader_epoch=LeaderEpoch(0))
        assert [segment.base_offset for segment in plog.segments] == [0, 11 + (1 << 31)]

    run_virtual(scenario)


def test_appends_go_on_while_the_next_file_is_made() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=1000))
        plog = await opened(host, 5)
        host.machine.disks["/data"].stick()
        for _ in range(20):
            append(plog, b"x" * 100)
        await settle()
        assert plog.log_end_offset == 25
        assert plog.active.state is SegmentState.CREATING
        assert len(await values_of(plog, 5)) == 20, "read from memory"
        host.machine.heal()
        await plog.flush()
        assert plog.flushed_offset == 25
        await quiet(plog)
        states = [segment.state for segment in plog.segments]
        assert set(states[:-1]) == {SegmentState.SEALED} and states[-1] is SegmentState.OPEN

    run_virtual(scenario)


def test_a_closed_segment_is_as_short_as_its_data() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=70_000))
        plog = await opened(host, 1000)
        await quiet(plog)
        assert len(plog.segments) > 1
        for segment in plog.segments[:-1]:
            file = host.directory.open(file_name(segment.base_offset))
            assert file.size() == segment.end_position
            file.close()

    run_virtual(scenario)


def test_an_idle_log_owns_no_space() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await opened(host)
        await asyncio.sleep(0.01)
        assert host.directory.names() == [file_name(0)]
        assert host.machine.disks["/data"].used_bytes() == 0
        append(host.log, b"x")
        await quiet(host.log)
        assert host.machine.disks["/data"].used_bytes() >= 65536

    run_virtual(scenario)


def test_indexes_grow_with_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlogd.storage.entries.RECENT_COUNT_MAX", 100)
    monkeypatch.setattr("dlogd.storage.entries.PAGE_COUNT", 30)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        for number in range(3000):
            await append_waiting(plog, b"%d" % number + b"x" * 200)
            if number % 50 == 0:
                await settle()
        await plog.flush()
        await quiet(plog)
        index = plog.active.index
        assert index.count == index.settled > 100
        await host.crash()
        assert host.services.metrics.recovered_bytes_total < 20_000
        assert len(await values_of(host.log, 2900)) == 100

    run_virtual(scenario)


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


# -- errors


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_h14_an_error_of_a_flush_ends_the_log(code: int) -> None:
    """H14 and rule 2.15: no retry on the same file, and everybody who waits is told."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 5)
        failures: list[OSError] = []
        promised: list[WireError | None] = []
        plog.on_failure = lambda _, error: failures.append(error)
        plog.on_promised = lambda log: promised.append(log.failed)
        host.machine.disks["/data"].faults.append(DiskFault(("write", "sync"), code, count=1))
        append(plog, b"lost")
        with pytest.raises(KafkaStorageError):
            await plog.flush()
        assert plog.failed is not None and plog.promised_offset == 5
        assert [error.errno for error in failures] == [code]
        assert len(promised) == 1 and promised[0] is plog.failed
        for attempt in (lambda: append(plog, b"x"), lambda: plog.read(0, 100, 5)):
            with pytest.raises(KafkaStorageError):
                attempt()
        with pytest.raises(KafkaStorageError):
            await plog.truncate_to(2)
        with pytest.raises(KafkaStorageError):
            await plog.close()
        usage = host.services.memory.pool.usage()
        assert usage.taken_bytes == usage.cached_bytes == 0
        plog = await host.crash()
        assert len(await values_of(plog)) == 5

    run_virtual(scenario)


def test_a_failed_log_gives_its_memory_back() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 5)
        host.machine.disks["/data"].latency = Latency(fixed=0.005)
        for _ in range(50):
            append(plog, b"x" * 1000)
        await asyncio.sleep(0.001)
        plog.fail(OSError(errno.EIO, "another log met it"))
        await asyncio.sleep(0.02)
        usage = host.services.memory.pool.usage()
        assert usage.taken_bytes == usage.cached_bytes == 0
        plog = await host.crash()
        append(plog, b"x" * 1000)
        await plog.flush()
        assert host.services.memory.pool.usage().taken_bytes > 0
        plog.fail(OSError(errno.EIO, "while nothing is in flight"))
        usage = host.services.memory.pool.usage()
        assert usage.taken_bytes == usage.cached_bytes == 0

    run_virtual(scenario)


@pytest.mark.parametrize("policy", list(FlushPolicy))
@pytest.mark.parametrize("direct_io", [DirectIo.AUTO, DirectIo.OFF])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_holds_up_and_does_not_lose(
    policy: FlushPolicy, direct_io: DirectIo, code: int
) -> None:
    async def scenario() -> None:
        host = LogHost(config=replace(CONFIG, flush_policy=policy, direct_io=direct_io))
        plog = await opened(host, 5)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write",), code, path_part=".log"))
        append(plog, b"waits")
        await settle()
        assert plog.failed is None and plog.promised_offset == 5
        with pytest.raises(KafkaStorageError, match="full"):
            append(plog, b"refused")
        assert len(await values_of(plog, 0)) == 6, "reads go on"
        with pytest.raises(KafkaStorageError, match="full"):
            await asyncio.wait_for(plog.flush(), 5)
        disk.heal()
        await asyncio.sleep(2 * FULL_DISK_RETRY_SECONDS)
        await asyncio.wait_for(plog.flush(), 5)
        assert append(plog, b"accepted") == 6

    run_virtual(scenario)


def test_no_space_to_preallocate_is_no_error() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        host.machine.disks["/data"].faults.append(DiskFault(("preallocate",), errno.ENOSPC))
        for _ in range(20):
            await append_waiting(plog, b"x" * 100)
            await settle()
        await plog.flush()
        assert plog.failed is None and plog.flushed_offset == 20

    run_virtual(scenario)


@pytest.mark.parametrize("operation", ["create", "sync_directory", "size", "truncate"])
def test_an_error_of_a_background_job_ends_the_log(operation: str) -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=1000))
        plog = await opened(host, 3)
        await quiet(plog)
        host.machine.disks["/data"].faults.append(DiskFault((operation,), errno.EIO))
        for _ in range(20):
            try:
                append(plog, b"x" * 100)
            except KafkaStorageError:
                break
            await settle()
        assert plog.failed is not None

    run_virtual(scenario)


def test_an_error_of_a_read_takes_the_log_out_of_service() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        await opened(host, 50)
        plog = await host.reopen()
        host.machine.disks["/data"].faults.append(DiskFault(("read",), errno.EIO))
        with pytest.raises(KafkaStorageError):
            await plog.locate(3)
        assert plog.failed is not None

    run_virtual(scenario)


def test_lack_of_descriptors_says_nothing_about_the_disk() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=1000))
        await opened(host, 50)
        plog = await host.reopen()
        host.machine.disks["/data"].faults.append(DiskFault(("open",), errno.EMFILE, count=1))
        with pytest.raises(KafkaStorageError):
            await plog.locate(3)
        assert plog.failed is None
        await plog.locate(3)
        assert plog.read(3, 100, 50) is not None

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


# -- ends


def test_closing_twice_and_appending_after() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 5)
        append(plog, b"flushed by close")
        await plog.close()
        await plog.close()
        with pytest.raises(KafkaStorageError):
            append(plog, b"x")
        assert not host.process.open_files
        usage = host.services.memory.pool.usage()
        assert usage.taken_bytes == usage.cached_bytes == 0
        await host.services.tasks.close()
        plog = await host.crash()
        assert plog.log_end_offset == 6

    run_virtual(scenario)


def test_who_waits_for_a_flush_hears_of_the_close() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host)
        host.machine.disks["/data"].latency = Latency(fixed=0.01)
        append(plog, b"x")
        waiting = asyncio.ensure_future(plog.flush())
        await asyncio.sleep(0)
        await plog.close(clean=False)
        with pytest.raises(KafkaStorageError):
            await waiting

    run_virtual(scenario)


def test_deleting_does_not_wait_for_data() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await opened(host, 5)
        host.machine.disks["/data"].latency = Latency(fixed=0.01)
        append(plog, b"x")
        await asyncio.sleep(0.001)
        await plog.delete()
        assert not host.process.open_files
        assert not host.process.misuses

    run_virtual(scenario)


@pytest.mark.parametrize("direct", [DirectIo.AUTO, DirectIo.OFF])
def test_direct_io_is_used_for_durable_writes_only(direct: DirectIo) -> None:
    async def scenario() -> None:
        for policy in FlushPolicy:
            host = LogHost(config=config(direct_io=direct, flush_policy=policy))
            plog = await opened(host, 3)
            assert plog.active.file is not None
            wanted = direct is DirectIo.AUTO and policy is FlushPolicy.ALWAYS
            assert plog.active.file.direct is wanted
            assert len(await values_of(plog)) == 3

    run_virtual(scenario)
