"""Creation of topics and partitions: a client's wish into commands.

Pure. Checks come in Kafka's order and with its error codes (`ReplicationControlManager`), so that
tools react as they are used to; what can change until the command is applied, the machine checks
again. Called by CreateTopics, CreatePartitions and the automatic creation of Metadata.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    WireError,
)
from dlog.types import NodeId
from dlogd.metadata.commands.codec import (
    Assignment,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    NewTopic,
)
from dlogd.metadata.machine import placement
from dlogd.metadata.machine.apply import TOPIC_PARTITIONS_MAX
from dlogd.metadata.machine.placement import Loads
from dlogd.metadata.state import topic_configs, topic_names
from dlogd.metadata.state.image import ClusterImage, NodeRegistration, TopicImage
from dlogd.server.context import ServerContext
from dlogd.server.handlers import quorum

DEFAULT = -1
"""A number of partitions or replicas that the node's configuration gives."""

BURST_COUNT = 50
"""Topics planned before others get their turn: trying one out costs the machine 0.5 ms."""
COMMAND_REPLICAS_MAX = 50_000
"""Of the topics that one command creates together: some 0.5 MiB, and 0.1 s of the machine."""
REQUEST_PARTITIONS_MAX = 10_000
"""That one request may ask to be placed: they are placed at once, and nothing else goes on for
0.15 s. Kafka's bound, too (MAX_PARTITIONS_PER_BATCH)."""
LEVEL_TOGETHER = 2
"""The feature level from which one command may create many topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTopic:
    """What a client asks for."""

    name: str
    partition_count: int = DEFAULT
    replication_factor: int = DEFAULT
    # Replicas by partition, where the client places them itself; pairs, as it may repeat itself.
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = field(default_factory=tuple)


class Room:
    """How many partitions may still be placed for one request."""

    def __init__(self, left: int = REQUEST_PARTITIONS_MAX) -> None:
        self._left = left

    def take(self, count: int) -> None:
        """Raise PolicyViolationError when there is no room for so many."""
        if count > self._left:
            raise PolicyViolationError(
                f"Excessively large number of partitions per request: at most"
                f" {REQUEST_PARTITIONS_MAX} are placed"
            )
        self._left -= count


class Planner:
    """Plans the new topics of one request: each is placed as if those before it were there."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._image = context.image()
        self._loads = context.loads()
        self._room = Room()
        self._unified: dict[str, str] = {}

    def plan(self, topic: WantedTopic) -> NewTopic:
        """Return what the topic shall be; raise WireError when it cannot be."""
        image = self._image
        topic_names.validate(topic.name)
        if topic.name == quorum.TOPIC:
            raise TopicAuthorizationFailedError(f"No client may create a topic '{topic.name}'")
        if topic.name in image.topics:
            raise TopicAlreadyExistsError(f"Topic '{topic.name}' already exists.")
        alike = topic_names.unified(topic.name)
        other = image.unified_names.get(alike) or self._unified.get(alike)
        if other is not None:
            raise InvalidTopicError(f"Topic '{topic.name}' collides with existing topic: {other}")
        configs = checked_configs(topic.configs)
        planned = NewTopic(
            name=topic.name,
            topic_id=self._context.new_id(),
            assignments=_assignments(self._context, image, topic, self._loads, self._room),
            configs=configs,
        )
        self._context.turns.spend(len(planned.assignments))
        if topic_names.can_collide(topic.name):
            self._unified[alike] = topic.name
        return planned

    def commands(self, topics: Sequence[NewTopic]) -> list[CreateTopics | CreateTopic]:
        """Return as few commands as possible that create some topics, each all or none."""
        if self._image.feature_level < LEVEL_TOGETHER:
            return [alone(self._context, topic) for topic in topics]
        groups: list[list[NewTopic]] = []
        room = 0
        for topic in topics:
            size = 10 + len(topic.assignments) * len(topic.assignments[0])
            if room < size:
                groups.append([])
                room = COMMAND_REPLICAS_MAX
            groups[-1].append(topic)
            room -= size
        return [
            CreateTopics(command_id=self._context.new_id(), topics=tuple(group)) for group in groups
        ]


def alone(context: ServerContext, topic: NewTopic) -> CreateTopic:
    """Return the command that creates one topic."""
    return CreateTopic(
        command_id=context.new_id(),
        name=topic.name,
        topic_id=topic.topic_id,
        assignments=topic.assignments,
        configs=topic.configs,
    )


async def create(
    context: ServerContext, planner: Planner, topics: Sequence[NewTopic], deadline_ms: int
) -> dict[str, WireError]:
    """Create topics, in one round where possible; return what was refused, by name."""
    failed: dict[str, WireError] = {}
    for command in planner.commands(topics):
        members = command.topics if isinstance(command, CreateTopics) else (command,)
        try:
            await context.propose(command, deadline_ms)
        except RequestTimedOutError as error:
            failed.update((topic.name, error) for topic in members)
        except WireError as error:
            if len(members) == 1:
                failed[members[0].name] = error
                continue
            # One of them cannot be made any more: somebody else was faster.
            for topic in command.topics if isinstance(command, CreateTopics) else ():
                try:
                    await context.propose(alone(context, topic), deadline_ms)
                except WireError as refused:
                    failed[topic.name] = refused
    return failed


