"""A partition log on the simulated disk that lacks descriptors, memory or space: it waits."""

import asyncio
import errno
import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.errors import KafkaStorageError
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.storage.log import flusher, resource_wait
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.faults import DiskFault
from tests.fakes.filled_logs import config, quiet, rested
from tests.fakes.logs import LogHost, append, append_waiting, run, settle, values_of

CONFIG = config(segment_bytes=1000)


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        *itertools.product(["create", "open", "sync_directory"], [errno.EMFILE, errno.ENOMEM]),
        # A flush that found no space is not repeated.
        *itertools.product(["create", "open"], [errno.ENOSPC, errno.EDQUOT]),
    ],
)
def test_jobs_wait_for_what_is_short_and_lose_nothing(
    operation: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_wait, "RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 3)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault((operation,), code))
        taken = 3
        for _ in range(40):
            try:
                append(plog, b"x" * 100)
            except KafkaStorageError:
                break
            taken += 1
            await settle()
        assert plog.failed is None and plog.blocked is not None, "the roll is held up"
        with pytest.raises(KafkaStorageError, match="short of"):
            append(plog, b"refused")
        assert await asyncio.wait_for(values_of(plog, taken - 1), 5), "the newest is readable"
        disk.heal()
        await asyncio.wait_for(plog.flush(), 5)
        await quiet(plog)
        assert plog.failed is None and plog.blocked is None
        assert append(plog, b"accepted") == taken == plog.log_end_offset - 1
        plog = await host.reopen()
        assert len(await values_of(plog)) == taken + 1
        assert not host.process.misuses

    run(scenario)


@pytest.mark.parametrize("ends", [PartitionLog.close, PartitionLog.delete])
def test_a_log_that_waits_for_descriptors_can_be_closed(
    ends: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource_wait, "STOP_RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 3)
        host.machine.disks["/data"].faults.append(DiskFault(("create",), errno.EMFILE))
        for _ in range(10):
            append(plog, b"x" * 200)
        await settle()
        assert plog.blocked is not None
        try:
            await asyncio.wait_for(ends(plog), 5)
        except KafkaStorageError:
            assert ends is PartitionLog.close, "what was not written is told"
        assert plog.closed
        warnings = [line for line in caplog.messages if "waiting for descriptors" in line]
        assert len(warnings) == 1
        plog = await host.crash()
        assert len(await values_of(plog)) >= 3

    run(scenario)


@pytest.mark.parametrize("durable", [FlushPolicy.ALWAYS, FlushPolicy.NEVER])
def test_a_write_without_a_descriptor_is_tried_again(
    durable: FlushPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "FULL_DISK_RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        host = LogHost(config=replace(CONFIG, flush_policy=durable, direct_io=DirectIo.OFF))
        plog = await rested(host, 3)
        faults = host.machine.disks["/data"].faults
        faults.append(DiskFault(("write",), errno.EMFILE, count=3))
        append(plog, b"waits")
        while plog.flushed_offset < 4:
            try:
                await asyncio.wait_for(plog.flush(), 5)
            except KafkaStorageError:
                await asyncio.sleep(0.001)
        assert plog.failed is None and plog.blocked is None
        assert len(await values_of(plog)) == 4

    run(scenario)


@pytest.mark.parametrize("epochs", [1, 2])
def test_indexes_and_epochs_wait_for_space(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data still has space, what describes it has none."""
    monkeypatch.setattr(resource_wait, "RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 3)
        disk = host.machine.disks["/data"]
        for name in (".idx", ".tdx", "leader-epochs"):
            disk.faults.append(DiskFault(("write", "create"), errno.ENOSPC, path_part=name))
        taken = 3
        for number in range(40):
            try:
                append(plog, b"x" * 100, epoch=1 + number % epochs)
            except KafkaStorageError:
                break
            taken += 1
            await settle()
        assert plog.failed is None
        with pytest.raises(KafkaStorageError, match="short of space"):
            append(plog, b"refused")
        assert len(await asyncio.wait_for(values_of(plog), 5)) == taken, "reads go on"
        disk.heal()
        await asyncio.wait_for(plog.flush(), 5)
        await quiet(plog)
        assert append(plog, b"accepted") == taken
        plog = await host.reopen()
        assert len(await values_of(plog)) == taken + 1
        assert not host.process.misuses

    run(scenario)


def test_retention_on_a_full_disk_is_refused_and_can_be_repeated() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 50)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write", "create"), errno.ENOSPC, path_part="log-start"))
        segments = len(plog.segments)
        with pytest.raises(KafkaStorageError, match="full"):
            await plog.trim_to(30)
        assert plog.failed is None and plog.log_start_offset == 0
        assert len(plog.segments) == segments and len(await values_of(plog)) == 50
        disk.heal()
        await plog.trim_to(30)
        assert len(await values_of(plog, 30)) == 20

    run(scenario)


def test_a_log_that_begins_anew_on_a_full_disk_takes_the_spare_space() -> None:
    """It notes where it begins before it drops anything, and nothing else may ever become free."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 30)
        disk = host.machine.disks["/data"]
        spare: Any = SimpleNamespace(give=disk.heal)
        plog.services = replace(plog.services, spare=spare)
        disk.faults.append(DiskFault(("create",), errno.ENOSPC))
        await asyncio.wait_for(plog.start_at(20), 5)
        assert (plog.log_start_offset, plog.log_end_offset) == (20, 20)

    run(scenario)


def test_a_trim_that_waited_for_descriptors_and_finds_no_space_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource_wait, "RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 50)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("create",), errno.EMFILE, count=1, path_part="log-start"))
        disk.faults.append(DiskFault(("write",), errno.ENOSPC, path_part="log-start"))
        with pytest.raises(KafkaStorageError, match="full"):
            await plog.trim_to(30)
        disk.heal()
        assert plog.failed is None and plog.blocked is None, "nobody waits any more"
        await plog.trim_to(30)
        assert append(plog, b"accepted") == 50

    run(scenario)


def test_a_log_that_waits_for_space_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_wait, "STOP_RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 3)
        host.machine.disks["/data"].faults.append(DiskFault(("create",), errno.ENOSPC))
        while plog.blocked is None:
            await append_waiting(plog, b"x" * 100)
            await settle()
        taken = plog.promised_offset
        with pytest.raises(KafkaStorageError):
            await asyncio.wait_for(plog.close(), 5)
        host.machine.disks["/data"].heal()
        plog = await host.crash()
        assert len(await values_of(plog)) >= taken

    run(scenario)


@pytest.mark.parametrize("operation", ["write", "create"])
@pytest.mark.parametrize("how", ["there is space", "it is deleted", "it fails"])
def test_memory_may_hang_as_long_as_a_log_waits_for_space(
    operation: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((resource_wait, "RETRY_S"), (flusher, "FULL_DISK_RETRY_SECONDS")):
        monkeypatch.setattr(module, name, 0.001)
    monkeypatch.setattr(resource_wait, "STOP_RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 3)
        memory, disk = plog.services.memory, host.machine.disks["/data"]
        disk.faults.append(DiskFault((operation,), errno.ENOSPC, path_part=".log"))
        assert not memory.may_hang
        while plog.blocked is None:
            await append_waiting(plog, b"x" * 300)
            await settle()
        assert memory.may_hang
        if how == "it fails":
            disk.faults.insert(0, DiskFault((operation,), errno.EIO, path_part=".log"))
            while plog.failed is None:
                await asyncio.sleep(0.001)
        elif how == "it is deleted":
            await asyncio.wait_for(plog.delete(), 5)
        else:
            disk.heal()
            while plog.blocked is not None:
                await asyncio.sleep(0.001)
            await asyncio.wait_for(plog.flush(), 5)
        await quiet(plog)
        assert not memory.may_hang

    run(scenario)


def test_a_flush_that_is_refused_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its future would get the error of the close, and nobody would ever ask for that."""

    def short(_: PartitionLog) -> None:
        raise KafkaStorageError("t-0 waits: the node is short of space on the disk")

    async def scenario() -> None:
        host = LogHost(config=replace(CONFIG, flush_policy=FlushPolicy.NEVER))
        plog = await host.open()
        append(plog, b"x" * 100)
        await settle()
        assert plog.flushed_offset < plog.log_end_offset and not plog.active.durable
        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "check_shortage", short)
            with pytest.raises(KafkaStorageError, match="short of"):
                await plog.flush()
        assert plog.flush_waiters == []
        await plog.flush()
        assert plog.flushed_offset == plog.log_end_offset
        await plog.close()

    run(scenario)


def test_a_read_that_opens_the_index_of_the_active_segment_without_space_costs_no_log() -> None:
    """Its head is written over, for which some file systems need space."""

    async def scenario() -> None:
        host = LogHost(config=replace(CONFIG, segment_bytes=1 << 20))
        await rested(host, 10)
        plog = await host.reopen()
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write",), errno.ENOSPC, path_part=".idx"))
        with pytest.raises(KafkaStorageError, match="No space"):
            await plog.locate(5)
        assert plog.failed is None
        disk.heal()
        assert len(await values_of(plog)) == 10

    run(scenario)


def test_who_waits_for_a_flush_hears_that_there_is_no_space_for_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A snapshot of producers waited for it, with it all others of the node, and each cut."""
    monkeypatch.setattr(resource_wait, "RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 3)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("create",), errno.ENOSPC))
        plog.roll()
        append(plog, b"waits")
        for _ in range(2):  # before the job is short of it, and then
            with pytest.raises(KafkaStorageError, match="space on the disk"):
                await asyncio.wait_for(plog.flush(), 5)
        assert plog.failed is None
        disk.heal()
        while plog.flushed_offset < 4:
            await asyncio.sleep(0.001)

    run(scenario)
