"""A producer's queues of a topic that becomes another one."""

import random
from uuid import UUID

from dlog.client.futures import Delivery
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.batch_results import BatchResults, ProducerCounters
from dlog.client.producing.partition_queue import Batch, PartitionQueue
from tests.fakes.accumulators import accumulator

OLD, NEW = UUID(int=1), UUID(int=2)


class Scene:
    """A producer with a topic of two partitions, which becomes another one of one partition."""

    def __init__(self) -> None:
        self.accumulator: Accumulator = accumulator(memory_bytes=10_000)
        self.counters = ProducerCounters()
        self.outcomes = BatchResults(self.accumulator, self.counters, random.Random(1))
        self.know(2, OLD, "u")

    def know(self, count: int, topic_id: UUID, name: str = "u", acks: int = -1) -> None:
        """Learn of a topic, and settle what its former life leaves."""
        retired = self.accumulator.update_topic(
            name, count, range(count), topic_id=topic_id, acks=acks
        )
        for callback in self.outcomes.retire(retired, "made anew"):
            callback()

    def send(self, value: bytes, partition: int = 0) -> Delivery:
        """Send one record."""
        delivery = self.accumulator.append_slowly(0.0, "u", None, value, (), 1, partition)
        assert delivery is not None
        return delivery

    def queue(self, partition: int = 0) -> PartitionQueue:
        """Return the queue of a partition."""
        topic = self.accumulator.topic("u")
        assert topic is not None
        return topic.queues[partition]

    def take(self, partition: int = 0) -> Batch:
        """Take the next batch, as a sender does."""
        queue = self.queue(partition)
        batch = self.accumulator.take(queue)
        if batch is None:  # another producer id has to come
            identity = queue.identity
            assert identity is not None
            assert identity.is_wanted
            identity.renew(identity.producer_id + 1, 0)
            batch = self.accumulator.take(queue)
        assert batch is not None
        self.accumulator.served(queue)
        return batch
