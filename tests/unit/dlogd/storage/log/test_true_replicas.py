"""Replicas, damaged and mended segments come to the same times, whatever heads of batches claim."""

import errno
import random

import pytest

from dlog.batch.header import iter_headers
from dlog.compression import Codec
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.repair.segment_repair import SegmentRepair
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.faults import DiskFault
from tests.fakes.lies import append_batch, lying
from tests.fakes.logs import LogHost, read_batches, run_virtual, settle
from tests.fakes.true_times import CONFIG, NOW, first, learned, newest, sealed_all

HEADS = (None, -1, 0, NOW, NOW + 10**9)


async def filled(host: LogHost, seed: int, count: int = 40) -> tuple[PartitionLog, list[int]]:
    """Return a log with random batches and heads, and the timestamps of its records."""
    rng = random.Random(seed)
    plog = await host.open()
    times: list[int] = []
    for _ in range(count):
        batch = [NOW + rng.randrange(1000) for _ in range(rng.randint(1, 4))]
        times += batch
        append_batch(plog, lying(batch, rng.choice(HEADS), rng.choice(list(Codec))))
        await settle()
    await plog.flush()
    return plog, times


async def agrees(plog: PartitionLog, times: list[int], start: int = 0) -> None:
    """Assert that searches answer as a plain list of records does."""
    found = [(ms, offset) for offset, ms in enumerate(times) if offset >= start]
    for wanted in {NOW, NOW + 1000, *(ms + step for ms, _ in found for step in (0, 1))}:
        expected = next((each for each in found if each[0] >= wanted), None)
        assert await first(plog, wanted) == expected
    largest = max(ms for ms, _ in found)
    assert await newest(plog) == next(each for each in found if each[0] == largest)


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_comes_to_the_answers_of_its_leader(seed: int) -> None:
    """The follower has other segments, and its first search comes at another time."""

    async def scenario() -> None:
        leader, times = await filled(LogHost(config=CONFIG), seed)
        await agrees(leader, times)
        host = LogHost(config=CONFIG, seed=seed)
        follower = await host.open()
        data = memoryview(await read_batches(leader, 0))
        for number, (position, header) in enumerate(iter_headers(data)):
            follower.append_verbatim(data[position : position + header.batch_bytes])
            await settle()
            if number == 20:
                follower.roll()
        await agrees(follower, times)
        await sealed_all(follower)
        await learned(follower)
        await agrees(follower, times)
        for reopen in (host.reopen, host.crash, host.power_cut):
            follower = await reopen()
            await agrees(follower, times)
        await follower.truncate_to(len(times) // 2)
        await agrees(follower, times[: follower.log_end_offset])
        await follower.trim_to(10)
        await agrees(follower, times[: follower.log_end_offset], 10)

    run_virtual(scenario)


def test_an_active_segment_that_was_searched_is_cut() -> None:
    async def scenario() -> None:
        plog = await LogHost(config=LogConfig(preallocate_bytes=0)).open()
        times = [NOW + number for number in range(40)]
        for ms in times:
            append_batch(plog, lying([ms], -1, Codec.GZIP))
        await plog.flush()
        await agrees(plog, times)
        for end in (30, 7):
            await plog.truncate_to(end)
            await agrees(plog, times[:end])
        append_batch(plog, lying([NOW + 3], 0, Codec.GZIP))
        await agrees(plog, [*times[:7], NOW + 3])

    run_virtual(scenario)


async def one_segment(host: LogHost) -> tuple[PartitionLog, list[int]]:
    """Return a stopped log of ten batches of two records in one closed segment; and its sizes."""
    plog = await host.open()
    sizes = [0]
    for number in range(10):
        append_batch(plog, lying([NOW + number, NOW], -1, Codec.SNAPPY, size=60))
        sizes.append(plog.active.tail.end)
    await plog.flush()
    await sealed_all(plog)
    await learned(plog)
    return plog, sizes


def test_damage_is_passed_over_and_counts_again_when_it_is_mended() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog, ends = await one_segment(host)
        good = await read_batches(plog, 0)
        host.directory.unlink(file_name(0, ".tdx"))  # what was learned is lost
        plog = await host.reopen()
        file = host.directory.open(file_name(0))
        file.pwrite(bytes(50), ends[4] + 70)
        file.close()
        assert await first(plog, NOW + 4) == (NOW + 5, 10)
        known = plog.segments[0].known_times
        assert not known.is_true and not known.is_whole
        plog.damage.note(plog.segments[0].path, ends[4], 8, 10, ends[5])
        mending = SegmentRepair(plog, plog.damage.places[0])
        await mending.take(good[ends[4] : ends[5]])
        await mending.finish()
        assert await first(plog, NOW + 4) == (NOW + 4, 8)
        assert plog.segments[0].known_times.is_true

    run_virtual(scenario)


def test_a_block_that_cannot_be_read_costs_the_records_there_and_not_the_log() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog, _ = await one_segment(host)
        host.directory.unlink(file_name(0, ".tdx"))
        plog = await host.reopen()
        await plog.locate(0)
        disk = host.machine.disks["/data"]
        disk.faults.append(DiskFault(("read",), path_part=".log", errno=errno.EIO))
        await plog.timestamps.learner.learn(plog.segments[0])
        assert plog.failed is None
        known = plog.segments[0].known_times
        assert not known.is_true and not known.is_whole
        host.machine.heal()

    run_virtual(scenario)


def test_a_full_disk_keeps_what_was_learned_in_memory() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog, _ = await one_segment(host)
        host.directory.unlink(file_name(0, ".tdx"))
        plog = await host.reopen()
        await plog.locate(0)
        disk = host.machine.disks["/data"]
        full = DiskFault(("write",), path_part=".tmp", errno=errno.ENOSPC, writes_part=True)
        disk.faults.append(full)
        assert await newest(plog) == (NOW + 9, 18)
        segment = plog.segments[0]
        assert not segment.known_times.is_true and segment.known_times.learned is not None
        assert await first(plog, NOW + 5) == (NOW + 5, 10)
        assert not host.directory.exists(file_name(0, ".tdx.tmp"))
        host.machine.heal()
        await plog.timestamps.learner.remember(segment)
        assert segment.known_times.is_true
        assert await first(plog, NOW + 5) == (NOW + 5, 10)

    run_virtual(scenario)


def test_what_a_crash_left_of_an_index_is_removed() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog, _ = await one_segment(host)
        directory = await host.kill()
        directory.open(file_name(0, ".tdx.tmp"), create=True).close()
        plog = await host.open()
        assert not host.directory.exists(file_name(0, ".tdx.tmp"))
        assert await newest(plog) == (NOW + 9, 18)

    run_virtual(scenario)
