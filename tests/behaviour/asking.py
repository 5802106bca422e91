"""Requests about topics, replicas and leaders, and the error that each is refused with."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from dlog.client.admin import Admin, NewTopic
from dlog.client.admin_views import Election
from dlog.client.cluster.node import NodeClient
from dlog.errors import (
    ERRORS,
    BrokerIdNotRegisteredError,
    DlogError,
    ElectionNotNeededError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    NoReassignmentInProgressError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.wire.apis import ApiKey

KNOWN, DOTTED = "known", "with.dot"
Found = type[WireError] | None
Ask = Callable[[Admin], Awaitable[Found]]


def found(error: DlogError | None) -> Found:
    """Return the kind of an error."""
    assert error is None or isinstance(error, WireError), error
    return None if error is None else type(error)


def create(name: str = "new", **fields: Any) -> Ask:
    """Create one topic."""

    async def ask(admin: Admin) -> Found:
        (result,) = (await admin.create_topics([NewTopic(name=name, **fields)])).values()
        return found(result) if isinstance(result, WireError) else None

    return ask


def grow(count: int, assignments: Sequence[Sequence[int]] | None = None, topic: str = KNOWN) -> Ask:
    """Add partitions."""

    async def ask(admin: Admin) -> Found:
        try:
            await admin.create_partitions(topic, count, assignments=assignments)
        except WireError as error:
            return found(error)
        return None

    return ask


def reassign(partition: int, nodes: Sequence[int] | None, topic: str = KNOWN) -> Ask:
    """Move the replicas of one partition, or cancel that."""

    async def ask(admin: Admin) -> Found:
        ((_, error),) = (await admin.alter_reassignments({(topic, partition): nodes})).items()
        return found(error)

    return ask


def elect(partition: int, topic: str = KNOWN, election: Election = Election.PREFERRED) -> Ask:
    """Elect a leader of one partition."""

    async def ask(admin: Admin) -> Found:
        ((_, error),) = (await admin.elect_leaders([(topic, partition)], election)).items()
        return found(error)

    return ask


def unregister(node: int) -> Ask:
    """Forget a node."""

    async def ask(admin: Admin) -> Found:
        try:
            await admin.remove_node(node)
        except WireError as error:
            return found(error)
        return None

    return ask


async def send(admin: Admin, node_id: int, api: ApiKey, build: Callable[[Any], Any]) -> Any:
    """Ask one node."""

    async def operation(node: NodeClient) -> Any:
        return await node.call(api, build)

    return await admin._cluster.run(lambda: admin._cluster.node(node_id), operation)


def raw(api: ApiKey, build: Callable[[Any], Any], code_of: Callable[[Any], int]) -> Ask:
    """Send what the library would not; every node must answer the same."""

    async def ask(admin: Admin) -> Found:
        codes = set()
        for node_id in (await admin.describe_cluster()).nodes:
            response = await send(admin, node_id, api, build)
            codes.add(int(code_of(response)))
        (code,) = codes
        return None if code == 0 else ERRORS[code]

    return ask


def topics(
    *wanted: tuple[str, Sequence[tuple[int, Sequence[int]]]], timeout_ms: int = 10_000
) -> Ask:
    """Create topics with whatever assignments."""

    def build(module: Any) -> Any:
        return module.CreateTopicsRequest(
            topics=tuple(
                module.CreatableTopic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=tuple(
                        module.CreatableReplicaAssignment(
                            partition_index=index, broker_ids=tuple(nodes)
                        )
                        for index, nodes in assignments
                    ),
                    configs=(),
                )
                for name, assignments in wanted
            ),
            timeout=timedelta(milliseconds=timeout_ms),
            validate_only=False,
        )

    return raw(ApiKey.CREATE_TOPICS, build, lambda response: response.topics[0].error_code)


def election_of_type(number: int) -> Ask:
    """Ask for an election that there is not."""

    def build(module: Any) -> Any:
        partitions = module.TopicPartitions(topic=KNOWN, partitions=(0,))
        return module.ElectLeadersRequest(
            election_type=number, topic_partitions=(partitions,), timeout=timedelta(seconds=10)
        )

    return raw(ApiKey.ELECT_LEADERS, build, lambda response: response.error_code)


BAD: dict[str, tuple[Ask, Found]] = {
    "factor 0": (create(partitions=1, replication_factor=0), InvalidReplicationFactorError),
    "factor -2": (create(partitions=1, replication_factor=-2), InvalidReplicationFactorError),
    "factor above nodes": (
        create(partitions=1, replication_factor=4),
        InvalidReplicationFactorError,
    ),
    "no partition": (create(partitions=0, replication_factor=1), InvalidPartitionsError),
    "partitions -2": (create(partitions=-2, replication_factor=1), InvalidPartitionsError),
    "factor before partitions": (
        create(partitions=0, replication_factor=0),
        InvalidReplicationFactorError,
    ),
    "unknown node": (create(assignments=[(1, 9)]), InvalidReplicaAssignmentError),
    "negative node": (create(assignments=[(1, -1)]), InvalidReplicaAssignmentError),
    "node twice": (create(assignments=[(1, 1)]), InvalidReplicaAssignmentError),
    "uneven": (create(assignments=[(1, 2), (1,)]), InvalidReplicaAssignmentError),
    "no node": (create(assignments=[()]), InvalidReplicaAssignmentError),
    "hole": (topics(("new", [(0, [1]), (2, [1])])), InvalidReplicaAssignmentError),
    "partition twice": (topics(("new", [(0, [1]), (0, [2])])), InvalidReplicaAssignmentError),
    "assignment and partitions": (create(assignments=[(1, 2)], partitions=1), InvalidRequestError),
    "assignment and factor": (
        create(assignments=[(1, 2)], replication_factor=2),
        InvalidRequestError,
    ),
    "existing": (create(KNOWN, partitions=1), TopicAlreadyExistsError),
    "existing before partitions": (create(KNOWN, partitions=0), TopicAlreadyExistsError),
    "bad name": (create("a b", partitions=1), InvalidTopicError),
    "name before partitions": (create("a b", partitions=0), InvalidTopicError),
    "colliding name": (create("with_dot", partitions=1), InvalidTopicError),
    "unknown config": (create(partitions=1, configs={"no.such": "1"}), InvalidConfigError),
    "config no number": (create(partitions=1, configs={"retention.ms": "x"}), InvalidConfigError),
    "min isr 0": (create(partitions=1, configs={"min.insync.replicas": "0"}), InvalidConfigError),
    "config before factor": (
        create(partitions=1, replication_factor=4, configs={"no.such": "1"}),
        InvalidConfigError,
    ),
    "topic twice": (topics(("new", ()), ("new", ())), InvalidRequestError),
    "time-out 0": (topics(("new", ()), timeout_ms=0), RequestTimedOutError),
    "time-out -1": (topics(("new", ()), timeout_ms=-1), RequestTimedOutError),
    "fewer partitions": (grow(1), InvalidPartitionsError),
    "as many partitions": (grow(2), InvalidPartitionsError),
    "partitions -1": (grow(-1), InvalidPartitionsError),
    "more of an unknown topic": (grow(3, topic="gone"), UnknownTopicOrPartitionError),
    "more with too few nodes": (grow(3, [(1, 2)]), InvalidReplicaAssignmentError),
    "more with an unknown node": (grow(3, [(1, 2, 9)]), InvalidReplicaAssignmentError),
    "more with a node twice": (grow(3, [(1, 1, 2)]), InvalidReplicaAssignmentError),
    "more with no assignment": (grow(3, []), InvalidReplicaAssignmentError),
    "more with two assignments": (grow(3, [(1, 2, 3)] * 2), InvalidReplicaAssignmentError),
    "move an unknown topic": (reassign(0, [1], topic="gone"), UnknownTopicOrPartitionError),
    "move an unknown partition": (reassign(9, [1]), UnknownTopicOrPartitionError),
    "move partition -1": (reassign(-1, [1]), UnknownTopicOrPartitionError),
    "move to nobody": (reassign(0, []), InvalidReplicaAssignmentError),
    "move to an unknown node": (reassign(0, [1, 9]), InvalidReplicaAssignmentError),
    "move to a node twice": (reassign(0, [1, 1]), InvalidReplicaAssignmentError),
    "move to a negative node": (reassign(0, [-5]), InvalidReplicaAssignmentError),
    "move nowhere": (reassign(0, [1, 2, 3]), None),
    "cancel nothing": (reassign(0, None), NoReassignmentInProgressError),
    "cancel an unknown topic": (reassign(0, None, topic="gone"), UnknownTopicOrPartitionError),
    "elect in an unknown topic": (elect(0, topic="gone"), UnknownTopicOrPartitionError),
    "elect an unknown partition": (elect(9), UnknownTopicOrPartitionError),
    "elect partition -1": (elect(-1), UnknownTopicOrPartitionError),
    "elect again": (elect(1), ElectionNotNeededError),
    "unclean with a leader": (elect(1, election=Election.UNCLEAN), ElectionNotNeededError),
    "election of type 7": (election_of_type(7), InvalidRequestError),
    "election of type -1": (election_of_type(-1), InvalidRequestError),
    "forget an unknown node": (unregister(9), BrokerIdNotRegisteredError),
    "forget node -1": (unregister(-1), BrokerIdNotRegisteredError),
}
