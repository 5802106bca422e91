"""Followers in a small fleet, seen from within."""

from collections.abc import Callable
from typing import Any

from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.leader_fetcher import LeaderFetcher
from tests.fakes.small_fleet import SmallFleet


def following_of(fleet: SmallFleet, node_id: int, topic: str) -> tuple[Any, Any]:
    """Return a node's fetcher and what it follows of a topic."""
    replicating = fleet.broker(node_id).replicating
    assert replicating is not None
    following = replicating.fetching.current((fleet.image.topics[topic].topic_id, 0))
    assert isinstance(following, FollowedPartition)
    assert isinstance(following.fetcher, LeaderFetcher)
    return following.fetcher, following


async def on_node(fleet: SmallFleet, fetcher: Any, work: Callable[[], Any]) -> Any:
    """Do something where the node does its own."""
    found: list[Any] = []
    fetcher._loop.call_soon(lambda: found.append(work()))
    await fleet.until(lambda: found)
    return found[0]
