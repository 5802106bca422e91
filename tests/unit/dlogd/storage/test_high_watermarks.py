"""High watermarks on disk: lower than the truth at worst, and never a reason to miss records."""

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import KafkaStorageError
from dlog.types import Offset
from dlogd.config.choices import FlushPolicy
from dlogd.config.units import DiskReserve
from dlogd.storage.directory.log_directory import StorageSettings
from dlogd.storage.io.checkpoint_files import HIGH_WATERMARKS
from dlogd.storage.io.files import Directory
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_manager import LogManager
from tests.fakes.faults import DiskFault
from tests.fakes.logs import append, run, values_of
from tests.fakes.manager import CONFIG, NODE, TOPIC_ID, ManagerHost, partition, wanted

KEY = (TOPIC_ID, partition(0).partition)
SELDOM = StorageSettings(reserve=DiskReserve(bytes=0), high_watermark_interval_ms=3_600_000)


async def host_with(*values: bytes) -> ManagerHost:
    """Start a node with one log, whose watermark is on disk and covers all of it."""
    host = ManagerHost(1, settings=SELDOM)
    await host.start()
    plog = await host.create_with(0)
    for value in values:
        append(plog, value)
    await plog.flush()
    await host.manager._upkeep.marks.save(host.home_of(0))
    assert host.manager.stored_high_watermark(plog) == len(values)
    return host


async def restart(host: ManagerHost) -> LogManager:
    """Start again, with a replication that knows no watermark of its own yet."""
    manager = host.boot()
    manager.high_watermark_of = manager.stored_high_watermark
    await manager.claim(NODE, None)
    await manager.open(wanted(0, config=host.config))
    await manager.begin()
    return manager


def root_of(host: ManagerHost) -> Directory:
    """Return the data directory of a node that has ended."""
    return host.machine.boot().open_directory(f"{host.mounts[0]}/dlog")


@pytest.mark.parametrize("said", [0, 2, 3, 99])
def test_no_more_is_saved_than_what_is_promised(said: int) -> None:
    async def scenario() -> None:
        host = await host_with(b"a", b"b", b"c")
        host.manager.high_watermark_of = lambda _: Offset(said)
        append(host.manager.logs[KEY], b"not flushed")
        await host.manager._upkeep.marks.save(host.home_of(0))
        await host.crash(power_cut=True)
        manager = await restart(host)
        assert not manager.failures
        assert manager.stored_high_watermark(manager.logs[KEY]) == min(said, 3)

    run(scenario)


def test_it_is_within_what_the_log_holds() -> None:
    async def scenario() -> None:
        host = await host_with(b"a", b"b", b"c", b"d")
        host.manager.high_watermark_of = lambda _: Offset(1)
        await host.manager._upkeep.marks.save(host.home_of(0))
        await host.manager.logs[KEY].trim_to(3)
        assert host.manager.stored_high_watermark(host.manager.logs[KEY]) == 3
        await host.crash()
        manager = await restart(host)
        assert manager.stored_high_watermark(manager.logs[KEY]) == 3

    run(scenario)


def _lose(root: Directory) -> None:
    root.unlink(HIGH_WATERMARKS)


