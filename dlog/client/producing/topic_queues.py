"""Queues of one topic incarnation. Pure; owned by the accumulator."""

from uuid import UUID

from dlog.client.producing.partition_queue import PartitionQueue


class TopicQueues:
    """The partitions of one topic and the one that takes records without a key.

    Life: that of the topic; one that is made anew under the same name has other queues.
    """

    __slots__ = (
        "acks",
        "available",
        "name",
        "queues",
        "spent_producer_id",
        "sticky",
        "topic_id",
    )

    def __init__(self, name: str, topic_id: UUID, acks: int) -> None:
        self.name = name
        self.topic_id = topic_id  # zero: the cluster does not tell
        self.acks = acks
        # The id in use when it was made anew; -1: it was not.
        self.spent_producer_id = -1
        self.queues: list[PartitionQueue] = []
        self.available: list[int] = []
        # None: choose before the next record.
        self.sticky: PartitionQueue | None = None
