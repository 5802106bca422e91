"""Space ahead of the tail, and what the flushed mark says: work that overlaps with writes."""

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from dlog.errors import KafkaStorageError
from dlogd.config.choices import DirectIo
from dlogd.storage.io.zero_fill import zero_ahead
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.segment.index_files import load_entries
from dlogd.storage.segment.offset_index import ENTRY
from dlogd.storage.segment.segment_names import IDX, file_name
from tests.fakes.faults import DiskFault, Latency
from tests.fakes.logs import (
    TICK_S,
    LogHost,
    append,
    append_waiting,
    run_virtual,
    settle,
    values_of,
)

CONFIG = LogConfig(segment_bytes=4 << 20, preallocate_bytes=1 << 20, index_interval_bytes=256)


def mark_in_file(host: LogHost) -> int:
    """Return the flushed mark as the next start would find it."""
    header = host.log.active.headers()[0]
    found = load_entries(host.directory, file_name(0, IDX), header, ENTRY)
    assert found is not None
    return found.header.mark


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("direct", [DirectIo.AUTO, DirectIo.OFF])
def test_preparing_space_never_overwrites_records(seed: int, direct: DirectIo) -> None:
    """Preallocation and zeroing may write zeros: no write of records may be where they are."""

    async def scenario() -> None:
        config = LogConfig(
            segment_bytes=300_000, preallocate_bytes=1 << 16, direct_io=direct, segment_ms=10**9
        )
        host = LogHost(seed, config)
        plog = await host.open()
        rng = random.Random(seed)
        disk = host.machine.disks["/data"]
        disk.latency = Latency(fixed=0.0001, mean=0.0005)
        count = 0
        while plog.log_end_offset < 250:
            for _ in range(rng.choice((1, 1, 5, 20))):
                value = b"%05d" % count + b"v" * rng.choice((50, 1000, 5000))
                if append(plog, value) is not None:
                    count += 1
            await asyncio.sleep(rng.choice((TICK_S, TICK_S, 0.0005)))
        await plog.flush()
        assert not host.process.misuses
        plog = await host.power_cut(keep=0.0)
        values = await values_of(plog)
        assert [value[:5] for _, value in values] == [b"%05d" % n for n in range(count)]

    run_virtual(scenario)


def test_space_is_taken_in_steps_that_double_and_given_back() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        steps: list[int] = []
        for _ in range(3500):
            await append_waiting(plog, b"x" * 1000)
            await asyncio.sleep(TICK_S)
            if not steps or plog.segments[0].space.allocated_end != steps[-1]:
                steps.append(plog.segments[0].space.allocated_end)
        steps = [step for step in steps if step]
        assert (1 << 20) <= steps[0] < (1 << 20) + 65536, "the first is small"
        assert steps[1] - steps[0] == 1 << 20
        assert steps[-1] <= 4 << 20
        await plog.close()
        file = host.directory.open(file_name(0))
        assert file.size() == plog.segments[0].end_position

    run_virtual(scenario)


def test_small_writes_go_over_zeros_and_large_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    zeroed: list[int] = []

    def count_zeros(engine: Any, file: Any, position: int, length: int, done: Any) -> None:
        zeroed.append(length)
        zero_ahead(engine, file, position, length, done)

    monkeypatch.setattr("dlogd.storage.log.log_jobs.zero_ahead", count_zeros)

    async def scenario() -> None:
        for size, expected in ((100, True), (200_000, False)):
            zeroed.clear()
            host = LogHost(config=CONFIG, pool_bytes=4 << 20, large_bytes=1 << 19)
            plog = await host.open()
            for _ in range(6):
                for _ in range(4):
                    await append_waiting(plog, b"x" * size)
                await plog.flush()
                await settle()
            assert bool(zeroed) is expected
            assert all(length <= 1 << 20 for length in zeroed)

    run_virtual(scenario)


def test_the_mark_follows_each_flush_and_never_leads() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        await append_waiting(plog, b"first")
        await plog.flush()
        await settle()
        assert mark_in_file(host) == plog.active.flushed_position > 0, "known from the start"
        host.machine.disks["/data"].latency = Latency(fixed=0.003)
        for _ in range(30):
            append(plog, b"x" * 500)
            await asyncio.sleep(0.0005)
            mark = mark_in_file(host)
            assert mark == plog.active.flushed_position <= plog.active.written_position
        assert plog.active.flushed_position < plog.active.end_position
        await plog.flush()
        assert mark_in_file(host) == plog.active.end_position

    run_virtual(scenario)


def test_entries_wait_for_the_leader_epochs_on_disk() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        await append_waiting(plog, b"x")
        await plog.flush()
        await settle()
        host.machine.disks["/data"].faults.append(DiskFault(("rename",)))
        while plog.failed is None:
            append(plog, b"x" * 300, epoch=7)
            await settle()
            assert plog.segments[0].index.settled == 0
        promised = plog.promised_offset
        assert promised > 1, "only the epochs could not be saved"
        host.machine.heal()
        plog = await host.crash()
        assert plog.log_end_offset >= promised
        assert plog.epochs.entries == [(0, 0), (7, 1)]

    run_virtual(scenario)


@pytest.mark.parametrize("killed", [True, False])
def test_entries_wait_while_the_leader_epochs_are_being_saved(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node killed meanwhile finds the epoch only in batches that it scans."""

    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        await append_waiting(plog, b"x")
        await plog.flush()
        await settle()
        engine = host.process.engine
        run_now, may_run = engine.run, asyncio.Event()

        async def run_later(work: Callable[[], Any]) -> Any:
            await may_run.wait()
            return await run_now(work)

        monkeypatch.setattr(engine, "run", run_later)
        for _ in range(5):
            append(plog, b"x" * 300, epoch=7)
            await plog.flush()
            await settle()
        assert plog.active.index.settled == 0
        if killed:
            plog = await host.crash()
        else:
            may_run.set()
            await settle()
            append(plog, b"x" * 300, epoch=7)
            await plog.flush()
            assert plog.active.index.settled > 0, "saved, so they need not wait"
        assert plog.epochs.entries == [(0, 0), (7, 1)]

    run_virtual(scenario)


def test_the_file_of_a_new_segment_is_named_durably_before_it_is_used() -> None:
    async def scenario() -> None:
        for seed in range(10):
            host = LogHost(seed, CONFIG)
            plog = await host.open()
            await append_waiting(plog, b"old")
            await plog.flush()
            plog.roll()
            await append_waiting(plog, b"new")
            while plog.promised_offset < 2:
                await asyncio.sleep(TICK_S)
            plog = await host.power_cut(keep=0.0)
            assert plog.log_end_offset == 2

    run_virtual(scenario)


def test_who_waits_for_a_flush_hears_of_the_full_disk() -> None:
    async def scenario() -> None:
        host = LogHost(config=CONFIG)
        plog = await host.open()
        disk = host.machine.disks["/data"]
        disk.latency = Latency(fixed=0.01)
        disk.faults.append(DiskFault(("write",), errno.ENOSPC, path_part=".log"))
        append(plog, b"x")
        with pytest.raises(KafkaStorageError, match="full"):
            await asyncio.wait_for(plog.flush(), 5)

    run_virtual(scenario)
