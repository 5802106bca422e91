"""A partition log that is cut, begun anew or trimmed while something else goes on in it."""

import asyncio
import errno
from typing import Any

import pytest

from dlog.errors import KafkaStorageError
from dlogd.storage.repair.segment_repair import SegmentRepair
from dlogd.storage.segment.segment import SegmentState
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.faults import DiskFault
from tests.fakes.files import MemoryDirectory
from tests.fakes.filled_logs import config, filled, offsets, unflushed
from tests.fakes.logs import LogHost, append_waiting, run_virtual, settle

CONFIG = config(segment_bytes=2000)


def test_retention_beside_a_replay_takes_nothing_out_of_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The segment is there when somebody looks, and gone when it is opened."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60)
        found = []
        async for header in plog.replay(0):
            if not found:
                await plog.trim_to(40)
                monkeypatch.setattr(MemoryDirectory, "exists", lambda *_: True)
            found.append(header.base_offset)
        assert found[-1] == 59 and len(found) < 60
        assert plog.failed is None

    run_virtual(scenario)


def test_a_log_that_waits_for_space_and_begins_anew_takes_records_again() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 5)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("write",), errno.ENOSPC, path_part=".log"))
        await append_waiting(plog, b"x" * 100)
        while plog.blocked is None:
            await settle()
        await plog.start_at(1000)
        disk.faults.clear()
        assert plog.blocked is None
        assert await append_waiting(plog, b"next") == 1000
        await plog.flush()

    run_virtual(scenario)


@pytest.mark.parametrize("offset", [5, 10, 1000])
def test_who_waits_for_the_flush_of_what_a_log_that_begins_anew_drops_goes_on(offset: int) -> None:
    """Retention or the end of the log, for which nothing would come any more."""

    async def scenario() -> None:
        host, plog = await unflushed()
        begin = asyncio.create_task(plog.start_at(offset))
        await asyncio.sleep(0)
        close = asyncio.create_task(plog.close())
        await begin
        await asyncio.wait_for(close, 5)
        assert plog.flushed_offset == plog.log_end_offset == offset
        plog = await host.power_cut(keep=0.0)
        assert plog.log_end_offset == offset

    run_virtual(scenario)


def test_who_looks_at_a_log_that_begins_anew_finds_that_it_has_changed() -> None:
    """For a moment it has no segment; when the disk is full, for long."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 30)
        segment = plog.segments[0]
        plog.damage.note(segment.path, 0, 0, 1, 100)
        (place,) = plog.damage.places
        SegmentRepair(plog, place)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("create",), errno.ENOSPC, path_part="leader-epochs"))
        begin = asyncio.create_task(plog.start_at(1000))
        for _ in range(20):
            await settle()
        assert not plog.segments
        with pytest.raises(KafkaStorageError, match="changed meanwhile"):
            SegmentRepair(plog, place)
        with pytest.raises(KafkaStorageError, match="short of space"):
            await plog.locate(20)
        disk.faults.clear()
        await begin
        assert await append_waiting(plog, b"next") == 1000
        await plog.flush()

    run_virtual(scenario)


def test_a_cut_keeps_the_file_of_who_reads_until_it_has_read() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60)
        segment = plog.segments[1]
        assert segment.state is SegmentState.SEALED
        await plog.locate(segment.base_offset)
        while segment.file is None:
            await plog.locate(segment.base_offset + 1)
            await settle()
        before: Any = segment.file
        segment.acquire()
        segment.acquire()
        await plog.truncate_to(segment.base_offset + 3)
        assert segment.file is not before and not before._closed
        segment.release()
        await settle()
        assert not before._closed
        segment.release()
        for _ in range(5):
            await settle()
        assert before._closed
        assert await append_waiting(plog, b"next") == segment.base_offset + 3
        await plog.flush()

    run_virtual(scenario)


def test_a_trim_beside_a_cut_that_waits_leaves_nothing_of_what_is_cut() -> None:
    async def scenario() -> None:
        host = LogHost(config=config(segment_bytes=3000))
        plog = await filled(host, 60)
        bases = list(plog.bases)
        assert len(bases) >= 4
        for base in bases[:-1]:
            await plog.locate(base)
        disk = host.machine.disks["/data"]
        disk.faults.append(
            DiskFault(("unlink",), errno.ENOSPC, path_part=file_name(bases[-1]).split(".")[0])
        )
        cut = asyncio.create_task(plog.truncate_to(bases[1] + 2))
        while not plog.blocked:
            await settle()
        await plog.trim_to(bases[1])
        disk.faults.clear()
        await cut
        assert plog.bases == [bases[1]]
        assert await append_waiting(plog, b"next") == bases[1] + 2
        await plog.flush()
        plog = await host.crash()
        assert await offsets(plog) == [bases[1], bases[1] + 1, bases[1] + 2]

    run_virtual(scenario)


def test_a_trim_that_waits_goes_on_when_others_wait_for_the_space_that_it_gives() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await filled(host, 60)
        bases, shortage = list(plog.bases), plog._maintenance.shortage
        async with plog.lock:
            trims = [asyncio.create_task(plog.trim_to(base)) for base in (bases[1], bases[2])]
            cancelled = asyncio.create_task(plog.trim_to(bases[3]))
            await settle()
            assert not any(each.done() for each in trims)
            cancelled.cancel()
            shortage._begin(OSError(errno.ENOSPC, "full"))
            await asyncio.gather(*trims)
            assert plog.log_start_offset == bases[2]
            shortage._end()
        await plog.trim_to(bases[4])
        assert plog.log_start_offset == bases[4] and not plog.lock.locked()

    run_virtual(scenario)
