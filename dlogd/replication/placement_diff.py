"""Difference between a node's replicas and the image: what the node must remove. Pure.

`dlogd.replication.replica_manager` gives it up.
"""

from collections.abc import Collection, Container, Iterable, Mapping
from uuid import UUID

from dlog.errors import KafkaStorageError
from dlog.types import NodeId, TopicId
from dlogd.metadata.state.image import ClusterImage, PartitionImage, TopicImage
from dlogd.metadata.state.persistent_map import suspects

Key = tuple[TopicId, int]


def mine(topic: TopicImage, node_id: NodeId) -> list[int]:
    """Return the partitions of a topic with a replica on a node."""
    return [i for i, part in enumerate(topic.partitions) if node_id in part.replicas]


def has_place(image: ClusterImage, key: Key, node_id: NodeId) -> bool:
    """Whether a replica belongs on a node.

    To be asked of the newest image before a replica is deleted: one that has got its place back may
    have told its leader meanwhile how much it holds, and may be in sync by now.
    """
    topic = image.topics_by_id.get(key[0])
    partition = topic.partition(key[1]) if topic is not None else None
    return partition is not None and node_id in partition.replicas


def others_have_it(partition: PartitionImage, node_id: NodeId) -> bool:
    """Whether a replica may begin anew: the cluster has the records, and does not count on it."""
    counted = (*partition.isr, *partition.elr)
    return bool(counted) and node_id not in counted


def may_begin_anew(
    image: ClusterImage, topic: TopicImage, index: int, node_id: NodeId, failed: Collection[UUID]
) -> bool:
    """Whether a replica may begin anew on a node with `failed` directories.

    Raises KafkaStorageError until the cluster knows of them: after a crash an older copy that one
    of them holds would pass for the replica.
    """
    if not others_have_it(topic.partitions[index], node_id):
        return False
    own = image.nodes.get(node_id)
    if own is not None and not set(failed) <= set(own.failed_directory_ids):
        raise KafkaStorageError("The cluster does not know yet that a data directory has failed")
    return True


def given_up(
    node_id: NodeId,
    image: ClusterImage,
    *,
    before: Mapping[TopicId, TopicImage],
    changed: Iterable[TopicImage],
    here: Container[Key],
    undeleted: Mapping[Key, TopicImage],
) -> dict[Key, TopicImage]:
    """Return replicas without a place here: of deleted topics, moved away, or left from earlier.

    `before`: topics as they were; `changed`: as they are now, where they differ; `here`: what is
    open; `undeleted`: what could not be deleted until now.
    """
    gone = dict(undeleted)
    for topic_id, topic in suspects(before, image.topics_by_id):
        if topic_id not in image.topics_by_id:
            gone |= {(topic_id, index): topic for index in mine(topic, node_id)}
    for topic in changed:
        for index, partition in enumerate(topic.partitions):
            key = (topic.topic_id, index)
            if node_id in partition.replicas:
                gone.pop(key, None)  # it came back
            elif key in here:
                gone[key] = topic
    return gone
