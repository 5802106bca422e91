"""Steps of the machine for nodes.

Pure. Each step returns the next image and a value, or raises the WireError of its refusal;
`dlogd.metadata.machine.apply` calls them.
"""

from collections.abc import Collection
from dataclasses import replace

from dlog.errors import (
    BrokerIdNotRegisteredError,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import (
    DrainNode,
    FenceNodes,
    PartitionSet,
    Proof,
    RegisterNode,
    RemoveNode,
    ReportReplicas,
    ShutDownNode,
    UnfenceNode,
)
from dlogd.metadata.machine import maintenance
from dlogd.metadata.machine.election import (
    FLUSH_POLICY,
    NO_CHANGE,
    Change,
    next_leader_epoch,
    next_partition_epoch,
)
from dlogd.metadata.machine.image_changes import (
    Changes,
    Step,
    with_node,
    with_topics,
    without_nodes,
)
from dlogd.metadata.state.image import (
    ClusterImage,
    Drain,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)
from dlogd.metadata.state.limits import (
    CONFIGS_MAX,
    INT31_MAX,
    LEVEL_OLDEST,
    NODE_DIRECTORIES_MAX,
    NODE_TEXT_LENGTH_MAX,
)

_ALWAYS = "always"


def register_node(image: ClusterImage, command: RegisterNode) -> Step:
    """Begin a new life of a node."""
    _check_registration(image, command)
    if command.proof is None:
        return _register_at_level_1(image, command)
    level = _level_after(image, command)
    known = image.nodes.get(command.node_id)
    proved = _is_proved(image, command, known)
    registration = NodeRegistration(
        node_id=command.node_id,
        # The version of the image never comes twice, so neither does an epoch.
        node_epoch=image.version,
        directory_ids=command.directory_ids,
        addresses=command.addresses,
        rack=command.rack,
        version=command.version,
        fenced=True,
        returning=proved,
        drain=known.drain if known is not None else Drain.NONE,
        failed_directory_ids=command.failed_directory_ids,
        level_min=command.level_min,
        level_max=command.level_max,
    )
    changed = with_node(image, registration)
    changed = replace(changed.at_level(level), cluster_id=command.cluster_id)
    changes = Changes(changed)
    exceptions = _Exceptions(changed, command, is_first_level_2=image.feature_level < 2)
    for topic in changed.topics.values():
        for number, partition in enumerate(topic.partitions):
            if command.node_id in partition.replicas:
                changes.add(topic, number, exceptions.change(topic, number, partition, proved))
    return changes.done(), registration.node_epoch


def _level_after(image: ClusterImage, command: RegisterNode) -> int:
    """Return the cluster's feature level with this node; raise when the node cannot work at it."""
    if not LEVEL_OLDEST <= command.level_min <= command.level_max:
        raise InvalidRequestError(
            f"Feature levels {command.level_min} to {command.level_max} are no range"
        )
    # A cluster of level 1 is one node, which takes it to level 2 by itself.
    alone = all(node_id == command.node_id for node_id in image.nodes)
    if not image.cluster_id or (image.feature_level < 2 and alone):
        return max(image.feature_level, command.level_max)
    if not command.level_min <= image.feature_level <= command.level_max:
        raise UnsupportedVersionError(
            f"The cluster is at feature level {image.feature_level}, node {command.node_id} "
            f"knows {command.level_min} to {command.level_max}"
        )
    return image.feature_level


def _is_proved(image: ClusterImage, command: RegisterNode, known: NodeRegistration | None) -> bool:
    """Whether the replicas of the node hold what they promised, with the exceptions it names."""
    if known is None:
        return False
    if image.feature_level < 2:
        return True  # nobody else has the data, and its directories do not know an epoch yet
    accounted = {*command.directory_ids, *command.failed_directory_ids}
    return (
        command.proof != Proof.NONE
        and command.previous_epoch == known.node_epoch
        and accounted.issuperset(known.directory_ids)
    )


class _Exceptions:
    """Which replicas of a starting node may lack what they promised, although it has a proof."""

    def __init__(
        self, image: ClusterImage, command: RegisterNode, *, is_first_level_2: bool
    ) -> None:
        self._image = image
        self._node_id = command.node_id
        self._flushed_only = command.proof == Proof.FLUSHED and not is_first_level_2
        self._offline = _keys(command.offline)
        self._missing = _keys(command.missing)
        self._unproven = _keys(command.unproven)

    def change(
        self, topic: TopicImage, number: int, partition: PartitionImage, proved: bool
    ) -> Change:
        """Return what the start means for one partition."""
        node_id, key = self._node_id, (topic.topic_id, number)
        offline = without_nodes(partition.offline, (node_id,))
        if key in self._offline:
            offline = tuple(n for n in partition.replicas if n in offline or n == node_id)
        lost = (
            not proved
            or key in self._unproven
            or key in self._offline
            or (self._flushed_only and not self._flushes_always(topic))
        )
        return Change(
            offline=offline,
            lost=node_id if lost else NO_NODE,
            missing=node_id if key in self._missing else NO_NODE,
        )

    def _flushes_always(self, topic: TopicImage) -> bool:
        """Whether the policy is `always`, as far as the image says; what it does not say counts.

        The node knows its own default, and names what it does not hold for in `unproven`.
        """
        for configs in (topic.configs, self._image.configs):
            word = configs.get(FLUSH_POLICY)
            if word is not None:
                return word.strip().lower() == _ALWAYS
        return True


def _keys(partitions: PartitionSet) -> Collection[tuple[object, int]]:
    return {(topic_id, number) for topic_id, numbers in partitions for number in numbers}


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
    if (
        max(map(len, texts)) > NODE_TEXT_LENGTH_MAX
        or len(command.addresses) > CONFIGS_MAX
        or len(command.failed_directory_ids) > NODE_DIRECTORIES_MAX
    ):
        raise InvalidRequestError("The registration is too large")


def _register_at_level_1(image: ClusterImage, command: RegisterNode) -> Step:
    """Register as version 1 of the command does: unfenced, with the leaderships that it had."""
    if image.feature_level > LEVEL_OLDEST:
        raise UnsupportedVersionError(
            f"The cluster is at feature level {image.feature_level}: register with a proof"
        )
    registration = NodeRegistration(
        node_id=command.node_id,
        node_epoch=image.version,
        directory_ids=command.directory_ids,
        addresses=command.addresses,
        rack=command.rack,
        version=command.version,
        fenced=False,
    )
    changed = replace(with_node(image, registration), cluster_id=command.cluster_id)
    topics = [
        led
        for topic in image.topics.values()
        if (led := _lead_on_start(topic, command.node_id)) is not topic
    ]
    return with_topics(changed, topics), registration.node_epoch


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
        leader_epoch=next_leader_epoch(partition),
        partition_epoch=next_partition_epoch(partition),
    )


