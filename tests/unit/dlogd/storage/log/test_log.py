"""A partition log on the simulated disk: appends, rolls, closing."""

import asyncio
from dataclasses import replace

import pytest

from dlog.batch.header import BATCH_STRUCT
from dlog.errors import InvalidRecordError, KafkaStorageError, RecordTooLargeError
from dlog.types import LeaderEpoch
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.storage.segment.segment import SegmentState
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.faults import Latency
from tests.fakes.filled_logs import BATCH_BYTES, CONFIG, config, opened, quiet
from tests.fakes.logs import (
    LogHost,
    append,
    append_waiting,
    batch_of,
    read_batches,
    run_virtual,
    settle,
    values_in,
    values_of,
)

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


@pytest.mark.parametrize("is_found", [False, True], ids=["made", "found at a start"])
def test_a_segment_that_was_to_last_for_ever_is_rolled_by_a_shorter_age(is_found: bool) -> None:
    """Without it nothing of the log would ever be old enough for retention by time."""

    async def scenario() -> None:
        host = LogHost(config=config(segment_ms=(1 << 63) - 1))
        plog = await opened(host)
        await append_waiting(plog, b"x", timestamp_ms=5000)
        if is_found:
            await plog.flush()
            plog = await host.crash()
        for segment_ms, now_ms, segments in (
            (1000, 6000, 1),
            ((1 << 63) - 1, 1 << 61, 1),
            (1000, 6001, 2),
        ):
            plog.reconfigure(replace(plog.config, segment_ms=segment_ms))
            plog.maybe_roll(now_ms)
            assert len(plog.segments) == segments
        plog.reconfigure(replace(plog.config, segment_ms=1))
        plog.maybe_roll(1 << 61)
        assert len(plog.segments) == 2, "an empty segment has no age"

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
    monkeypatch.setattr("dlogd.storage.segment.sparse_index.RECENT_COUNT_MAX", 100)
    monkeypatch.setattr("dlogd.storage.segment.sparse_index.PAGE_COUNT", 30)

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
