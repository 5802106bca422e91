"""Steps of the machine for elections and assignments of partitions.

Pure. Each step returns the next image and a value, or raises the WireError of its refusal;
`dlogd.metadata.machine.apply` calls them. The order of checks is Kafka's
(`ReplicationControlManager`).
"""

from dlog.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import TopicPartition
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    Assignment,
    ElectionKind,
    ElectLeaders,
    Reassignment,
)
from dlogd.metadata.machine.election import (
    Change,
    Rules,
    can_lead,
    candidates,
    preferred_leader,
    rules_of,
)
from dlogd.metadata.machine.image_changes import Changes, Step, partition_of, topic_of
from dlogd.metadata.state.image import ClusterImage, PartitionImage, TopicImage
from dlogd.metadata.state.limits import REPLICAS_MAX


def elect_leaders(image: ClusterImage, command: ElectLeaders) -> Step:
    """Elect where that is possible and needed; the value is how many leaders are new."""
    kind = command.election
    changes = Changes(image)
    count = 0
    for topic_id, numbers in command.partitions:
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            continue
        if kind is ElectionKind.UNCLEAN_IF_ALLOWED and not rules_of(image, topic).unclean_allowed:
            continue
        for number in dict.fromkeys(numbers):
            old = topic.partition(number)
            if old is not None and (kind is ElectionKind.PREFERRED or not old.has_leader):
                preferred = kind is ElectionKind.PREFERRED
                change = Change(preferred=preferred, unclean=not preferred)
                count += changes.add(topic, number, change).leader != old.leader
    return changes.done(), count


def why_no_election(
    image: ClusterImage, topic: TopicImage, number: int, kind: ElectionKind
) -> WireError | None:
    """Return why an election of one partition changes nothing, None when it elects a leader.

    For the handler of ElectLeaders, which must answer for each partition with Kafka's codes.
    """
    partition = topic.partition(number)
    if partition is None:
        return UnknownTopicOrPartitionError(f"There is no partition {topic.name}-{number}")
    if kind is ElectionKind.PREFERRED:
        if preferred_leader(image.nodes, partition) is not None:
            return None
        if partition.leader == partition.replicas[0]:
            return ElectionNotNeededError("The preferred replica leads already")
        return PreferredLeaderNotAvailableError(_why_not_preferred(image, partition))
    if partition.has_leader:
        return ElectionNotNeededError("The partition has a leader")
    if not candidates(image.nodes, partition.replicas, partition.offline):
        return EligibleLeadersNotAvailableError("No replica of the partition is active")
    return None


def _why_not_preferred(image: ClusterImage, partition: PartitionImage) -> str:
    """Say what keeps the first replica from leading, and how that ends."""
    first = partition.replicas[0]
    if not can_lead(image.nodes, partition.offline, first):
        return f"Node {first}, which should lead, is not active, or the replica's disk has failed"
    if first not in partition.isr:
        return f"Node {first}, which should lead, is not in sync"
    return f"Node {first}, which should lead, is drained: it leads again when it is no longer"


def alter_assignments(image: ClusterImage, command: AlterAssignments) -> Step:
    """Begin or cancel reassignments; the value is how many partitions changed."""
    changes = Changes(image)
    seen: set[tuple[object, int]] = set()
    for each in command.reassignments:
        topic = topic_of(image, each.topic_id)
        partition = partition_of(topic, each.partition)
        if (each.topic_id, each.partition) in seen:
            raise InvalidRequestError(f"{topic.topic_partition(each.partition)} is there twice")
        seen.add((each.topic_id, each.partition))
        changes.add(topic, each.partition, _reassigned(image, topic, partition, each))
    return changes.done(), changes.count


def _why_it_is_kept(where: TopicPartition, partition: PartitionImage) -> str:
    if partition.isr or partition.elr:
        return f"No replica of {where} that is in sync would be left"
    return (
        f"Node {partition.last_leader} led {where} last, and its replica, which was being added,"
        " has the newest records: bring it back, or elect another one by an unclean election first"
    )


def _reassigned(
    image: ClusterImage, topic: TopicImage, partition: PartitionImage, wanted: Reassignment
) -> Change:
    """Return the change that makes for the wanted replicas, or raise."""
    where = topic.topic_partition(wanted.partition)
    settled = tuple(n for n in partition.replicas if n not in partition.adding)
    if wanted.replicas is None:
        if not partition.adding and not partition.removing:
            raise NoReassignmentInProgressError(f"{where} is not being reassigned")
        target = settled
    else:
        target = wanted.replicas
        _check_replicas(image, target)
    adding = tuple(n for n in target if n not in settled)
    removing = tuple(n for n in settled if n not in target)
    replicas = target + removing
    if partition.holders and not any(n in replicas for n in partition.holders):
        raise InvalidReplicaAssignmentError(_why_it_is_kept(where, partition))
    _check_copies(rules_of(image, topic), where, partition, replicas, len(target))
    return Change(
        replicas=replicas,
        adding=adding,
        removing=removing,
        offline=tuple(n for n in replicas if n in partition.offline),
    )


def _check_copies(
    rules: Rules, where: TopicPartition, partition: PartitionImage, replicas: Assignment, count: int
) -> None:
    """Raise when members of the ISR would go before enough of the `count` that stay are in it."""
    if rules.may_let_go(partition, replicas, count):
        return
    going = [n for n in partition.isr if n not in replicas]
    raise InvalidReplicaAssignmentError(
        f"Only {len(partition.isr) - len(going)} of the {rules.enough_of(count)} replicas that"
        f" min.insync.replicas asks for would be in sync of {where} without {going}: what was"
        " acknowledged would be on too few disks. Wait until more of those that stay are in sync,"
        f" or keep {going} among the replicas until then"
    )


def _check_replicas(image: ClusterImage, replicas: Assignment) -> None:
    if not 1 <= len(replicas) <= REPLICAS_MAX:
        raise InvalidReplicaAssignmentError(f"{len(replicas)} replicas: wanted 1 to {REPLICAS_MAX}")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignmentError(f"{list(replicas)} names a node twice")
    for node_id in replicas:
        if node_id not in image.nodes:
            raise InvalidReplicaAssignmentError(f"Node {node_id} is not registered")
