"""Roles of this node's partitions: leader or follower, by the image and the lease.

Owner: the event loop's thread; made by `dlogd.replication.replica_manager`, with its partitions.
"""

from collections.abc import Callable, Mapping

from dlog.errors import NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from dlog.types import NodeId, TopicId
from dlogd.metadata.machine.election import rules_of
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import ClusterImage, PartitionImage, TopicImage
from dlogd.replication.partition.leader_state import Leadership
from dlogd.replication.partition.lease import Lease, is_valid
from dlogd.replication.partition.partition import Partition
from dlogd.runtime.clock import Clock

OnRole = Callable[[Partition, tuple[TopicId, int], PartitionImage], None]


def leadership(node_id: NodeId, image: PartitionImage, min_isr: int) -> Leadership:
    """Return what a leader needs of the image of its partition. Pure."""
    return Leadership(
        followers=tuple(each for each in image.replicas if each != node_id),
        isr=tuple(each for each in image.isr if each != node_id),
        min_isr=min_isr,
        partition_epoch=image.partition_epoch,
    )


class RoleAssigner:
    """Tells partitions to lead or to follow, the moment that the node learns of it."""

    def __init__(
        self,
        partitions: Mapping[tuple[TopicId, int], Partition],
        node_id: NodeId,
        lease: Lease,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._node_id = node_id
        self._lease = lease
        self._clock = clock
        self._image = ClusterImage()
        self._may_lead = self._is_leased()
        self._listeners: list[OnRole] = []

    def subscribe(self, listener: OnRole) -> None:
        """Call `listener` after a partition has got its role, the same or another."""
        self._listeners.append(listener)

    def begin(self, image: ClusterImage) -> None:
        """Go by this image from now on."""
        self._image = image

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Follow a newer image."""
        self._image = image
        for gone in delta.topics_deleted:
            # At once: another topic may have its name already, and their logs go one by one.
            for index in range(len(gone.partitions)):
                partition = self._partitions.get((gone.topic_id, index))
                if partition is not None:
                    partition.close(UnknownTopicOrPartitionError(f"{gone.name} was deleted"))
        if delta.configs_changed:
            self._take_all()
        for changed in delta.topics_changed:
            topic = changed.new
            every = range(len(topic.partitions))
            for index in every if changed.configs_changed else changed.partitions_changed:
                partition = self._partitions.get((topic.topic_id, index))
                if partition is not None:
                    self._take(partition, topic, index)

    def on_lease(self) -> None:
        """The lease of this node has begun or ended."""
        self._take_all()

    def check_lease(self) -> None:
        """Lead nothing any more from the moment at which the lease has ended, until it is back.

        Nobody else tells of that when it ends and begins between two looks of its keeper: timers
        stand still while a host sleeps, and the clock of leases does not.
        """
        if self._may_lead is not self._is_leased():
            self._take_all()

    def assign(self, partition: Partition, index: int) -> None:
        """Give a partition the role that it has in the present image."""
        topic = self._image.topics_by_id.get(partition.topic_id)
        if topic is not None:
            self._take(partition, topic, index)

    def _is_leased(self) -> bool:
        return is_valid(self._lease, self._clock.now_us())

    def _take_all(self) -> None:
        self._may_lead = self._is_leased()
        for (_, index), partition in list(self._partitions.items()):
            self.assign(partition, index)

    def _take(self, partition: Partition, topic: TopicImage, index: int) -> None:
        if partition.is_ended:
            return
        image = topic.partitions[index]
        self._give(partition, topic, image, index)
        self.tell(partition, (topic.topic_id, index), image)

    def tell(self, partition: Partition, key: tuple[TopicId, int], image: PartitionImage) -> None:
        """Tell all listeners, in the order in which they subscribed."""
        for listener in self._listeners:
            listener(partition, key, image)

    def _give(
        self, partition: Partition, topic: TopicImage, image: PartitionImage, index: int
    ) -> None:
        if image.leader != self._node_id:
            why = f"This node does not lead {topic.name}-{index}"
        elif not self._may_lead:
            why = "This node has no valid lease"
        elif partition.is_cutting:
            why = f"{topic.name}-{index} is being cut"  # `assign` follows when it is
        else:
            min_isr = rules_of(self._image, topic).min_isr_of(image)
            partition.lead(image.leader_epoch, leadership(self._node_id, image, min_isr))
            return
        # Who has no lease is perhaps out of the ISR and has not heard of it.
        is_in_sync = self._may_lead and self._node_id in image.isr
        error = NotLeaderOrFollowerError(why)
        partition.follow(image.leader_epoch, error, is_in_sync=is_in_sync)
