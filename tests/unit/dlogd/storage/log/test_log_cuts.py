"""A partition log that is truncated, trimmed, begun anew: what stays, what is forgotten."""

import asyncio
from dataclasses import replace

import pytest

from dlog.errors import KafkaStorageError, OffsetOutOfRangeError
from dlogd.config.choices import FlushPolicy
from dlogd.storage.io.errnos import is_disk_failure
from dlogd.storage.log.log_reader import LogReader
from dlogd.storage.segment.segment import SegmentState
from tests.fakes.faults import Latency
from tests.fakes.filled_logs import config, filled, offsets, unflushed
from tests.fakes.logs import (
    TICK_S,
    LogHost,
    append_waiting,
    read_batches,
    run_virtual,
    settle,
    values_in,
)

CONFIG = config(segment_bytes=2000)


@pytest.mark.parametrize("offset", [0, 1, 7, 30, 59, 60, 99])
def test_truncation_keeps_what_is_below(offset: int) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60)
        await plog.truncate_to(offset)
        end = min(offset, 60)
        assert plog.log_end_offset == plog.flushed_offset == plog.promised_offset == end
        assert await offsets(plog) == list(range(end))
        assert await append_waiting(plog, b"next") == end
        await plog.flush()
        plog = await host.power_cut(keep=0.0)
        assert await offsets(plog) == list(range(end + 1))

    run_virtual(scenario)


def test_truncation_inside_a_batch_drops_all_of_it() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 30, per_batch=3)
        await plog.truncate_to(16)
        assert plog.log_end_offset == 15
        assert await offsets(plog) == list(range(15))

    run_virtual(scenario)


def test_truncation_of_records_in_memory_only() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 5)
        for _ in range(5):
            await append_waiting(plog, b"unflushed")
        await plog.truncate_to(7)
        assert await offsets(plog) == list(range(7))

    run_virtual(scenario)


def test_truncation_below_the_start_is_refused() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60)
        await plog.trim_to(20)
        with pytest.raises(OffsetOutOfRangeError):
            await plog.truncate_to(19)
        await plog.truncate_to(20)
        assert (plog.log_start_offset, plog.log_end_offset) == (20, 20)

    run_virtual(scenario)


def test_nothing_remembered_survives_a_truncation() -> None:
    """A reader's place beyond the cut would lead into the middle of a later batch."""

    async def scenario() -> None:
        host = LogHost(config=replace(CONFIG, segment_bytes=1 << 20))
        plog = await filled(host, 20)
        await read_batches(plog, 0, end_offset=10)
        await read_batches(plog, 0)
        await plog.truncate_to(5)
        for offset in range(5, 30):
            await append_waiting(plog, b"%03d" % offset + b"y" * 40)
        await plog.flush()
        for start in (10, 20):
            found = values_in(await read_batches(plog, start))
            assert [offset for offset, _ in found] == list(range(start, 30))

    run_virtual(scenario)


def test_the_newest_timestamp_is_known_after_a_truncation() -> None:
    async def scenario() -> None:
        host = LogHost(config=replace(CONFIG, index_interval_bytes=4096, segment_bytes=1 << 20))
        plog = await filled(host, 60)
        for end in (50, 27, 3):
            await plog.truncate_to(end)
            assert plog.segment_infos()[-1].max_timestamp_ms == 10 * (end - 1)
            assert await plog.offset_of_max_timestamp() == (10 * (end - 1), end - 1, 0)
        await plog.truncate_to(0)
        assert await plog.offset_of_max_timestamp() is None

    run_virtual(scenario)


def test_a_sealed_segment_is_written_again_under_the_present_policy() -> None:
    async def scenario() -> None:
        host = LogHost(config=replace(CONFIG, flush_policy=FlushPolicy.NEVER))
        plog = await filled(host, 60)
        assert plog.segments[0].state is SegmentState.SEALED
        plog.reconfigure(CONFIG)
        await plog.truncate_to(3)
        assert plog.active.durable and plog.active.state is SegmentState.OPEN
        await append_waiting(plog, b"promised for good")
        while plog.promised_offset < 4:
            await settle()
        plog = await host.power_cut(keep=0.0)
        assert plog.log_end_offset == 4

    run_virtual(scenario)


