"""Who leads when the lease ends and begins: its keeper tells, or who is asked finds out.

And which followers consumers may read (KIP-392).
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import NotLeaderOrFollowerError
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlog.wire import fetch_client
from dlogd.metadata.state.image import ClusterImage, PartitionImage, TopicImage
from dlogd.replication.partition.partition import Partition
from dlogd.replication.role_assigner import RoleAssigner
from tests.fakes.front import FETCH_VERSION, Client, Front, fetch_request, run_on, until
from tests.fakes.logs import append

ME, LEADER = NodeId(1), NodeId(2)
LED = PartitionImage(
    replicas=(ME,),
    isr=(ME,),
    leader=ME,
    leader_epoch=LeaderEpoch(5),
    partition_epoch=PartitionEpoch(9),
)
IN_SYNC = replace(LED, replicas=(ME, LEADER), isr=(ME, LEADER), leader=LEADER)
OUT_OF_SYNC = replace(IN_SYNC, isr=(LEADER,))


def led_image(topic_id: UUID) -> ClusterImage:
    """Return an image in which this node alone has a partition, and leads it."""
    return image_of(topic_id, LED)


def image_of(topic_id: UUID, partition: PartitionImage) -> ClusterImage:
    """Return an image with one partition."""
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
            roles = RoleAssigner({(partition.topic_id, 0): partition}, ME, lease, clock)
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


class Follower:
    """A partition that follows, as the image says, and a lease that a test can end."""

    def __init__(self, partition: Partition) -> None:
        partition.reporter = SimpleNamespace(on_promised=lambda: None)
        self.lease, self.now_us = SimpleNamespace(valid_until_us=1000), 0
        clock: Any = SimpleNamespace(now_us=lambda: self.now_us)
        self._topic_id = partition.topic_id
        self.roles = RoleAssigner({(partition.topic_id, 0): partition}, ME, self.lease, clock)

    def learn(self, image: PartitionImage) -> None:
        """Another image holds from now on."""
        self.roles.begin(image_of(self._topic_id, image))
        self.roles.on_lease()

    def outlive_lease(self) -> None:
        """The lease of the node ends, and its keeper tells."""
        self.now_us = 1000
        self.roles.on_lease()


async def read(client: Client, offset: int, *, max_wait_ms: int = 0, also: str = "") -> list[int]:
    """Fetch from `a`, and `also` from another topic, as who names a rack; return the errors."""
    names = [("a", offset)] + ([(also, 0)] if also else [])
    topics = [(name, [(0, -1, place, -1, -1, 1 << 20)]) for name, place in names]
    request = fetch_request(topics, max_wait_ms=max_wait_ms, min_bytes=1 + 1000 * bool(also))
    request = request._replace(rack_id="r")
    await client.send(fetch_client.encode_request(FETCH_VERSION, 1, "test", request))
    return [code for code, _ in (await client.fetched()).values()]


def test_consumers_read_a_follower_while_it_is_in_sync(tmp_path: Path) -> None:
    """Who has left the ISR may get nothing more, and tells consumers nothing of what is new."""

    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            partition = front.partition("a")
            assert append(partition.log, b"x") is not None
            await partition.log.flush()
            follower, client = Follower(partition), await front.connect()
            for image, error in (
                (IN_SYNC, 0),
                (OUT_OF_SYNC, NotLeaderOrFollowerError.code),
                (IN_SYNC, 0),
            ):
                follower.learn(image)
                assert await read(client, 0) == [error]
            follower.outlive_lease()  # it would not hear that it is out of the ISR
            assert await read(client, 0) == [NotLeaderOrFollowerError.code]

    run_on(asyncio.new_event_loop, scenario())


@pytest.mark.parametrize("also", ["", "b"], ids=["one", "one of two"])
@pytest.mark.parametrize("is_isolated", [False, True], ids=["out of sync", "isolated"])
def test_who_waits_at_a_follower_hears_when_it_is_out_of_sync(
    tmp_path: Path, is_isolated: bool, also: str
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            follower, client = Follower(front.partition("a")), await front.connect()
            follower.learn(IN_SYNC)
            waiting = asyncio.create_task(read(client, 0, max_wait_ms=60_000, also=also))
            await until(lambda: front.fetch.parked)
            follower.learn(IN_SYNC)
            assert front.fetch.parked  # nothing has changed
            if is_isolated:
                follower.outlive_lease()
            else:
                follower.learn(OUT_OF_SYNC)
            async with asyncio.timeout(10):
                errors = await waiting
            assert errors == [NotLeaderOrFollowerError.code, 0][: len(errors)]

    run_on(asyncio.new_event_loop, scenario())