def _tear(root: Directory) -> None:
    file = root.open(HIGH_WATERMARKS)
    file.truncate(file.size() // 2)
    file.close()


def _spoil(root: Directory) -> None:
    file = root.open(HIGH_WATERMARKS)
    file.pwrite(b"9", file.size() - 60)
    file.close()


def test_what_was_promised_and_is_gone_is_missed() -> None:
    """The watermark was low, as that of a follower is: what the disk had is known all the same."""

    async def scenario() -> None:
        host = ManagerHost(1, settings=SELDOM)
        await host.start()
        host.manager.high_watermark_of = lambda _: Offset(0)
        await host.create_with(0, b"a", b"b", b"c")
        await host.manager._upkeep.marks.save(host.home_of(0))
        name = next(iter(host.home_of(0).names.values()))
        await host.crash()
        log = root_of(host).directory("topics").directory(name)
        for each in log.names():
            log.unlink(each)
        manager = await restart(host)
        assert "lost" in str(manager.failures[KEY]) or "ends at" in str(manager.failures[KEY])

    run(scenario)


@pytest.mark.parametrize("harm", [_lose, _tear, _spoil])
def test_a_file_that_is_lost_or_damaged_is_harmless(harm: Callable[[Directory], None]) -> None:
    async def scenario() -> None:
        host = await host_with(b"a", b"b")
        await host.crash()
        harm(root_of(host))
        manager = await restart(host)
        assert not manager.failures
        assert manager.stored_high_watermark(manager.logs[KEY]) == 0
        assert await values_of(manager.logs[KEY]) == [(0, b"a"), (1, b"b")]

    run(scenario)


def test_an_old_file_is_harmless() -> None:
    async def scenario() -> None:
        host = await host_with(b"a", b"b")
        append(host.manager.logs[KEY], b"c")
        await host.manager.logs[KEY].flush()
        await host.crash(power_cut=True)
        manager = await restart(host)
        assert manager.stored_high_watermark(manager.logs[KEY]) == 2
        assert manager.logs[KEY].log_end_offset == 3

    run(scenario)


async def _truncate(plog: PartitionLog) -> None:
    await plog.truncate_to(2)


async def _start_again(plog: PartitionLog) -> None:
    await plog.start_at(0)


async def _start_later(plog: PartitionLog) -> None:
    await plog.start_at(50)


@pytest.mark.parametrize("cut", [_truncate, _start_again, _start_later])
@pytest.mark.parametrize("dies_at", [None, *range(1, 31)])
def test_a_log_that_was_cut_misses_nothing(
    cut: Callable[[PartitionLog], object], dies_at: int | None
) -> None:
    """A follower that diverged, or begins anew, may die at any moment of that."""

    async def scenario() -> None:
        host = await host_with(*[b"%d" % number for number in range(5)])
        died = asyncio.Event()
        if dies_at is not None:
            host.machine.die_at(dies_at, died.set)
        work = asyncio.ensure_future(cut(host.manager.logs[KEY]))  # type: ignore[call-overload]
        waiting = asyncio.ensure_future(died.wait())
        await asyncio.wait([work, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=5)
        host.machine.power_cut()
        for task in (work, waiting):
            task.cancel()
        await asyncio.gather(work, waiting, return_exceptions=True)
        manager = await restart(host)
        assert not manager.failures, manager.failures
        plog = manager.logs[KEY]
        stored = manager.stored_high_watermark(plog)
        assert plog.log_start_offset <= stored <= plog.log_end_offset
        if dies_at is None:
            assert plog.log_end_offset in (2, 0, 50)

    run(scenario)


def test_nothing_is_cut_before_the_file_says_so() -> None:
    async def scenario() -> None:
        host = await host_with(b"a", b"b", b"c")
        plog = host.manager.logs[KEY]
        fault = DiskFault(("rename",), errno.ENOSPC, path_part=HIGH_WATERMARKS)
        host.machine.disks[host.mounts[0]].faults.append(fault)
        with pytest.raises(KafkaStorageError):
            await plog.truncate_to(1)
        assert plog.log_end_offset == 3 and plog.cut_ceiling is None

    run(scenario)


@pytest.mark.parametrize("cut", [_truncate, _start_again])
def test_what_may_be_in_the_file_is_lowered_before_a_cut(
    cut: Callable[[PartitionLog], object],
) -> None:
    """The file was replaced, then descriptors were lacking to flush its directory."""

    async def scenario() -> None:
        host = ManagerHost(1, settings=SELDOM)
        await host.start()
        host.manager.high_watermark_of = lambda _: Offset(0)
        plog = await host.create(0)
        marks = host.manager._upkeep.marks
        await marks.save(host.home_of(0))
        for value in (b"a", b"b", b"c"):
            append(plog, value)
        await plog.flush()
        fault = DiskFault(("sync_directory",), errno.EMFILE, count=1)
        host.machine.disks[host.mounts[0]].faults.append(fault)
        await marks.save(host.home_of(0))
        assert fault.count == 0
        await cut(plog)  # type: ignore[misc]
        await host.crash()
        manager = await restart(host)
        assert not manager.failures

    run(scenario)


def test_what_was_promised_weakly_proves_nothing() -> None:
    """Under `interval` records survive the process only: after a power cut fewer may be there."""

    async def scenario() -> None:
        host = ManagerHost(1, settings=SELDOM)
        host.config = replace(CONFIG, flush_policy=FlushPolicy.INTERVAL, flush_interval_ms=3600_000)
        await host.start()
        plog = await host.create(0)
        append(plog, b"a")
        for _ in range(100):
            if plog.promised_offset == 1:
                break
            await asyncio.sleep(0.01)
        await host.manager._upkeep.marks.save(host.home_of(0))
        await host.crash(power_cut=True)
        host.config = CONFIG
        manager = await restart(host)
        assert not manager.failures

    run(scenario)
