"""Cuts of a partition log on a full disk: they need no space, or wait, or are refused at once."""

import asyncio
import errno

import pytest

from dlog.errors import KafkaStorageError
from dlogd.storage.log import flusher, resource_wait
from tests.fakes.faults import DiskFault
from tests.fakes.filled_logs import CONFIG, config, rested
from tests.fakes.front import until
from tests.fakes.logs import LogHost, append, append_waiting, run, values_of


def test_a_cut_does_not_wait_for_space_for_what_it_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has to be cut follows nobody until then, and hears of no deletion that makes space."""
    monkeypatch.setattr(flusher, "FULL_DISK_RETRY_SECONDS", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 10)
        async with plog.lock:
            await plog._maintenance.save_epochs()
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("create",), errno.ENOSPC))
        disk.faults.append(DiskFault(("write",), errno.ENOSPC, path_part=".log"))
        append(plog, b"of another history")
        await until(lambda: plog.blocked is not None)
        await asyncio.wait_for(plog.truncate_to(10), 5)
        assert (plog.flushed_offset, plog.log_end_offset, plog.blocked) == (10, 10, None)
        append(plog, b"does not fit")
        await until(lambda: plog.blocked is not None)
        disk.heal()
        await until(lambda: plog.flushed_offset == 11)
        plog = await host.crash()
        assert [value[:3] for _, value in await values_of(plog, 9)] == [b"009", b"doe"]

    run(scenario)


def test_a_cut_of_a_log_that_waits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its partition could not lead either, for as long as the disk is full."""
    monkeypatch.setattr(resource_wait, "RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=1000))
        plog = await rested(host, 3)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("create",), errno.ENOSPC))
        plog.roll()
        append(plog, b"of another history")
        await until(lambda: plog._maintenance.shortage.is_on)
        for offset in (3, 2):
            with pytest.raises(KafkaStorageError, match="space on the disk"):
                await asyncio.wait_for(plog.truncate_to(offset), 5)
        disk.heal()
        await until(lambda: plog.blocked is None)
        await asyncio.wait_for(plog.truncate_to(3), 5)
        assert plog.log_end_offset == 3

    run(scenario)


@pytest.mark.parametrize("name", [".idx", ".tdx"])
def test_a_cut_waits_for_space_to_write_over_what_the_indexes_have(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_wait, "RETRY_S", 0.001)

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await rested(host, 10)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write",), errno.ENOSPC, path_part=name, count=3))
        await asyncio.wait_for(plog.truncate_to(4), 5)
        assert (plog.log_end_offset, plog.failed) == (4, None)
        await append_waiting(plog, b"next")
        await plog.flush()
        plog = await host.crash()
        assert [value[:3] for _, value in await values_of(plog, 3)] == [b"003", b"nex"]

    run(scenario)
