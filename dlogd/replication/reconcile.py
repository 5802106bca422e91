"""What a node must give up when the image has changed. Pure; `replication.manager` does it."""

from collections.abc import Callable, Iterable, Mapping

from dlog.types import NodeId, TopicId
from dlogd.metadata.image import TopicImage

Key = tuple[TopicId, int]


def mine(topic: TopicImage, node_id: NodeId) -> list[int]:
    """Return the partitions of a topic with a replica on a node."""
    return [i for i, part in enumerate(topic.partitions) if node_id in part.replicas]


def given_up(
    node_id: NodeId,
    *,
    deleted: Iterable[TopicImage],
    changed: Iterable[TopicImage],
    is_here: Callable[[Key], bool],
    undeleted: Mapping[Key, TopicImage],
) -> dict[Key, TopicImage]:
    """Return replicas without a place here: of deleted topics, moved away, or left from earlier.

    `deleted`: topics as they were; `changed`: as they are now, where they differ; `is_here`: what
    is open; `undeleted`: what could not be deleted until now.
    """
    gone = dict(undeleted)
    for topic in deleted:
        gone |= {(topic.topic_id, index): topic for index in mine(topic, node_id)}
    for topic in changed:
        for index, partition in enumerate(topic.partitions):
            key = (topic.topic_id, index)
            if node_id in partition.replicas:
                gone.pop(key, None)  # it came back
            elif is_here(key):
                gone[key] = topic
    return gone
