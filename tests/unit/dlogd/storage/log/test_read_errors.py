"""A disk that cannot be read any more: the log and its data directory go, the process stays."""

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from dlog.errors import KafkaStorageError
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment import sparse_index
from tests.fakes.faults import DiskFault
from tests.fakes.logs import LogHost, append, append_waiting, run_virtual, settle, values_of
from tests.fakes.manager import ManagerHost

CONFIG = LogConfig(segment_bytes=1 << 16, preallocate_bytes=0, index_interval_bytes=256)


async def filled(host: LogHost, monkeypatch: pytest.MonkeyPatch) -> PartitionLog:
    """Open a log whose index entries are in the files only."""
    monkeypatch.setattr(sparse_index, "PAGE_COUNT", 8)
    plog = await host.open()
    for number in range(400):
        await append_waiting(plog, b"%03d" % number + b"x" * 297)
    return await host.reopen()


async def read(plog: PartitionLog) -> None:
    plog.read(100, 1000, 400)


async def newest(plog: PartitionLog) -> None:
    await plog.trim_to(100)
    await plog.offset_of_max_timestamp()


@pytest.mark.parametrize(
    ("suffix", "use"),
    [
        (".idx", read),
        (".idx", lambda plog: plog.locate(100)),
        (".idx", lambda plog: plog.truncate_to(100)),
        (".idx", newest),
        (".tdx", lambda plog: plog.offset_for_timestamp(0)),
    ],
)
def test_an_index_that_cannot_be_read_fails_the_log(
    suffix: str,
    use: Callable[[PartitionLog], Awaitable[object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, monkeypatch)
        assert len(plog.segments) > 1
        await plog.locate(5)  # the files are open
        failures: list[OSError] = []
        plog.on_failure = lambda _, error: failures.append(error)
        host.machine.disks["/data"].faults.append(DiskFault(("read",), path_part=suffix))
        with pytest.raises(KafkaStorageError):
            await use(plog)
        assert plog.failed is not None
        assert [error.errno for error in failures] == [errno.EIO]

    run_virtual(scenario)


def test_an_index_without_its_end_fails_only_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, monkeypatch)
        await plog.locate(5)
        for name in host.directory.names():
            if name.endswith(".idx"):
                host.directory.open(name).truncate(60)
        with pytest.raises(KafkaStorageError, match="lost its end"):
            plog.read(100, 1000, 400)
        plog = await host.crash()
        assert len(await values_of(plog)) == 400, "it was made anew"

    run_virtual(scenario)


def test_an_error_while_a_segment_is_streamed_takes_the_directory_out_of_service() -> None:
    async def scenario() -> None:
        host = ManagerHost(2)
        await host.start()
        failing, other = await host.create_with(0, b"a"), await host.create_with(1, b"b")
        assert host.home_of(0) is not host.home_of(1)
        segment = failing.active
        segment.on_read_error(OSError(errno.EMFILE, "not the disk"))
        assert failing.failed is None
        segment.on_read_error(OSError(errno.EIO, "bad sector"))
        await settle()
        assert failing.failed is not None and other.failed is None
        assert [path for path, _ in host.failed] == [host.home_of(0).path]
        assert not host.home_of(0).status()["online"] and host.home_of(1).status()["online"]
        with pytest.raises(KafkaStorageError):
            append(failing, b"refused")
        append(other, b"taken")
        await asyncio.wait_for(other.flush(), 5)
        await host.stop()

    run_virtual(scenario)


def test_reads_are_counted_by_where_they_begin() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        append(plog, b"a")
        await plog.flush()
        metrics = host.services.metrics
        assert plog.read(0, 1000, 1) is not None
        assert (metrics.tail_reads_total, metrics.disk_reads_total) == (1, 0)
        assert plog.read(1, 1000, 1) is not None, "nothing there: not counted"
        plog = await host.reopen()
        metrics = host.services.metrics
        await plog.locate(0)
        assert plog.read(0, 1000, 1) is not None
        assert (metrics.tail_reads_total, metrics.disk_reads_total) == (0, 1)

    run_virtual(scenario)