def node_of(image: ClusterImage, node_id: NodeId, node_epoch: int) -> NodeRegistration:
    """Return a node in the life that is meant, or raise."""
    node = image.nodes.get(node_id)
    if node is None:
        raise BrokerIdNotRegisteredError(f"Node {node_id} is not registered")
    if node.node_epoch != node_epoch:
        raise StaleBrokerEpochError(
            f"Node {node_id} has the epoch {node.node_epoch}, not {node_epoch}"
        )
    return node


def fence_nodes(image: ClusterImage, command: FenceNodes) -> Step:
    """Take nodes out of all ISRs at once; the value is how many partitions changed."""
    changed = image
    for node_id, node_epoch in command.nodes:
        node = node_of(image, node_id, node_epoch)
        changed = with_node(changed, replace(node, fenced=True, returning=False))
    return _leave_isrs(changed, {node_id for node_id, _ in command.nodes})


def _leave_isrs(image: ClusterImage, nodes: set[NodeId]) -> Step:
    def decide(_: TopicImage, __: int, partition: PartitionImage) -> Change | None:
        if nodes.isdisjoint(partition.isr):
            return None
        return Change(isr=without_nodes(partition.isr, nodes))

    changes = Changes(image)
    changes.add_all(image.topics.values(), decide)
    return changes.done(), changes.count


