"""DescribeQuorum: who keeps the metadata and how far each is (KIP-595, KIP-836, KIP-853).

Only the leader knows how far the others are: another node asks it, so that clients may ask anybody.
"""

from collections.abc import Generator
from inspect import isawaitable
from typing import Any

from dlog.errors import (
    DlogError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import NO_NODE, NodeId
from dlog.wire.apis import ApiKey
from dlogd.metadata.interface import Quorum
from dlogd.metadata.raft.membership import QuorumState, ReplicaState
from dlogd.metadata.raft.voters import UNBOUND
from dlogd.server import response_builder
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.request_turns import at_once
from dlogd.server.response_builder import Fields

TOPIC, PARTITION = "__cluster_metadata", 0
"""The name that Kafka's protocol has for the metadata."""
LISTENER = "CONTROLLER"
FORWARDER = "dlogd"
"""The client id of a node that asks the leader for a client; it is not sent on once more."""
NEWEST = 2


async def answer(context: ServerContext, request: Request) -> Fields:
    """Describe the quorum of the metadata."""
    asked = request.body.topics
    if (
        len(asked) != 1
        or asked[0].topic_name != TOPIC
        or [each.partition_index for each in asked[0].partitions[:2]] != [PARTITION]
    ):
        return await _unknown(context, request)
    found = await state_of(context)
    if found.leader_id == context.node_id:
        return _described(context, found)
    if found.leader_id is None:
        return _not_led(found, "The quorum has no leader that can be reached")
    if request.client_id == FORWARDER or context.ask_node is None:
        return _not_led(found, f"Node {found.leader_id} leads")
    try:
        return _fields(await ask_leader(context, NodeId(found.leader_id)))
    except DlogError as error:
        return _not_led(found, f"Node {found.leader_id} leads and cannot be asked: {error}")


async def state_of(context: ServerContext) -> QuorumState:
    """Return the quorum as this node knows it; a node alone is a quorum of its own."""
    if context.quorum is None:
        return _alone(context)
    return await known_by(context.quorum)


async def known_by(office: Quorum) -> QuorumState:
    """Return what a store knows, be it in this thread or in another."""
    found = office.quorum()
    return await found if isawaitable(found) else found


def _alone(context: ServerContext) -> QuorumState:
    image, now_ms = context.image(), context.clock.now_ms()
    node = image.nodes.get(context.node_id)
    directories = () if node is None else node.directory_ids
    own = ReplicaState(
        node_id=context.node_id,
        directory_id=directories[0] if directories else UNBOUND,
        log_end_offset=image.version + 1,
        last_fetch_ms=now_ms,
        last_caught_up_ms=now_ms,
    )
    return QuorumState(
        leader_id=context.node_id,
        term=0,
        high_watermark=image.version + 1,
        voters=(own,),
        observers=(),
    )


async def ask_leader(context: ServerContext, leader_id: NodeId) -> Any:
    """Return the response of another node; raise DlogError."""
    assert context.ask_node is not None
    topic = {"topic_name": TOPIC, "partitions": [{"partition_index": PARTITION}]}
    request = response_builder.build_request(ApiKey.DESCRIBE_QUORUM, NEWEST, {"topics": [topic]})
    return await context.ask_node(leader_id, request)


def _described(context: ServerContext, found: QuorumState) -> Fields:
    # Raft counts on the monotonic clock, the protocol on the wall clock.
    wall_ms = context.clock.timestamp_ms() - context.clock.now_ms()
    partition = {
        "partition_index": PARTITION,
        **error_fields(None),
        "leader_id": found.leader_id,
        "leader_epoch": found.term,
        "high_watermark": found.high_watermark,
        "current_voters": [_replica(each, wall_ms) for each in found.voters],
        "observers": [_replica(each, wall_ms) for each in found.observers],
    }
    nodes: list[Fields] = [
        {
            "node_id": each.node_id,
            "listeners": [{"name": LISTENER, "host": each.host, "port": each.port}],
        }
        for each in found.voters
        if each.host
    ]
    return _answer(partition, nodes)


def _replica(each: ReplicaState, wall_ms: int) -> Fields:
    return {
        "replica_id": each.node_id,
        "replica_directory_id": each.directory_id,
        "log_end_offset": each.log_end_offset,
        "last_fetch_timestamp": each.last_fetch_ms + wall_ms if each.last_fetch_ms >= 0 else -1,
        "last_caught_up_timestamp": (
            each.last_caught_up_ms + wall_ms if each.last_caught_up_ms >= 0 else -1
        ),
    }


def _answer(partition: Fields, nodes: list[Fields]) -> Fields:
    return {
        **error_fields(None),
        "topics": [{"topic_name": TOPIC, "partitions": [partition]}],
        "nodes": nodes,
    }


def _failed_partition(error: WireError, index: int, leader_id: int, term: int) -> Fields:
    return {
        "partition_index": index,
        **error_fields(error),
        "leader_id": leader_id,
        "leader_epoch": term,
        "high_watermark": -1,
        "current_voters": (),
        "observers": (),
    }


def _not_led(found: QuorumState, reason: str) -> Fields:
    leader_id = NO_NODE if found.leader_id is None else found.leader_id
    error = NotLeaderOrFollowerError(f"Only the leader of the metadata knows: {reason}")
    return _answer(_failed_partition(error, PARTITION, leader_id, found.term), [])


async def _unknown(context: ServerContext, request: Request) -> Fields:
    error = UnknownTopicOrPartitionError(f"There is only {TOPIC}-{PARTITION} to describe")
    topics = await context.turns.finish(_topics(request, error))
    return {**error_fields(None), "topics": topics, "nodes": ()}


def _topics(request: Request, error: WireError) -> Generator[None, None, list[Fields]]:
    """Return the error for each partition asked for; yields behind each of them."""
    topics: list[Fields] = []
    for topic in request.body.topics:
        partitions: list[Fields] = []
        for each in topic.partitions:
            partitions.append(_failed_partition(error, each.partition_index, NO_NODE, -1))
            yield
        topics.append({"topic_name": topic.topic_name, "partitions": partitions})
        yield
    return topics


def _fields(response: Any) -> Fields:
    """Return another node's response as fields, for every version."""
    (topic,) = response.topics
    (partition,) = topic.partitions
    described = {
        "partition_index": partition.partition_index,
        "error_code": int(partition.error_code),
        "error_message": partition.error_message,
        "leader_id": partition.leader_id,
        "leader_epoch": partition.leader_epoch,
        "high_watermark": partition.high_watermark,
        "current_voters": [_replica_fields(each) for each in partition.current_voters],
        "observers": [_replica_fields(each) for each in partition.observers],
    }
    nodes: list[Fields] = [
        {
            "node_id": node.node_id,
            "listeners": [
                {"name": each.name, "host": each.host, "port": each.port} for each in node.listeners
            ],
        }
        for node in response.nodes
    ]
    return _answer(described, nodes)


def _replica_fields(each: Any) -> Fields:
    return {
        "replica_id": each.replica_id,
        "replica_directory_id": each.replica_directory_id,
        "log_end_offset": each.log_end_offset,
        "last_fetch_timestamp": each.last_fetch_timestamp,
        "last_caught_up_timestamp": each.last_caught_up_timestamp,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error at the top and for each partition: older versions have no message."""
    return {**error_fields(error), "topics": at_once(_topics(request, error)), "nodes": ()}


HANDLER = Handler(answer, refuse)
