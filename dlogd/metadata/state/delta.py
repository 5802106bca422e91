"""Differences of two images, for the parts of a node that react to changes.

Pure. A topic that was deleted and created anew under its name is a deletion and a creation: the two
lives are told apart by topic id (hole H19).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dlog.types import NodeId, PartitionId
from dlogd.metadata.state.image import ClusterImage, NodeRegistration, TopicImage
from dlogd.metadata.state.persistent_map import suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDelta:
    """A topic that is in both images and not the same."""

    old: TopicImage
    new: TopicImage
    partitions_created: tuple[PartitionId, ...]
    partitions_changed: tuple[PartitionId, ...]  # leader, ISR, replicas or epochs
    configs_changed: tuple[str, ...]  # keys set, changed or removed

    def __bool__(self) -> bool:
        return bool(self.partitions_created or self.partitions_changed or self.configs_changed)

    @property
    def unclean(self) -> tuple[PartitionId, ...]:
        """Partitions whose new leader was neither in sync nor eligible in the old image.

        Exact between two versions that follow each other: else it may have been let in meanwhile.
        """
        found = []
        for number in self.partitions_changed:
            old, new = self.old.partitions[number], self.new.partitions[number]
            # A leader may let in a replica that is being added, and leave in one step.
            let_in = old.adding if old.has_leader else ()
            lost = new.leader not in (*old.isr, *old.elr, *let_in)
            if new.has_leader and new.leader != old.leader and lost:
                found.append(number)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDelta:
    """Everything that differs; false when nothing does."""

    topics_deleted: tuple[TopicImage, ...]
    topics_created: tuple[TopicImage, ...]
    topics_changed: tuple[TopicDelta, ...]
    configs_changed: tuple[str, ...]  # cluster-wide keys
    nodes_removed: tuple[NodeRegistration, ...]
    nodes_added: tuple[NodeRegistration, ...]
    nodes_changed: tuple[NodeRegistration, ...]  # as they are now
    controller_changed: bool = False
    level_changed: bool = False
    maintenance_changed: bool = False
    unclean_elections: int = 0  # how many there were

    def __bool__(self) -> bool:
        return bool(
            self.topics_deleted
            or self.topics_created
            or self.topics_changed
            or self.configs_changed
            or self.nodes_removed
            or self.nodes_added
            or self.nodes_changed
            or self.controller_changed
            or self.level_changed
            or self.maintenance_changed
            or self.unclean_elections
        )


def between(old: ClusterImage, new: ClusterImage) -> ImageDelta:
    """Return what turns `old` into `new`; what the images share costs next to nothing."""
    deleted, created, changed = [], [], []
    # By name: the hash of a text is kept, that of an id is worked out each time.
    for name, topic in suspects(old.topics, new.topics):
        present = new.topics.get(name)
        if present is topic:
            continue
        if present is None or present.topic_id != topic.topic_id:
            deleted.append(topic)
        else:
            difference = _topic_delta(topic, present)
            if difference:
                changed.append(difference)
    for name, topic in suspects(new.topics, old.topics):
        former = old.topics.get(name)
        if former is not topic and (former is None or former.topic_id != topic.topic_id):
            created.append(topic)
    return ImageDelta(
        topics_deleted=tuple(deleted),
        topics_created=tuple(created),
        topics_changed=tuple(changed),
        configs_changed=_changed_keys(old.configs, new.configs),
        nodes_removed=tuple(_only_in(old.nodes, new.nodes)),
        nodes_added=tuple(_only_in(new.nodes, old.nodes)),
        nodes_changed=tuple(
            node
            for node_id, node in new.nodes.items()
            if node_id in old.nodes and old.nodes[node_id] != node
        ),
        controller_changed=old.controller != new.controller,
        level_changed=old.feature_level != new.feature_level,
        maintenance_changed=old.maintenance != new.maintenance,
        unclean_elections=new.unclean_elections - old.unclean_elections,
    )


def _topic_delta(old: TopicImage, new: TopicImage) -> TopicDelta:
    both = min(len(old.partitions), len(new.partitions))
    return TopicDelta(
        old=old,
        new=new,
        partitions_created=tuple(PartitionId(p) for p in range(both, len(new.partitions))),
        partitions_changed=tuple(
            PartitionId(number)
            for number, (was, now) in enumerate(zip(old.partitions, new.partitions, strict=False))
            if was is not now and was != now
        ),
        configs_changed=_changed_keys(old.configs, new.configs),
    )


def _changed_keys(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    if old is new:
        return ()
    return tuple(key for key in sorted({**old, **new}) if old.get(key) != new.get(key))


def _only_in(
    some: Mapping[NodeId, NodeRegistration], others: Mapping[NodeId, NodeRegistration]
) -> list[NodeRegistration]:
    return [node for node_id, node in some.items() if node_id not in others]