def unfence_node(image: ClusterImage, command: UnfenceNode) -> Step:
    """Let a node lead: what waits for a leader gets one (hole L2).

    A reassignment ends as well that waits for a new replica that can lead.
    """
    node = node_of(image, command.node_id, command.node_epoch)
    if node.shutting_down:
        raise InvalidRequestError(f"Node {node.node_id} is shutting down")
    if not node.fenced:
        return image, 0

    def decide(_: TopicImage, __: int, partition: PartitionImage) -> Change | None:
        waits = not partition.has_leader or partition.removing
        return NO_CHANGE if waits and node.node_id in partition.replicas else None

    changes = Changes(with_node(image, replace(node, fenced=False, returning=False)))
    changes.add_all(image.topics.values(), decide)
    return changes.done(), changes.count


def drain_node(image: ClusterImage, command: DrainNode) -> Step:
    """Note what an operator wants off a node; the planner moves it."""
    node = image.nodes.get(command.node_id)
    if node is None:
        raise BrokerIdNotRegisteredError(f"Node {command.node_id} is not registered")
    if command.drain != Drain.NONE:
        maintenance.expect_permitted(image, command.permit)
    return with_node(image, replace(node, drain=command.drain)), 0


def shut_down_node(image: ClusterImage, command: ShutDownNode) -> Step:
    """Move the leaders of a node and take it out of all ISRs, before it stops in order."""
    node = node_of(image, command.node_id, command.node_epoch)
    changed = with_node(image, replace(node, shutting_down=True))
    return _leave_isrs(changed, {node.node_id})


def remove_node(image: ClusterImage, command: RemoveNode) -> Step:
    """Forget a node that is down and holds nothing."""
    node = node_of(image, command.node_id, command.node_epoch)
    maintenance.expect_permitted(image, command.permit)
    if not node.fenced:
        raise InvalidRequestError(f"Node {node.node_id} is running: stop it first")
    held = [
        topic.topic_partition(number)
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if node.node_id in partition.replicas
    ]
    if held:
        raise InvalidRequestError(
            f"Node {node.node_id} has {len(held)} replica(s), of {held[0]} for one: "
            "drain it or reassign them first"
        )
    nodes = {node_id: each for node_id, each in image.nodes.items() if node_id != node.node_id}
    return replace(image, nodes=nodes), 0


def report_replicas(image: ClusterImage, command: ReportReplicas) -> Step:
    """Take failed replicas of a node out of service; the value is how many partitions changed."""
    node = node_of(image, command.node_id, command.node_epoch)
    node_id = node.node_id
    failed = dict.fromkeys((*node.failed_directory_ids, *command.failed_directory_ids))
    if len(failed) > NODE_DIRECTORIES_MAX:
        raise InvalidRequestError(f"{len(failed)} failed directories are too many")
    changes = Changes(with_node(image, replace(node, failed_directory_ids=tuple(failed))))

    def fail(_: TopicImage, __: int, partition: PartitionImage) -> Change | None:
        if node_id not in partition.replicas:
            return None
        offline = tuple(n for n in partition.replicas if n in partition.offline or n == node_id)
        return Change(offline=offline, lost=node_id)

    def repair(_: TopicImage, __: int, partition: PartitionImage) -> Change | None:
        if node_id not in partition.offline:
            return None
        return Change(offline=without_nodes(partition.offline, (node_id,)))

    changes.add_set(command.offline, fail)
    changes.add_set(command.online, repair)
    return changes.done(), changes.count
