"""Waiters of a partition: who is woken by an append, when, in which order, and who is not."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from dlog.errors import NotLeaderOrFollowerError
from dlog.types import LeaderEpoch
from dlogd.replication.partition.fetch_waiters import BURST, Wakes
from dlogd.replication.partition.partition import Partition
from dlogd.storage.log.log_config import LogConfig
from tests.fakes.front import Front, run_on
from tests.fakes.logs import append, batch_of

BATCH_BYTES = len(batch_of(bytes(100)))


class Waiter:
    """A fetch that waits; it keeps how often it was told, and when."""

    def __init__(self, told: list["Waiter"] | None = None) -> None:
        self.told = [] if told is None else told

    def on_data(self, _: int) -> None:
        self.told.append(self)


def check(
    scenario: Callable[[Partition], Awaitable[None]],
    folder: Path,
    config: LogConfig | None = None,
) -> None:
    async def work() -> None:
        async with Front.open(folder, config=config) as front:
            await scenario(front.partition("t"))

    run_on(asyncio.new_event_loop, work())


async def write(partition: Partition, value: bytes = bytes(100)) -> None:
    assert append(partition.log, value) is not None
    await partition.log.flush()


def wait(partition: Partition, bytes_more: int) -> Waiter:
    waiter = Waiter()
    mark = partition.fetches.mark(partition.high_watermark)
    assert mark is not None
    partition.fetches.add(waiter, 0, mark, bytes_more)
    return waiter


def test_a_waiter_is_told_of_the_append_that_brings_its_bytes_and_of_no_other(
    tmp_path: Path,
) -> None:
    async def scenario(partition: Partition) -> None:
        some = [wait(partition, number * BATCH_BYTES) for number in (1, 3, 2)]
        never = wait(partition, 1 << 31)
        for number in (1, 2, 3):
            await write(partition)
            assert [len(each.told) for each in some] == [1, number >= 3, number >= 2]
        assert not never.told and len(partition.fetches) == 1

    check(scenario, tmp_path)


def test_one_byte_less_than_a_waiter_needs_is_not_enough(tmp_path: Path) -> None:
    async def scenario(partition: Partition) -> None:
        enough, more = wait(partition, BATCH_BYTES), wait(partition, BATCH_BYTES + 1)
        await write(partition)
        assert enough.told and not more.told

    check(scenario, tmp_path)


def test_bytes_that_are_not_readable_yet_do_not_count(tmp_path: Path) -> None:
    async def scenario(partition: Partition) -> None:
        waiter = wait(partition, 2 * BATCH_BYTES)
        await write(partition)
        await partition.log._flusher.freeze()
        append(partition.log, bytes(100))
        partition.fetches.advance_to(partition.high_watermark)
        assert not waiter.told
        partition.log._flusher.thaw()
        await partition.log.flush()
        assert waiter.told

    check(scenario, tmp_path)


@pytest.mark.parametrize("change", ["roll", "trim", "truncate", "follow", "close"])
def test_whatever_else_changes_a_log_wakes_all(tmp_path: Path, change: str) -> None:
    async def scenario(partition: Partition) -> None:
        for _ in range(3):
            await write(partition)
        waiter = wait(partition, 1 << 30)
        why = NotLeaderOrFollowerError("another node leads")
        if change == "roll":
            for _ in range(40):
                await write(partition)
        elif change == "trim":
            await partition.log.trim_to(2)
            await write(partition)
        elif change == "truncate":
            partition.follow(LeaderEpoch(4), why)
            assert waiter.told.pop()
            waiter = wait(partition, 1 << 30)
            await partition.log.truncate_to(1)
            await write(partition)
            partition.high_watermark = partition.log.log_start_offset
            partition.on_leader_watermark(2)
        elif change == "follow":
            partition.follow(LeaderEpoch(4), why)
        else:
            partition.close(why)
        assert waiter.told == [waiter]

    check(scenario, tmp_path, LogConfig(segment_bytes=4096, preallocate_bytes=0))


def test_a_watermark_that_falls_back_keeps_what_was_needed(tmp_path: Path) -> None:
    """A leader's first watermark of an epoch may be lower; the log is the same."""

    async def scenario(partition: Partition) -> None:
        for _ in range(3):
            await write(partition)
        waiter = wait(partition, BATCH_BYTES)
        partition.fetches.advance_to(1)
        partition.fetches.advance_to(3)
        assert not waiter.told
        await write(partition)
        assert waiter.told

    check(scenario, tmp_path)


