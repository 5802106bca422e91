"""Followers whose place, or whose leader's host, is gone for a while."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from dlog.types import NodeId
from dlogd.replication.follower.leader_fetcher import LeaderFetcher
from tests.fakes.fleet_followers import following_of, on_node
from tests.fakes.small_fleet import SmallFleet, tell


def test_who_has_no_place_any_more_follows_nobody() -> None:
    """Its log is about to be deleted: a leader that has it back must not hear what it holds."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a")
        await fleet.until_in_sync("t")
        node_id = fleet.followers("t")[0]
        fetcher, following = following_of(fleet, node_id, "t")
        replicas, state = fleet.broker(node_id).replicas, fleet.state("t")
        assert replicas is not None
        others = tuple(each for each in state.replicas if each != node_id)
        moved = replace(state, replicas=others, isr=others)
        for image, follows in ((moved, False), (state, True)):
            work = partial(replicas.roles.tell, following.partition, following.key, image)
            await on_node(fleet, fetcher, work)
            followed = {each.key for each in fetcher.followings}
            assert (following.key in followed) is follows

    tell(story)


def fetchers_of(fleet: SmallFleet) -> tuple[Any, LeaderFetcher]:
    """Return the fetcher of a follower of `t`, and another one of the same leader, not started."""
    known, _ = following_of(fleet, fleet.followers("t")[0], "t")
    return known, LeaderFetcher(NodeId(fleet.leader("t")), known._services)


def test_who_asks_a_host_without_power_asks_anew_when_it_may_be_back() -> None:
    """It does not answer what was asked before it had power again (seed 64429)."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        known, fetcher = fetchers_of(fleet)
        fleet.host(fleet.leader("t")).power_cut()

        async def nudged_after(seconds: float) -> bool:
            await fleet.sleep(seconds)
            await on_node(fleet, known, fetcher.nudge)
            await fleet.sleep(0.02)
            return bool(attempt.done())

        attempt = await on_node(
            fleet, known, lambda: known._loop.create_task(fetcher._connect_and_follow())
        )
        assert not await nudged_after(0.1), "it may be about to succeed"
        assert await nudged_after(0.3)
        assert isinstance(attempt.result(), TimeoutError)

    tell(story)


def test_a_nudge_while_an_attempt_times_out_is_in_vain_and_harmless() -> None:
    """It comes from a new image, and what raises there leaves other partitions without a role."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        known, fetcher = fetchers_of(fleet)
        nudged: list[bool] = []

        def nudge() -> None:
            assert fetcher._attempt is not None
            nudged.append(fetcher._attempt.expired())
            fetcher.nudge()
            nudged.append(fetcher._attempt is not None)

        async def attempt() -> None:
            async with asyncio.timeout(0) as fetcher._attempt:
                fetcher._attempt_s = -60.0
                known._loop.call_soon(nudge)  # behind the time-out, before this task hears of it
                await asyncio.sleep(10)

        task = await on_node(fleet, known, lambda: known._loop.create_task(attempt()))
        await fleet.until(task.done)
        assert isinstance(task.exception(), TimeoutError)
        assert nudged == [True, True]

    tell(story)
