"""What begins a new segment waits while a log is cut: its end is not yet where it will be."""

import asyncio
import contextlib
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import KafkaStorageError, OffsetOutOfRangeError
from dlogd.config.choices import FlushPolicy
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.faults import DiskFault
from tests.fakes.logs import LogHost, append_waiting, run_virtual, settle, values_of

STRONG = LogConfig(segment_bytes=2000, preallocate_bytes=1 << 16, index_interval_bytes=256)
WEAK = replace(STRONG, flush_policy=FlushPolicy.NEVER)
OLD = 1 << 61
COUNT = 20


def _reconfigure(plog: PartitionLog, policy: FlushPolicy) -> None:
    plog.reconfigure(replace(plog.config, flush_policy=policy))


def _grow_old(plog: PartitionLog, _: FlushPolicy) -> None:
    plog.maybe_roll(OLD)


def _roll(plog: PartitionLog, _: FlushPolicy) -> None:
    plog.roll()


async def begin_cut(
    host: LogHost, end: int, steps: int
) -> tuple[PartitionLog, "asyncio.Future[None]"]:
    """Return a log of COUNT records and its cut to `end`, so many turns of the loop under way."""
    plog = await host.open()
    for number in range(COUNT):
        await append_waiting(plog, b"%03d" % number + b"x" * 97)
    await plog.flush()
    await settle()
    cut = asyncio.ensure_future(plog.truncate_to(end))
    for _ in range(steps):
        await asyncio.sleep(0)
    return plog, cut


@pytest.mark.parametrize("steps", range(0, 40, 2))
@pytest.mark.parametrize("meanwhile", [_reconfigure, _grow_old, _roll])
@pytest.mark.parametrize("end", [0, 3, 18])
def test_no_segment_begins_beyond_the_new_end(
    end: int, meanwhile: Callable[[PartitionLog, FlushPolicy], None], steps: int
) -> None:
    async def scenario() -> None:
        host = LogHost(config=STRONG)
        plog, cut = await begin_cut(host, end, steps)
        meanwhile(plog, FlushPolicy.NEVER)
        await cut
        await settle()
        assert plog.bases == sorted(set(plog.bases)) and plog.bases[-1] <= end
        for number in range(5):
            assert await append_waiting(plog, b"next") == end + number
        await plog.flush()
        assert plog.flushed_offset == plog.promised_offset == plog.log_end_offset == end + 5
        host.config = plog.config
        for again in (host.crash, host.reopen):
            plog = await again()
            assert [offset for offset, _ in await values_of(plog)] == list(range(end + 5))

    run_virtual(scenario)


@pytest.mark.parametrize("steps", range(0, 40, 2))
@pytest.mark.parametrize("before", [STRONG, WEAK])
def test_a_policy_that_changes_during_a_cut_holds_after_it(before: LogConfig, steps: int) -> None:
    async def scenario() -> None:
        host = LogHost(config=before)
        plog, cut = await begin_cut(host, 10, steps)
        after = WEAK if before is STRONG else STRONG
        _reconfigure(plog, after.flush_policy)
        await cut
        await append_waiting(plog, b"next")
        await settle()
        assert plog.active.durable is after.durable

    run_virtual(scenario)


@pytest.mark.parametrize("steps", range(0, 40, 2))
@pytest.mark.parametrize("start", [5, 15, COUNT])
def test_what_is_trimmed_meanwhile_is_not_beyond_the_new_end(start: int, steps: int) -> None:
    async def scenario() -> None:
        host = LogHost(config=STRONG)
        plog, cut = await begin_cut(host, 10, steps)
        try:
            await plog.trim_to(start)
        except OffsetOutOfRangeError:
            assert start > 10
        with contextlib.suppress(OffsetOutOfRangeError):  # it begins behind by now
            await cut
        await settle()
        assert plog.failed is None
        assert plog.log_start_offset <= plog.flushed_offset <= plog.log_end_offset
        end = plog.log_end_offset
        assert await append_waiting(plog, b"next") == end
        await plog.flush()
        plog = await host.crash()
        assert plog.log_end_offset == end + 1

    run_virtual(scenario)


@pytest.mark.parametrize("start", [20, 40])
def test_a_trim_makes_no_room_beyond_a_cut_that_waits_for_space(start: int) -> None:
    async def scenario() -> None:
        host = LogHost(config=replace(STRONG, segment_bytes=1000))
        plog = await host.open()
        for number in range(60):
            await append_waiting(plog, b"%03d" % number + b"x" * 97, epoch=number // 50)
        await plog.flush()
        await settle()
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write", "create"), errno.ENOSPC, path_part="leader-epochs"))
        cut = asyncio.ensure_future(plog.truncate_to(30))
        while not plog._maintenance.shortage.is_for_space:
            await asyncio.sleep(0.01)
        if start > 30:
            with pytest.raises(KafkaStorageError, match="is being cut back to 30"):
                await plog.trim_to(start)
        else:
            await plog.trim_to(start)
        disk.heal()
        await cut
        assert (plog.log_start_offset, plog.log_end_offset) == (0 if start > 30 else start, 30)
        assert await append_waiting(plog, b"next", epoch=2) == 30
        await plog.flush()
        plog = await host.crash()
        assert plog.log_end_offset == 31

    run_virtual(scenario)


@pytest.mark.parametrize("policy", [FlushPolicy.ALWAYS, FlushPolicy.NEVER])
@pytest.mark.parametrize("work", ["truncate_to", "start_at"])
def test_a_trim_that_was_decided_before_a_cut_takes_nothing_that_came_after(
    policy: FlushPolicy, work: str
) -> None:
    """Another history has begun, and not all of it is flushed yet under a weak policy."""

    async def scenario() -> None:
        host = LogHost(config=replace(STRONG, flush_policy=policy))
        plog, cut = await begin_cut(host, COUNT, 0)
        await cut
        async with plog.lock:
            cut = asyncio.ensure_future(getattr(plog, work)(4))
            await settle()
            again = asyncio.ensure_future(plog.lock.acquire())
            await settle()
            above, below = (asyncio.ensure_future(plog.trim_to(each)) for each in (15, 3))
            await settle()
        await cut
        await again  # some job between the cut and the trims
        for _ in range(12):  # in one segment: to make another one takes the lock
            await append_waiting(plog, b"new")
        for _ in range(5):
            await settle()
        assert plog.promised_offset == 16
        plog.lock.release()
        with pytest.raises(KafkaStorageError, match="cut back to"):
            await above
        await below
        assert plog.log_start_offset == (3 if work == "truncate_to" else 4)
        plog.check_chain()
        await plog.trim_to(15)
        assert plog.log_start_offset == 15

    run_virtual(scenario)