@pytest.mark.parametrize("policy", [FlushPolicy.INTERVAL, FlushPolicy.NEVER])
def test_what_counts_as_flushed_is_durable_under_every_policy(policy: FlushPolicy) -> None:
    async def scenario() -> None:
        for advances in range(1, 5):
            config = replace(CONFIG, flush_policy=policy, flush_interval_ms=60_000)
            host = LogHost(advances, config)
            plog = await host.open()
            host.machine.disks["/data"].latency = Latency(fixed=0.0001)
            seen = [0]
            while len(seen) <= advances:  # segments are sealed in the background
                await append_waiting(plog, b"x" * 100)
                await asyncio.sleep(TICK_S)
                if plog.flushed_offset != seen[-1]:
                    seen.append(plog.flushed_offset)
            plog = await host.power_cut(keep=0.0)
            assert plog.log_end_offset >= seen[-1]

    run_virtual(scenario)


@pytest.mark.parametrize("offset", [0, 4, 31, 60])
def test_replay_gives_the_heads_of_all_batches_from_an_offset_on(offset: int) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60, per_batch=3)
        found = [header.base_offset async for header in plog.replay(offset)]
        assert found == list(range(offset - offset % 3, 60, 3))

    run_virtual(scenario)


def test_trimming_drops_whole_segments_and_keeps_the_rest() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60)
        bases = [segment.base_offset for segment in plog.segments]
        await plog.trim_to(bases[2] - 1)
        assert [segment.base_offset for segment in plog.segments] == bases[1:]
        await plog.trim_to(bases[2])
        assert [segment.base_offset for segment in plog.segments] == bases[2:]
        await plog.trim_to(3)  # below the start: nothing
        assert plog.log_start_offset == bases[2]
        assert host.services.metrics.segments_deleted_total == 2
        with pytest.raises(OffsetOutOfRangeError):
            await plog.trim_to(61)
        await plog.trim_to(60)
        assert (plog.log_start_offset, plog.log_end_offset, plog.size_bytes) == (60, 60, 0)
        assert await append_waiting(plog, b"next") == 60
        await plog.flush()
        plog = await host.power_cut(keep=0.0)
        assert await offsets(plog) == [60]

    run_virtual(scenario)


def test_trimming_waits_for_the_flush_of_what_it_drops() -> None:
    async def scenario() -> None:
        _, plog = await unflushed()
        await plog.trim_to(10)
        plog.check_chain()
        assert plog.flushed_offset == 10

    run_virtual(scenario)


@pytest.mark.parametrize("offset", [0, 30, 60, 1000])
def test_beginning_anew(offset: int) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60)
        await plog.start_at(offset)
        assert (plog.log_start_offset, plog.log_end_offset) == (offset, offset)
        assert plog.epochs.entries == [] and await offsets(plog) == []
        assert await append_waiting(plog, b"first", epoch=4) == offset
        await plog.flush()
        plog = await host.power_cut(keep=0.0)
        assert await offsets(plog) == [offset]
        assert plog.epochs.entries == [(4, offset)]

    run_virtual(scenario)


def test_a_closed_log_is_not_cut() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 5)
        await plog.close()
        for work in (plog.truncate_to(2), plog.trim_to(2), plog.start_at(9)):
            with pytest.raises(KafkaStorageError):
                await work

    run_virtual(scenario)


def test_a_cut_that_ends_half_way_takes_the_log_out_of_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file is shorter than the log says: nobody may lead with that."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 20)

        async def unreadable(*_: object) -> None:
            raise KafkaStorageError("no memory")

        monkeypatch.setattr(LogReader, "newest_before", unreadable)
        failures: list[OSError] = []
        plog.on_failure = lambda _, error: failures.append(error)
        with pytest.raises(KafkaStorageError, match="no memory"):
            await plog.truncate_to(7)
        assert plog.failed is not None
        assert [is_disk_failure(each) for each in failures] == [False]  # of this log alone
        with pytest.raises(KafkaStorageError, match="out of service"):
            await append_waiting(plog, b"next")
        monkeypatch.undo()
        plog = await host.power_cut(keep=0.0)
        assert await offsets(plog) == list(range(7))

    run_virtual(scenario)
