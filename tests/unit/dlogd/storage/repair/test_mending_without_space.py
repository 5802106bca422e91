"""Damaged places of logs whose disk is full: mended later, and no log is lost by it."""

import asyncio
import errno

import pytest

from dlog.errors import KafkaStorageError
from dlogd.storage.repair.segment_repair import SegmentRepair
from tests.fakes.damaged_places import BATCH_BYTES, END, FIRST, damaged
from tests.fakes.faults import DiskFault
from tests.fakes.logs import run


def test_a_log_that_waits_for_space_is_mended_later() -> None:
    """One loop mends all logs of a node: it must not wait for one."""

    async def scenario() -> None:
        _, plog, place, good = await damaged()
        mending = SegmentRepair(plog, place)
        data = good[FIRST * BATCH_BYTES : END * BATCH_BYTES]
        async with plog.lock:
            plog._maintenance.shortage._begin(OSError(errno.ENOSPC, "full"))
            with pytest.raises(KafkaStorageError, match="space on the disk"):
                await asyncio.wait_for(mending.take(data), 5)
            plog._maintenance.shortage._end()
        mending = SegmentRepair(plog, place)
        await mending.take(data)
        await mending.finish()
        assert not plog.damage.places

    run(scenario)


def test_a_disk_without_space_for_what_is_written_anew_costs_no_log() -> None:
    """Some file systems write elsewhere what is overwritten; the place is mended later."""

    async def scenario() -> None:
        host, plog, place, good = await damaged()
        data = good[FIRST * BATCH_BYTES : END * BATCH_BYTES]
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write",), errno.ENOSPC))
        with pytest.raises(KafkaStorageError, match="No space"):
            await SegmentRepair(plog, place).take(data)
        assert plog.failed is None and plog.damage.places == [place]
        disk.heal()
        mending = SegmentRepair(plog, place)
        await mending.take(data)
        await mending.finish()
        assert not plog.damage.places

    run(scenario)
