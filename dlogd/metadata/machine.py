"""The replicated state machine: `apply(image, command bytes) -> (image, outcome)`.

Pure, deterministic and total: it never raises, for any bytes, and every node that applies the same
commands in the same order gets the same image (hole H13). Leaders and epochs are decided here and
nowhere else (H12). Conditions of a command (compare-and-set) are checked here, so that a proposer
may work from an old image. What depends on the version of the software, such as which config values
make sense, is not checked here but by `dlogd.metadata.admission` before a command is proposed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any
from uuid import UUID

from dlog.errors import (
    InconsistentClusterIdError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    WireError,
)
from dlog.types import ZERO_TOPIC_ID, LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata import topic_names
from dlogd.metadata.commands import (
    AllocateProducerIds,
    AlterConfigs,
    Assignment,
    Command,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    MalformedCommandError,
    RegisterNode,
    decode,
)
from dlogd.metadata.image import (
    OUTCOMES_REMEMBERED,
    Applied,
    ClusterImage,
    NodeRegistration,
    PartitionImage,
    Refused,
    TopicImage,
)

TOPIC_PARTITIONS_MAX = 100_000
REPLICAS_MAX = 32
CONFIGS_MAX = 200
CONFIG_VALUE_LENGTH_MAX = 8_192
MESSAGE_LENGTH_MAX = 500
NODE_TEXT_LENGTH_MAX = 255
PRODUCER_IDS_MAX = 1_000_000
INT31_MAX = (1 << 31) - 1
INT63_MAX = (1 << 63) - 1

# Ids that the protocol gives a meaning of their own: none, and the metadata topic.
_RESERVED_TOPIC_IDS = (ZERO_TOPIC_ID, UUID(int=1))

# What a command makes of an image: the next one, and a value for its outcome.
_Step = tuple[ClusterImage, int]


def apply(
    image: ClusterImage, data: bytes | bytearray | memoryview
) -> tuple[ClusterImage, Applied | Refused]:
    """Apply the bytes of one command; the version rises by one in any case.

    A command that was applied before (by its id) changes nothing and has its first outcome again.
    """
    stepped = replace(image, version=image.version + 1)
    try:
        command = decode(data)
    except MalformedCommandError as error:
        return stepped, _refusal(InvalidRequestError(f"Malformed command: {error}"))
    known = image.outcomes.get(command.command_id)
    if known is not None:
        return stepped, known
    outcome: Applied | Refused
    try:
        changed, value = _STEPS[type(command)](stepped, command)
    except WireError as error:
        changed, outcome = stepped, _refusal(error)
    else:
        outcome = Applied(version=stepped.version, value=value)
    return _remember(changed, command, outcome), outcome


def _refusal(error: WireError) -> Refused:
    return Refused(code=error.code, message=str(error)[:MESSAGE_LENGTH_MAX])


def _remember(image: ClusterImage, command: Command, outcome: Applied | Refused) -> ClusterImage:
    surplus = len(image.outcomes) + 1 - OUTCOMES_REMEMBERED
    kept = dict(islice(image.outcomes.items(), max(surplus, 0), None))
    kept[command.command_id] = outcome
    return replace(image, outcomes=kept)


def _register_node(image: ClusterImage, command: RegisterNode) -> _Step:
    _check_registration(image, command)
    registration = NodeRegistration(
        node_id=command.node_id,
        # The version of the image never comes twice, so neither does an epoch.
        node_epoch=image.version,
        directory_ids=command.directory_ids,
        addresses=command.addresses,
        rack=command.rack,
        version=command.version,
        fenced=False,
    )
    topics = {name: _lead_on_start(topic, command.node_id) for name, topic in image.topics.items()}
    changed = replace(
        image,
        cluster_id=command.cluster_id,
        nodes=_with_node(image.nodes, registration),
        topics=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
    )
    return changed, registration.node_epoch


def _check_registration(image: ClusterImage, command: RegisterNode) -> None:
    if not 0 <= command.node_id <= INT31_MAX:
        raise InvalidRequestError(f"Node id {command.node_id} is negative")
    if not command.cluster_id:
        raise InvalidRequestError("A registration must name its cluster")
    if image.cluster_id not in ("", command.cluster_id):
        raise InconsistentClusterIdError(
            f"Node {command.node_id} belongs to cluster {command.cluster_id!r}, "
            f"this is {image.cluster_id!r}"
        )
    if len(set(command.directory_ids)) != len(command.directory_ids):
        raise InvalidRequestError("Two data directories have the same id")
    texts = [command.cluster_id, command.rack or "", command.version]
    texts += [text for address in command.addresses for text in (address.listener, address.host)]
    if max(map(len, texts)) > NODE_TEXT_LENGTH_MAX or len(command.addresses) > CONFIGS_MAX:
        raise InvalidRequestError("The registration is too large")


def _with_node(
    nodes: Mapping[NodeId, NodeRegistration], registration: NodeRegistration
) -> dict[NodeId, NodeRegistration]:
    changed = {**nodes, registration.node_id: registration}
    return {node_id: changed[node_id] for node_id in sorted(changed)}


def _lead_on_start(topic: TopicImage, node_id: NodeId) -> TopicImage:
    """Raise the epoch of what the node leads; give it what has no leader and needs it (hole L2)."""
    partitions = tuple(_partition_on_start(each, node_id) for each in topic.partitions)
    if all(new is old for new, old in zip(partitions, topic.partitions, strict=True)):
        return topic
    return replace(topic, partitions=partitions)


def _partition_on_start(partition: PartitionImage, node_id: NodeId) -> PartitionImage:
    waits_for_it = not partition.has_leader and node_id in partition.isr
    if partition.leader != node_id and not waits_for_it:
        return partition
    return replace(
        partition,
        leader=node_id,
        leader_epoch=LeaderEpoch(min(partition.leader_epoch + 1, INT31_MAX)),
        partition_epoch=PartitionEpoch(min(partition.partition_epoch + 1, INT31_MAX)),
    )


def _create_topic(image: ClusterImage, command: CreateTopic) -> _Step:
    topic_names.validate(command.name)
    if command.name in image.topics:
        raise TopicAlreadyExistsError(f"Topic '{command.name}' already exists")
    other = topic_names.collision(command.name, image.topics)
    if other is not None:
        raise InvalidTopicError(f"Topic '{command.name}' collides with existing topic: {other}")
    if command.topic_id in _RESERVED_TOPIC_IDS or command.topic_id in image.topics_by_id:
        raise InvalidRequestError(f"Topic id {command.topic_id} is taken")
    if not command.assignments:
        raise InvalidPartitionsError("A topic needs at least one partition")
    _check_config_sizes(command.configs)
    topic = TopicImage(
        name=command.name,
        topic_id=command.topic_id,
        partitions=_new_partitions(image, command.assignments, len(command.assignments[0]), 0),
        configs=dict(sorted(command.configs.items())),
    )
    return _with_topic(image, topic), len(topic.partitions)


def _new_partitions(
    image: ClusterImage, assignments: tuple[Assignment, ...], replication_factor: int, existing: int
) -> tuple[PartitionImage, ...]:
    if existing + len(assignments) > TOPIC_PARTITIONS_MAX:
        raise PolicyViolationError(f"A topic has at most {TOPIC_PARTITIONS_MAX} partitions")
    return tuple(
        _new_partition(image, assignment, replication_factor, existing + number)
        for number, assignment in enumerate(assignments)
    )


def _new_partition(
    image: ClusterImage, replicas: Assignment, replication_factor: int, number: int
) -> PartitionImage:
    if not 1 <= len(replicas) <= REPLICAS_MAX:
        raise InvalidReplicaAssignmentError(
            f"Partition {number} has {len(replicas)} replicas: wanted 1 to {REPLICAS_MAX}"
        )
    if len(replicas) != replication_factor:
        raise InvalidReplicaAssignmentError(
            f"Partition {number} has {len(replicas)} replicas, the others {replication_factor}"
        )
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignmentError(f"Partition {number} lists a node twice")
    for node_id in replicas:
        if node_id not in image.nodes:
            raise InvalidReplicaAssignmentError(f"Node {node_id} is not registered")
    isr = tuple(node_id for node_id in replicas if not image.nodes[node_id].fenced)
    if not isr:
        raise InvalidReplicaAssignmentError(f"All nodes of partition {number} are fenced")
    return PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )


def _with_topic(image: ClusterImage, topic: TopicImage) -> ClusterImage:
    return replace(
        image,
        topics={**image.topics, topic.name: topic},
        topics_by_id={**image.topics_by_id, topic.topic_id: topic},
    )


def _topic_of(image: ClusterImage, topic_id: UUID) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicIdError(f"There is no topic with id {topic_id}")
    return topic


def _delete_topic(image: ClusterImage, command: DeleteTopic) -> _Step:
    doomed = _topic_of(image, command.topic_id)
    topics = {name: topic for name, topic in image.topics.items() if name != doomed.name}
    topics_by_id = {topic.topic_id: topic for topic in topics.values()}
    return replace(image, topics=topics, topics_by_id=topics_by_id), len(doomed.partitions)


def _create_partitions(image: ClusterImage, command: CreatePartitions) -> _Step:
    topic = _topic_of(image, command.topic_id)
    existing = len(topic.partitions)
    if existing != command.partition_count:
        raise InvalidPartitionsError(
            f"Topic '{topic.name}' has {existing} partition(s), not {command.partition_count}"
        )
    if not command.assignments:
        raise InvalidPartitionsError(f"Topic '{topic.name}' already has {existing} partition(s)")
    replication_factor = len(topic.partitions[0].replicas)
    added = _new_partitions(image, command.assignments, replication_factor, existing)
    grown = replace(topic, partitions=topic.partitions + added)
    return _with_topic(image, grown), len(grown.partitions)


def _alter_configs(image: ClusterImage, command: AlterConfigs) -> _Step:
    if command.topic_id is None:
        return replace(image, configs=_changed_configs(image.configs, command.changes)), 0
    topic = _topic_of(image, command.topic_id)
    changed = replace(topic, configs=_changed_configs(topic.configs, command.changes))
    return _with_topic(image, changed), 0


def _changed_configs(configs: Mapping[str, str], changes: Iterable[ConfigChange]) -> dict[str, str]:
    changed = dict(configs)
    touched: set[str] = set()
    for change in changes:
        if change.key in touched:
            raise InvalidRequestError(f"Config {change.key!r} is changed twice")
        touched.add(change.key)
        if change.compare and configs.get(change.key) != change.expected:
            raise InvalidRequestError(f"Config {change.key!r} was changed by somebody else")
        if change.value is None:
            changed.pop(change.key, None)
        else:
            changed[change.key] = change.value
    _check_config_sizes(changed)
    return dict(sorted(changed.items()))


def _check_config_sizes(configs: Mapping[str, str]) -> None:
    if len(configs) > CONFIGS_MAX:
        raise InvalidConfigError(f"{len(configs)} configs are more than {CONFIGS_MAX}")
    for key, value in configs.items():
        if not key or len(key) > topic_names.NAME_LENGTH_MAX:
            raise InvalidConfigError(f"Config name {key[:80]!r} is empty or too long")
        if len(value) > CONFIG_VALUE_LENGTH_MAX:
            raise InvalidConfigError(f"The value of config {key!r} is too long")


def _allocate_producer_ids(image: ClusterImage, command: AllocateProducerIds) -> _Step:
    registration = image.nodes.get(command.node_id)
    if registration is None or registration.node_epoch != command.node_epoch:
        raise StaleBrokerEpochError(
            f"Node {command.node_id} has no life of epoch {command.node_epoch}"
        )
    if not 1 <= command.count <= PRODUCER_IDS_MAX:
        raise InvalidRequestError(f"{command.count} producer ids: wanted 1 to {PRODUCER_IDS_MAX}")
    first = image.producer_id_next
    if first + command.count > INT63_MAX:
        raise PolicyViolationError("There are no producer ids left")
    return replace(image, producer_id_next=first + command.count), first


_STEPS: dict[type[Any], Callable[[ClusterImage, Any], _Step]] = {
    RegisterNode: _register_node,
    CreateTopic: _create_topic,
    DeleteTopic: _delete_topic,
    CreatePartitions: _create_partitions,
    AlterConfigs: _alter_configs,
    AllocateProducerIds: _allocate_producer_ids,
}
