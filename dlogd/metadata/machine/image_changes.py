"""Changed partitions into a changed image: shared by all steps.

Pure. Topics that do not change are not copied, and nor is what surrounds them.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from dlog.errors import UnknownTopicIdError, UnknownTopicOrPartitionError
from dlog.types import NodeId, TopicId
from dlogd.metadata.machine.election import Change, Rules, rules_of, settle
from dlogd.metadata.state.image import ClusterImage, NodeRegistration, PartitionImage, TopicImage
from dlogd.metadata.state.persistent_map import chunked
from dlogd.metadata.state.shared_fields import PartitionSet

Step = tuple[ClusterImage, int]
"""What a command makes of an image: the next one, and a value for its outcome."""

Decide = Callable[[TopicImage, int, PartitionImage], Change | None]
"""Says what is new about one partition; None: nothing, do not look at it."""


def topic_of(image: ClusterImage, topic_id: TopicId) -> TopicImage:
    """Return a topic, or raise UnknownTopicIdError."""
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise UnknownTopicIdError(f"There is no topic with id {topic_id}")
    return topic


def partition_of(topic: TopicImage, number: int) -> PartitionImage:
    """Return a partition, or raise UnknownTopicOrPartitionError."""
    partition = topic.partition(number)
    if partition is None:
        raise UnknownTopicOrPartitionError(f"There is no partition {topic.name}-{number}")
    return partition


def with_topics(image: ClusterImage, topics: list[TopicImage]) -> ClusterImage:
    """Return an image in which topics are new or other than before; names do not change."""
    if not topics:
        return image
    return image.having(
        topics=chunked(image.topics).with_items([(topic.name, topic) for topic in topics]),
        topics_by_id=chunked(image.topics_by_id).with_items(
            [(topic.topic_id, topic) for topic in topics]
        ),
    )


def with_node(image: ClusterImage, node: NodeRegistration) -> ClusterImage:
    """Return an image in which a node is new or other than before; nodes stay ordered by id."""
    changed = {**image.nodes, node.node_id: node}
    return replace(image, nodes={node_id: changed[node_id] for node_id in sorted(changed)})


class Changes:
    """Changes of partitions of one image, put together into the next one.

    The nodes of `image` are already those that decide who can lead.
    """

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.count = 0
        self.unclean = 0
        self._common_rules: Rules | None = None
        self._topics: dict[TopicId, tuple[Rules, list[PartitionImage]]] = {}

    def present(self, topic: TopicImage, number: int) -> PartitionImage:
        """Return a partition as it has been settled so far."""
        held = self._topics.get(topic.topic_id)
        return topic.partitions[number] if held is None else held[1][number]

    def add(self, topic: TopicImage, number: int, change: Change) -> PartitionImage:
        """Settle a partition, which may have been settled before, and return it."""
        held = self._topics.get(topic.topic_id)
        rules, partitions = held or (self._rules_of(topic), list(topic.partitions))
        old = partitions[number]
        new, unclean = settle(old, rules, change)
        if new is not old:
            if held is None:
                self._topics[topic.topic_id] = rules, partitions
            partitions[number] = new
            self.count += 1
            self.unclean += unclean
        return new

    def _rules_of(self, topic: TopicImage) -> Rules:
        """Return the rules of a topic; those of topics without configs are all the same."""
        if topic.configs:
            return rules_of(self.image, topic)
        if self._common_rules is None:
            self._common_rules = rules_of(self.image, topic)
        return self._common_rules

    def add_all(self, topics: Iterable[TopicImage], decide: Decide) -> None:
        """Settle all partitions of some topics for which there is a change."""
        for topic in topics:
            for number, partition in enumerate(topic.partitions):
                change = decide(topic, number, partition)
                if change is not None:
                    self.add(topic, number, change)

    def add_set(self, partitions: PartitionSet, decide: Decide) -> None:
        """Settle those of some partitions that exist and for which there is a change."""
        for topic_id, numbers in partitions:
            topic = self.image.topics_by_id.get(topic_id)
            if topic is None:
                continue
            for number in numbers:
                if topic.partition(number) is None:
                    continue
                change = decide(topic, number, self.present(topic, number))
                if change is not None:
                    self.add(topic, number, change)

    def done(self) -> ClusterImage:
        """Return the image with all changes in it."""
        topics = [
            replace(self.image.topics_by_id[topic_id], partitions=tuple(partitions))
            for topic_id, (_, partitions) in self._topics.items()
        ]
        changed = with_topics(self.image, topics)
        if self.unclean:
            total = changed.unclean_elections + self.unclean
            changed = replace(changed, unclean_elections=total)
        return changed


def without_nodes(isr: tuple[NodeId, ...], nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """Return an ISR that lacks some nodes."""
    gone = tuple(nodes)
    return tuple(node_id for node_id in isr if node_id not in gone)
