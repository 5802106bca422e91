"""Who leads when the lease ends and begins: its keeper tells, or who is asked finds out."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import NotLeaderOrFollowerError
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.image import ClusterImage, PartitionImage, TopicImage
from dlogd.replication.roles import Roles
from tests.fakes.front import Front, run_on

ME = NodeId(1)


def led_image(topic_id: UUID) -> ClusterImage:
    """Return an image in which this node alone has a partition, and leads it."""
    partition = PartitionImage(
        replicas=(ME,),
        isr=(ME,),
        leader=ME,
        leader_epoch=LeaderEpoch(5),
        partition_epoch=PartitionEpoch(9),
    )
    topic = TopicImage(name="a", topic_id=topic_id, partitions=(partition,))
    return ClusterImage(topics={"a": topic}, topics_by_id={topic_id: topic})


def test_a_lease_that_is_back_before_its_keeper_has_looked_is_used(tmp_path: Path) -> None:
    """A host slept: timers stood still, the clock of leases did not. The keeper sees a lease that
    was valid before and is valid now, and tells nobody.
    """

    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            partition = front.partition("a")
            image = led_image(partition.topic_id)
            lease, now = SimpleNamespace(valid_until_us=1000), [0]
            clock: Any = SimpleNamespace(now_us=lambda: now[0])
            roles = Roles({(partition.topic_id, 0): partition}, ME, lease, clock)
            roles.begin(image)
            roles.on_lease()
            partition.check_serving()
            now[0] = 1000
            roles.check_lease()
            with pytest.raises(NotLeaderOrFollowerError, match="no valid lease"):
                partition.check_serving()
            roles.check_lease()
            assert partition.closed is not None
            lease.valid_until_us = 2000
            roles.check_lease()
            partition.check_serving()
            assert partition.leader_epoch == 5

    run_on(asyncio.new_event_loop, scenario())