def test_waiters_that_have_left_are_not_kept(tmp_path: Path) -> None:
    async def scenario(partition: Partition) -> None:
        kept = wait(partition, 1 << 30)
        for _ in range(1000):
            partition.fetches.remove(wait(partition, 1 << 29))
        assert len(partition.fetches._heap) < 200
        await write(partition)
        partition.fetches.wake_all()
        assert kept.told and not len(partition.fetches)

    check(scenario, tmp_path)


def test_random_lives_of_waiters_are_as_those_of_a_plain_list(tmp_path: Path) -> None:
    """Some come, some leave, logs grow and roll: all that have enough are told, in one go."""

    async def scenario(partition: Partition) -> None:
        rng = Random(7)
        needs: dict[Waiter, int] = {}
        written = 0
        for _ in range(400):
            action = rng.randrange(4)
            if action < 2:
                bytes_more = rng.randint(2, 5000)
                needs[wait(partition, bytes_more)] = written + bytes_more
            elif action == 2 and needs:
                gone = rng.choice(list(needs))
                partition.fetches.remove(gone)
                del needs[gone]
            else:
                base = partition.log.active.base_offset
                before = partition.log.size_bytes
                await write(partition, bytes(rng.randint(1, 1500)))
                written += partition.log.size_bytes - before
                for _ in range(200):
                    await asyncio.sleep(0)
                is_new = partition.log.active.base_offset != base
                for each, need in list(needs.items()):
                    assert bool(each.told) is (is_new or need <= written), (need, written)
                    if each.told:
                        del needs[each]

    check(scenario, tmp_path, LogConfig(segment_bytes=65536, preallocate_bytes=0))


# -- turns


class Wanting(Waiter):
    """A fetch that waits again when it is told."""

    def __init__(self, told: list[Waiter], partition: Partition) -> None:
        super().__init__(told)
        self._partition = partition

    def on_data(self, number: int) -> None:
        super().on_data(number)
        self._partition.fetches.add(self, number)


def test_a_crowd_is_woken_in_turns(tmp_path: Path) -> None:
    async def scenario(partition: Partition) -> None:
        told: list[Waiter] = []
        crowd = [Wanting(told, partition) for _ in range(5 * BURST + 1)]
        for each in crowd:
            partition.fetches.add(each, 0)
        append(partition.log, b"x")
        await partition.log._flusher.freeze()
        partition.fetches.advance_to(1)
        counts = [len(told)]
        for _ in range(6):
            await asyncio.sleep(0)
            counts.append(len(told))
        # Those who wait again meanwhile wait for the next advance, not for this one.
        assert counts == [BURST, *(BURST * n for n in (2, 3, 4, 5)), len(crowd), len(crowd)]
        assert told == crowd
        partition.log._flusher.thaw()

    check(scenario, tmp_path)


def test_a_crowd_of_one_partition_does_not_hold_up_another() -> None:
    async def scenario() -> None:
        wakes = Wakes(asyncio.get_running_loop())
        told: list[Waiter] = []
        wakes.wake([(Waiter(told), 0) for _ in range(100 * BURST)])
        wakes.wake([(single := Waiter(told), 0)])
        for _ in range(3):
            await asyncio.sleep(0)
        assert single in told and len(told) <= 4 * BURST

    run_on(asyncio.new_event_loop, scenario())
