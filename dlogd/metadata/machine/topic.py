"""Steps of the machine for topics, configs and producer ids.

Pure. Each step returns the next image and a value, or raises the WireError of its refusal;
`dlogd.metadata.machine.apply` calls them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from dlog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
)
from dlog.types import ZERO_TOPIC_ID, LeaderEpoch, PartitionEpoch
from dlogd.metadata.commands.codec import (
    AllocateProducerIds,
    AlterConfigs,
    Assignment,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopic,
    DeleteTopics,
    NewTopic,
)
from dlogd.metadata.machine.election import MIN_ISR, NO_CHANGE, Change
from dlogd.metadata.machine.image_changes import Changes, Step, topic_of, with_topics
from dlogd.metadata.state import topic_names
from dlogd.metadata.state.image import ClusterImage, Drain, PartitionImage, TopicImage
from dlogd.metadata.state.limits import (
    CONFIG_VALUE_LENGTH_MAX,
    CONFIGS_MAX,
    EPOCH_FLOOR_MAX,
    INT63_MAX,
    LEVEL_EPOCH_FLOOR,
    PRODUCER_IDS_MAX,
    REPLICAS_MAX,
    TOPIC_PARTITIONS_MAX,
)
from dlogd.metadata.state.persistent_map import chunked

# Ids that the protocol gives a meaning of their own: none, and the metadata topic.
_RESERVED_TOPIC_IDS = (ZERO_TOPIC_ID, UUID(int=1))


def create_topic(image: ClusterImage, command: CreateTopic) -> Step:
    """Create one topic."""
    topic = _new_topic(image, command, {}, {})
    return _with_new_topics(image, [topic]), len(topic.partitions)


def create_topics(image: ClusterImage, command: CreateTopics) -> Step:
    """Create many topics, all or none."""
    if not command.topics:
        raise InvalidRequestError("There is no topic to create")
    made: dict[str, TopicImage] = {}
    unified: dict[str, str] = {}
    ids: set[UUID] = set()
    for wanted in command.topics:
        topic = _new_topic(image, wanted, made, unified)
        if topic.topic_id in ids:
            raise InvalidRequestError(f"Topic id {topic.topic_id} is there twice")
        ids.add(topic.topic_id)
        made[topic.name] = topic
        unified.setdefault(topic_names.unified(topic.name), topic.name)
    changed = _with_new_topics(image, list(made.values()))
    return changed, sum(len(topic.partitions) for topic in made.values())


def _new_topic(
    image: ClusterImage,
    wanted: CreateTopic | NewTopic,
    others: Mapping[str, TopicImage],
    unified: Mapping[str, str],
) -> TopicImage:
    """Return a topic; `others` are made by the same command, `unified` their unified names."""
    name = wanted.name
    topic_names.validate(name)
    if name in image.topics or name in others:
        raise TopicAlreadyExistsError(f"Topic '{name}' already exists")
    alike = topic_names.unified(name)
    other = image.unified_names.get(alike) or unified.get(alike)
    if other is not None:
        raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {other}")
    if wanted.topic_id in _RESERVED_TOPIC_IDS or wanted.topic_id in image.topics_by_id:
        raise InvalidRequestError(f"Topic id {wanted.topic_id} is taken")
    if not wanted.assignments:
        raise InvalidPartitionsError("A topic needs at least one partition")
    _check_config_sizes(wanted.configs)
    return TopicImage(
        name=name,
        topic_id=wanted.topic_id,
        partitions=_new_partitions(image, wanted.assignments, len(wanted.assignments[0]), 0),
        configs=dict(sorted(wanted.configs.items())),
    )


def _with_new_topics(image: ClusterImage, topics: list[TopicImage]) -> ClusterImage:
    changed = with_topics(image, topics)
    alike = [
        (topic_names.unified(topic.name), topic.name)
        for topic in topics
        if topic_names.can_collide(topic.name)
    ]
    if not alike:
        return changed
    return replace(changed, unified_names=chunked(image.unified_names).with_items(alike))


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
    isr = tuple(node_id for node_id in replicas if image.nodes[node_id].active)
    if not isr:
        raise InvalidReplicaAssignmentError(f"All nodes of partition {number} are fenced")
    leader = min(isr, key=lambda node_id: image.nodes[node_id].drain != Drain.NONE)
    return PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=leader,
        leader_epoch=LeaderEpoch(image.epoch_floor),
        partition_epoch=PartitionEpoch(0),
    )


def delete_topic(image: ClusterImage, command: DeleteTopic) -> Step:
    """Delete one life of a topic."""
    doomed = topic_of(image, command.topic_id)
    return _without(image, [doomed]), len(doomed.partitions)


def delete_topics(image: ClusterImage, command: DeleteTopics) -> Step:
    """Delete one life of each of many topics, all or none."""
    if not command.topic_ids:
        raise InvalidRequestError("There is no topic to delete")
    if len(set(command.topic_ids)) != len(command.topic_ids):
        raise InvalidRequestError("A topic id is there twice")
    doomed = [topic_of(image, topic_id) for topic_id in command.topic_ids]
    return _without(image, doomed), sum(len(topic.partitions) for topic in doomed)


def _without(image: ClusterImage, doomed: Sequence[TopicImage]) -> ClusterImage:
    changed = replace(
        image,
        topics=chunked(image.topics).without([topic.name for topic in doomed]),
        topics_by_id=chunked(image.topics_by_id).without([topic.topic_id for topic in doomed]),
        epoch_floor=_floor_above(image, doomed),
    )
    names = [topic.name for topic in doomed if topic_names.can_collide(topic.name)]
    if not names:
        return changed
    alike = [topic_names.unified(name) for name in names]
    return replace(changed, unified_names=chunked(image.unified_names).without(alike))


def _floor_above(image: ClusterImage, doomed: Sequence[TopicImage]) -> int:
    """Return the first leader epoch of later partitions.

    Clients pass over a leader whose epoch is below one that they know of the same name.
    """
    if image.feature_level < LEVEL_EPOCH_FLOOR:
        return image.epoch_floor
    newest = max(each.leader_epoch for topic in doomed for each in topic.partitions)
    return max(image.epoch_floor, min(newest + 1, EPOCH_FLOOR_MAX))


def create_partitions(image: ClusterImage, command: CreatePartitions) -> Step:
    """Add partitions to a topic."""
    topic = topic_of(image, command.topic_id)
    existing = len(topic.partitions)
    if existing != command.partition_count:
        raise InvalidPartitionsError(
            f"Topic '{topic.name}' has {existing} partition(s), not {command.partition_count}"
        )
    if not command.assignments:
        raise InvalidPartitionsError(f"Topic '{topic.name}' already has {existing} partition(s)")
    first = topic.partitions[0]
    replication_factor = len(first.replicas) - len(first.removing)
    added = _new_partitions(image, command.assignments, replication_factor, existing)
    grown = replace(topic, partitions=topic.partitions + added)
    return with_topics(image, [grown]), len(grown.partitions)


def alter_configs(image: ClusterImage, command: AlterConfigs) -> Step:
    """Change configs of a topic or of the cluster."""
    if command.topic_id is None:
        configs = _changed_configs(image.configs, command.changes)
        changed = replace(image, configs=configs)
        topics = list(image.topics.values())
        moved = configs.get(MIN_ISR) != image.configs.get(MIN_ISR)
    else:
        topic = topic_of(image, command.topic_id)
        configs = _changed_configs(topic.configs, command.changes)
        altered = replace(topic, configs=configs)
        changed = with_topics(image, [altered])
        topics = [altered]
        moved = configs.get(MIN_ISR) != topic.configs.get(MIN_ISR)
    return (_resettled(changed, topics) if moved else changed), 0


def _resettled(image: ClusterImage, topics: Iterable[TopicImage]) -> ClusterImage:
    """Look again at partitions whose state depends on how large an ISR must be.

    With a smaller one the watermark may move without the ELR, which is not safe to lead then.
    """

    def decide(_: TopicImage, __: int, partition: PartitionImage) -> Change | None:
        return NO_CHANGE if partition.elr or partition.adding or partition.removing else None

    changes = Changes(image)
    changes.add_all(topics, decide)
    return changes.done()


def _changed_configs(configs: Mapping[str, str], changes: Iterable[ConfigChange]) -> dict[str, str]:
    changed = dict(configs)
    touched: set[str] = set()
    for change in changes:
        if change.key in touched:
            raise InvalidRequestError(f"Config {change.key!r} is changed twice")
        touched.add(change.key)
        if change.compare and configs.get(change.key) != change.expected:
            raise InvalidRequestError(f"Config {change.key!r} was changed by another client")
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


def allocate_producer_ids(image: ClusterImage, command: AllocateProducerIds) -> Step:
    """Give a node producer ids that nobody else gets."""
    registration = image.nodes.get(command.node_id)
    if registration is None or registration.node_epoch != command.node_epoch:
        raise StaleBrokerEpochError(
            f"Node {command.node_id} has no life of epoch {command.node_epoch}"
        )
    if not 1 <= command.count <= PRODUCER_IDS_MAX:
        raise InvalidRequestError(f"{command.count} producer ids: wanted 1 to {PRODUCER_IDS_MAX}")
    first = image.producer_id_next
    if first + command.count > INT63_MAX:
        raise PolicyViolationError("No producer ids are left")
    return replace(image, producer_id_next=first + command.count), first
