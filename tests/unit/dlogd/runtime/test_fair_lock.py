"""A lock whose waiters take turns by owner."""

import asyncio

import pytest

from dlogd.runtime.fair_lock import FairLock
from tests.fakes.logs import run_virtual


async def hold(lock: FairLock, owner: str, said: list[str], seconds: float = 1) -> None:
    async with lock.held(owner):
        said.append(owner)
        await asyncio.sleep(seconds)


def test_an_owner_with_many_waiters_delays_another_by_one_turn() -> None:
    async def scenario() -> None:
        lock, said = FairLock(), list[str]()
        async with asyncio.TaskGroup() as group:
            for owner in ("a", "a", "a", "a", "b", "b", "c"):
                group.create_task(hold(lock, owner, said))
        assert said == ["a", "a", "b", "c", "a", "b", "a"]

    run_virtual(scenario)


@pytest.mark.parametrize("victim", range(5))
def test_whoever_is_cancelled_holds_up_nobody(victim: int) -> None:
    async def scenario() -> None:
        lock, said = FairLock(), list[str]()
        tasks = [asyncio.create_task(hold(lock, f"{n % 2}", said)) for n in range(5)]
        await asyncio.sleep(0.5)
        tasks[victim].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(said) == (5 if victim == 0 else 4)
        async with asyncio.timeout(1), lock.held():
            pass

    run_virtual(scenario)


def test_whoever_is_cancelled_in_the_moment_of_its_turn_gives_it_on() -> None:
    async def scenario() -> None:
        lock, said = FairLock(), list[str]()
        async with lock.held("a"):
            second = asyncio.create_task(hold(lock, "b", said))
            third = asyncio.create_task(hold(lock, "c", said))
            await asyncio.sleep(1)
        second.cancel()  # it was given the lock and has not run since
        await third
        assert said == ["c"] and second.cancelled()

    run_virtual(scenario)