def checked_configs(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return the configs of a new topic; raise InvalidConfigError for what none can have."""
    nulls = [name for name, value in configs if value is None]
    if nulls:
        raise InvalidConfigError(f"Null value not supported for topic configs: {','.join(nulls)}")
    given = {name: value.strip() for name, value in configs if value is not None}
    topic_configs.validate_topic(given)
    return given


def _assignments(
    context: ServerContext, image: ClusterImage, topic: WantedTopic, loads: Loads, room: Room
) -> tuple[Assignment, ...]:
    if topic.assignments:
        return _manual(image, topic)
    if topic.replication_factor < DEFAULT or topic.replication_factor == 0:
        raise InvalidReplicationFactorError(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if topic.partition_count < DEFAULT or topic.partition_count == 0:
        raise InvalidPartitionsError(
            "Number of partitions was set to an invalid non-positive value."
        )
    defaults = context.config.topic
    partition_count = topic.partition_count
    if partition_count == DEFAULT:
        partition_count = defaults.partitions_default
    replication_factor = topic.replication_factor
    if replication_factor == DEFAULT:
        replication_factor = defaults.replication_default
    return placed(image, partition_count, replication_factor, loads, room, existing=0)


def placed(
    image: ClusterImage,
    partition_count: int,
    replication_factor: int,
    loads: Loads,
    room: Room,
    *,
    existing: int,
) -> tuple[Assignment, ...]:
    """Place new partitions on nodes; raise WireError when there are too few, or too many wanted."""
    if existing + partition_count > TOPIC_PARTITIONS_MAX:
        raise PolicyViolationError(f"A topic has at most {TOPIC_PARTITIONS_MAX} partitions")
    room.take(partition_count)
    try:
        return placement.place(image, partition_count, replication_factor, loads)
    except (InvalidReplicationFactorError, BrokerNotAvailableError) as error:
        raise InvalidReplicationFactorError(
            f"Unable to replicate the partition {replication_factor} time(s): {error}"
        ) from error


def _manual(image: ClusterImage, topic: WantedTopic) -> tuple[Assignment, ...]:
    if topic.replication_factor != DEFAULT:
        raise InvalidRequestError(
            "A manual partition assignment was specified, but replication factor was not set to -1."
        )
    if topic.partition_count != DEFAULT:
        raise InvalidRequestError(
            "A manual partition assignment was specified, but numPartitions was not set to -1."
        )
    by_index: dict[int, Assignment] = {}
    replication_factor: int | None = None
    for index, replicas in topic.assignments:
        if index in by_index:
            raise InvalidReplicaAssignmentError(
                f"Found multiple manual partition assignments for partition {index}"
            )
        by_index[index] = manual_assignment(image, index, replicas, replication_factor)
        replication_factor = len(replicas)
    if sorted(by_index) != list(range(len(by_index))):
        raise InvalidReplicaAssignmentError(
            "partitions should be a consecutive 0-based integer sequence"
        )
    return tuple(by_index[index] for index in range(len(by_index)))


def manual_assignment(
    image: ClusterImage, index: int, replicas: Sequence[int], replication_factor: int | None
) -> Assignment:
    """Return the replicas that a client chose for one new partition; raise when they cannot be."""
    nodes = chosen_nodes(image, replicas, replication_factor)
    if all(not node.active for node in nodes):
        raise InvalidReplicaAssignmentError(
            "All brokers specified in the manual partition assignment for"
            f" partition {index} are fenced or in controlled shutdown."
        )
    return tuple(node.node_id for node in nodes)


def chosen_nodes(
    image: ClusterImage, replicas: Sequence[int], replication_factor: int | None
) -> list[NodeRegistration]:
    """Return the nodes that a client names for a partition; raise when they cannot hold it."""
    head = "The manual partition assignment includes"
    if not replicas:
        raise InvalidReplicaAssignmentError(f"{head} an empty replica list.")
    previous = None
    for node_id in sorted(replicas):
        if node_id not in image.nodes:
            raise InvalidReplicaAssignmentError(
                f"{head} broker {node_id}, but no such broker is registered."
            )
        if node_id == previous:
            raise InvalidReplicaAssignmentError(f"{head} the broker {node_id} more than once.")
        previous = node_id
    if replication_factor is not None and len(replicas) != replication_factor:
        raise InvalidReplicaAssignmentError(
            f"{head} a partition with {len(replicas)} replica(s), but this is not consistent with"
            f" previous partitions, which have {replication_factor} replica(s)."
        )
    return [image.nodes[NodeId(node_id)] for node_id in replicas]


def plan_growth(
    context: ServerContext,
    topic: TopicImage,
    partition_count: int,
    assignments: Sequence[Sequence[int]] | None,
    room: Room,
) -> CreatePartitions:
    """Return the command that adds partitions to a topic; raise WireError when it cannot be."""
    image = context.image()
    existing = len(topic.partitions)
    if partition_count == existing:
        raise InvalidPartitionsError(f"Topic already has {existing} partition(s).")
    if partition_count < existing:
        raise InvalidPartitionsError(
            f"The topic {topic.name} currently has {existing} partition(s);"
            f" {partition_count} would not be an increase."
        )
    added = partition_count - existing
    first = topic.partitions[0]
    replication_factor = len(first.replicas) - len(first.removing)
    if assignments is None:
        loads = context.loads()
        chosen = placed(image, added, replication_factor, loads, room, existing=existing)
    elif len(assignments) != added:
        raise InvalidReplicaAssignmentError(
            f"Attempted to add {added} additional partition(s), but only"
            f" {len(assignments)} assignment(s) were specified."
        )
    else:
        chosen = tuple(
            manual_assignment(image, existing + number, replicas, replication_factor)
            for number, replicas in enumerate(assignments)
        )
    return CreatePartitions(
        command_id=context.new_id(),
        topic_id=topic.topic_id,
        partition_count=existing,
        assignments=chosen,
    )


def names_given_twice(names: Sequence[str | None]) -> Mapping[str, None]:
    """Return the names that occur more than once, in order of their first occurrence."""
    counts: dict[str, int] = {}
    for name in names:
        if name is not None:
            counts[name] = counts.get(name, 0) + 1
    return {name: None for name, count in counts.items() if count > 1}
