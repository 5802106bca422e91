"""Replica id -2 compares replicas: each answers, up to its watermark; nodes alone see more."""

import pytest

from dlog.client.cluster.node import NodeClient
from dlog.client.cluster.partition_calls import ACKS_LEADER, CONSUMER, OBSERVER, fetch, produce
from dlog.errors import NotLeaderOrFollowerError, ProtocolError
from dlog.transport import Connection, ConnectionOptions
from dlog.types import NodeId
from dlog.wire.apis import ApiKey
from tests.fakes.logs import batch_of, values_in
from tests.fakes.small_fleet import SmallFleet, tell

OPTIONS = ConnectionOptions(client_id="test")
LATEST = -1


async def read(node: NodeClient, replica_id: int) -> list[bytes]:
    view = await fetch(node, "t", 0, 0, max_wait_ms=50, replica_id=replica_id)
    return [value for _, value in values_in(bytes(view.records))]


async def end_of(node: NodeClient, replica_id: int) -> tuple[int, int]:
    def build(module: object) -> object:
        asked = module.ListOffsetsPartition(partition_index=0, timestamp=LATEST)  # type: ignore[attr-defined]
        topic = module.ListOffsetsTopic(name="t", partitions=(asked,))  # type: ignore[attr-defined]
        return module.ListOffsetsRequest(  # type: ignore[attr-defined]
            replica_id=replica_id, isolation_level=0, topics=(topic,)
        )

    answer = await node.call(ApiKey.LIST_OFFSETS, build)
    found = answer.topics[0].partitions[0]
    return int(found.error_code), int(found.offset)


def test_any_replica_answers_up_to_its_watermark() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", min_insync_replicas="3")
        await fleet.produce("t", b"committed")
        await fleet.until_in_sync("t")
        leader, (other, away) = fleet.leader("t"), fleet.followers("t")
        fleet.host(away).crash()
        await fleet.until(lambda: away not in fleet.state("t").isr)
        first = await fleet.cluster.leader("t", 0)
        await produce(first, "t", 0, bytes(batch_of(b"uncommitted")), acks=ACKS_LEADER)
        await fleet.until(lambda: fleet.replica(other, "t").log.flushed_offset == 2)
        await fleet.until(lambda: fleet.replica(other, "t").high_watermark == 1)
        for node_id in (leader, other):
            node = await fleet.cluster.node(node_id)
            assert await read(node, OBSERVER) == [b"committed"]
            assert await end_of(node, OBSERVER) == (0, 2)
        follower = await fleet.cluster.node(other)
        with pytest.raises(NotLeaderOrFollowerError):
            await read(follower, CONSUMER)
        assert (await end_of(follower, CONSUMER))[0] == NotLeaderOrFollowerError.code
        with pytest.raises(NotLeaderOrFollowerError):
            await read(follower, leader)

    tell(story, config={"flush.policy": "always"})


async def ask(fleet: SmallFleet, asker: int, asked: int) -> Connection:
    """Open a connection as the node would, on its own loop."""
    clustering, host = fleet.broker(asker).clustering, fleet.host(asker)
    assert clustering is not None
    task = host.loop.create_task(clustering.open_requests(NodeId(asked), OPTIONS))
    await fleet.until(task.done)
    return task.result()


def test_only_a_node_that_is_meant_and_registered_is_served() -> None:
    async def story(fleet: SmallFleet) -> None:
        asker, asked, third = 1, 2, 3
        clustering = fleet.broker(asker).clustering
        assert clustering is not None
        (await ask(fleet, asker, asked)).close()
        # Who is reached is not who was meant.
        addresses = clustering.address_of
        clustering.address_of = lambda _: addresses(NodeId(third))  # type: ignore[method-assign]
        with pytest.raises(ProtocolError, match="NOT_LEADER_OR_FOLLOWER"):
            await ask(fleet, asker, asked)
        clustering.address_of = addresses  # type: ignore[method-assign]
        clustering.node_epoch -= 1
        with pytest.raises(ProtocolError, match="STALE_BROKER_EPOCH"):
            await ask(fleet, asker, asked)
        clustering.node_epoch += 1

    tell(story)
