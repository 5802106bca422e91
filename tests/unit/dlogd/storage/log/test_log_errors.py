"""A partition log when writes, flushes and reads fail: what ends it, and what does not."""

import asyncio
import errno
from dataclasses import replace

import pytest

from dlog.errors import KafkaStorageError, WireError
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.storage.log.flusher import FULL_DISK_RETRY_SECONDS
from tests.fakes.faults import DiskFault, Latency
from tests.fakes.filled_logs import CONFIG, config, opened, quiet
from tests.fakes.logs import LogHost, append, append_waiting, run_virtual, settle, values_of


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_h14_an_error_of_a_flush_ends_the_log(code: int) -> None:
    """H14: no retry on the same file, and everybody who waits is told."""

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
