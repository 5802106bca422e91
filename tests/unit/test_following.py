"""Followers whose connection, log or role changes at the wrong moment."""

import asyncio
from collections.abc import Callable
from typing import Any

from dlog.errors import TransportError
from dlogd.replication import stream
from dlogd.replication.fetcher import Fetcher
from dlogd.replication.following import NO_HANDLE, Following
from dlogd.replication.stream import Refusal
from tests.fakes.small_fleet import SmallFleet, tell


def following_of(fleet: SmallFleet, node_id: int, topic: str) -> tuple[Any, Any]:
    """Return a node's fetcher and what it follows of a topic."""
    replicating = fleet.broker(node_id).replicating
    assert replicating is not None
    following = replicating.fetching.current((fleet.image.topics[topic].topic_id, 0))
    assert isinstance(following, Following)
    assert isinstance(following.fetcher, Fetcher)
    return following.fetcher, following


async def on_node(fleet: SmallFleet, fetcher: Any, work: Callable[[], Any]) -> Any:
    """Do something where the node does its own."""
    found: list[Any] = []
    fetcher._loop.call_soon(lambda: found.append(work()))
    await fleet.until(lambda: found)
    return found[0]


def test_nobody_leads_or_follows_from_the_moment_that_a_cut_is_decided() -> None:
    """Else a leader's log is cut, or a new leader is told of what is cut a moment later."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b", b"c")
        await fleet.until_in_sync("t")
        node_id = fleet.followers("t")[0]
        fetcher, following = following_of(fleet, node_id, "t")
        partition = following.partition
        refusal = Refusal(following.handle, 0, partition.log.last_epoch, 1, 0, 1)
        frame = bytearray(stream.encode_refused((refusal,)))

        def refuse() -> tuple[bool, int]:
            fetcher._taking.take(frame, 4, len(frame))
            fetcher.subscribe(following)
            fetcher._send()
            return partition.is_cutting, following.handle

        assert await on_node(fleet, fetcher, refuse) == (True, NO_HANDLE)
        await fleet.until(lambda: fetcher._counters.truncations_total == 1)
        await fleet.until_in_sync("t")
        assert partition.log.log_end_offset == 3

    tell(story)


def test_a_log_that_begins_anew_goes_on_over_the_next_connection() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b", b"c")
        await fleet.until_in_sync("t")
        node_id = fleet.followers("t")[0]
        fetcher, following = following_of(fleet, node_id, "t")
        partition, cutter = following.partition, fetcher._services.cutter
        real = cutter.start_at

        async def slow(*place: Any) -> None:
            fetcher._link.close(TransportError("lost"))
            await asyncio.sleep(1)
            assert fetcher.is_connected
            await real(*place)

        def begin() -> None:
            cutter.start_at = slow
            fetcher._taking._hold = lambda cursor: None
            fetcher._taking._begin_log(following, 0, None)

        await on_node(fleet, fetcher, begin)
        await fleet.until(lambda: fetcher._counters.truncations_total == 1)
        await fleet.sleep(2)
        await fleet.until(lambda: partition.log.log_end_offset == 3)
        await fleet.until_in_sync("t")

    tell(story)


def test_a_partition_that_rests_is_subscribed_once_over_the_next_connection() -> None:
    """Twice would be for ever: each time the leader ends the earlier one."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.until_in_sync("t")
        fetcher, following = following_of(fleet, fleet.followers("t")[0], "t")
        refusals = fetcher._counters.refusals_total
        following.rest_s = 2.0
        await on_node(fleet, fetcher, lambda: fetcher._taking._leave(following))
        await on_node(fleet, fetcher, lambda: fetcher._link.close(TransportError("lost")))
        await fleet.sleep(10)
        assert fetcher._counters.refusals_total == refusals
        assert following.handle != NO_HANDLE
        await fleet.produce("t", b"a")
        await fleet.until_in_sync("t")

    tell(story)


def test_a_follower_comes_into_sync_while_its_leader_never_rests() -> None:
    """Its word is always older than the watermark, so the watermark has to wait for it."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", replicas=2, min_insync_replicas="1")
        leader, absent = fleet.leader("t"), fleet.followers("t")[0]
        fleet.host(absent).is_held_down = True
        fleet.host(absent).crash()
        await fleet.until(lambda: absent not in fleet.state("t").isr)
        fleet.host(absent).is_held_down = False
        fleet.host(absent).boot()
        is_over = False

        async def load() -> None:
            while not is_over:
                await fleet.sleep(fleet.rng.random() * 0.02)
                await fleet.produce("t", b"x")

        producers = [asyncio.ensure_future(load()) for _ in range(30)]
        await fleet.until(lambda: fleet.is_up(absent))
        await fleet.until(lambda: absent in fleet.state("t").isr, seconds=6)
        is_over = True
        await asyncio.gather(*producers)
        assert fleet.leader("t") == leader

    tell(story, latency_us=5000)
