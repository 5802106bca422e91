"""Accumulator: records on their way into batches, with memory and lingering. Pure.

Time is passed in. Memory is bounded: a batch holds a lease of bytes, which grows as it fills, and
nothing is appended beyond it. Only when a lease ends, `append` has to look at anything but the
batch: that is the slow path, which extends the lease, seals a full batch and opens the next one.
"""

import random
from collections.abc import Sequence
from uuid import UUID

from dlog.batch.build import BatchBuilder, batch_bytes_max
from dlog.batch.header import HEADER_BYTES
from dlog.batch.native import murmur2
from dlog.batch.records import Header, decode
from dlog.checksum import Buffer
from dlog.client.futures import BatchResult, Delivery, Owner
from dlog.client.produce_options import Batching
from dlog.client.producing.partition_queue import (
    ACKS_ALL,
    ACKS_NONE,
    SEQUENCE_MASK,
    Batch,
    PartitionQueue,
)
from dlog.client.producing.partitioner import next_sticky
from dlog.client.producing.producer_identity import ProducerIdentity
from dlog.client.producing.topic_queues import TopicQueues
from dlog.errors import RecordTooLargeError
from dlog.types import ZERO_TOPIC_ID

LEASE_BYTES_MIN = 4 * 1024
LEASE_BYTES_STEP = 64 * 1024

_POSITIVE = 0x7FFF_FFFF


def record_bytes_bound(
    key: Buffer | None, value: Buffer | None, headers: Sequence[Header] = ()
) -> int:
    """Return how many bytes the record has in a batch, at most."""
    return batch_bytes_max(key, value, headers) - HEADER_BYTES


class Accumulator:
    """All batches of a producer. Owner: the producer; see there about threads.

    Invariant: `used_bytes` is the sum of `bytes_held` of all batches, and at most `memory_bytes`.
    Invariant: a batch is in `incomplete` from its first record until it is done.
    """

    def __init__(
        self,
        batching: Batching,
        *,
        rng: random.Random,
        owner: Owner,
        identity: ProducerIdentity | None,
        delivery_type: type[Delivery] = Delivery,
    ) -> None:
        self.batching = batching
        self.used_bytes = 0
        # Somebody waits for memory: nothing lingers then.
        self.memory_is_wanted = False
        self._has_freed = False
        self.incomplete: dict[Batch, None] = {}
        # Queues with anything under way; those that were served last are last.
        self.active: dict[PartitionQueue, None] = {}
        self._rng = rng
        self._owner = owner
        self._delivery_type = delivery_type
        self._identity = identity
        self._topics: dict[str, TopicQueues] = {}

    # Topics

    def topic(self, name: str) -> TopicQueues | None:
        """Return what is known of a topic."""
        return self._topics.get(name)

    def update_topic(
        self,
        name: str,
        partition_count: int,
        available: Sequence[int],
        *,
        topic_id: UUID = ZERO_TOPIC_ID,
        acks: int = ACKS_ALL,
    ) -> list[PartitionQueue]:
        """Take in how many partitions a topic has, and which of them have a leader.

        Partitions are never taken away: a node that lags may tell of fewer. But a topic that was
        made anew has another id (which is the present one, the cluster knows): it gets new queues.
        Returns the old ones then; the caller ends their batches, which nothing is added to any
        more.
        """
        topic = self._topics.get(name)
        retired: list[PartitionQueue] = []
        if topic is None:
            topic = self._topics[name] = TopicQueues(name, topic_id, acks)
        elif ZERO_TOPIC_ID not in (topic_id, topic.topic_id) and topic_id != topic.topic_id:
            retired = topic.queues
            topic = self._topics[name] = TopicQueues(name, topic_id, acks)
            if self._identity is not None:
                topic.spent_producer_id = self._identity.producer_id
        identity = None if topic.acks == ACKS_NONE else self._identity
        for partition in range(len(topic.queues), partition_count):
            queue = PartitionQueue(name, partition, identity, topic.acks, topic.topic_id)
            queue.shun(topic.spent_producer_id)
            topic.queues.append(queue)
        topic.available = [each for each in available if each < partition_count]
        return retired

    # Appending

    def append(
        self,
        topic_name: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        partition: int | None,
    ) -> Delivery | None:
        """Append to an open batch with room; None: `append_slowly` has to see to it."""
        topic = self._topics.get(topic_name)
        if topic is None:
            return None
        if partition is not None:
            if not 0 <= partition < len(topic.queues):
                return None
            batch = topic.queues[partition].open
        elif key is None:
            if topic.sticky is None:
                return None
            batch = topic.sticky.open
        else:
            queues = topic.queues
            batch = queues[(murmur2(key) & _POSITIVE) % len(queues)].open
        if batch is None:
            return None
        builder = batch.builder
        if not builder.append(key, value, headers, timestamp_ms):
            return None
        return self._delivery_type(batch.result, builder.record_count - 1, timestamp_ms)

    def append_slowly(
        self,
        now_s: float,
        topic_name: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        partition: int | None,
    ) -> Delivery | None:
        """Append after making room; None when there is no memory now. The topic must be known.

        Raises RecordTooLargeError for what never fits into memory, ValueError for a partition that
        the topic does not have.
        """
        bound = record_bytes_bound(key, value, headers)
        batch = self.batch_for(now_s, topic_name, key, partition, bound)
        if batch is None:
            return None
        try:
            if not batch.builder.append(key, value, headers, timestamp_ms):
                raise AssertionError(f"a record of at most {bound} bytes needs more")
        finally:
            # A record that is none must not leave an empty batch behind.
            self.discard_if_empty(batch)
        return self._delivery_type(batch.result, batch.builder.record_count - 1, timestamp_ms)

    def batch_for(
        self,
        now_s: float,
        topic_name: str,
        key: Buffer | None,
        partition: int | None,
        bound: int,
        wanted: int = 0,
    ) -> Batch | None:
        """Return an open batch with room for `bound` bytes, and if possible for `wanted`."""
        topic = self._topics[topic_name]
        self.check_size(bound)
        queue = self._choose(topic, key, partition)
        while True:
            batch = queue.open
            if batch is None:
                return self._open(queue, now_s, bound, wanted)
            size = batch.builder.size_bytes + bound
            if size <= batch.builder.bytes_max:
                return batch
            if size <= self.batching.batch_bytes:
                return batch if self._extend(batch, size, wanted) else None
            self.seal(queue)
            queue = self._choose(topic, key, partition)

    def check_size(self, bound: int) -> None:
        """Raise RecordTooLargeError for a record that never fits."""
        if HEADER_BYTES + bound > self.batching.memory_bytes:
            raise RecordTooLargeError(
                f"a record of {bound} bytes, the producer has {self.batching.memory_bytes}"
            )

    def _choose(
        self, topic: TopicQueues, key: Buffer | None, partition: int | None
    ) -> PartitionQueue:
        queues = topic.queues
        if partition is not None:
            if not 0 <= partition < len(queues):
                raise ValueError(f"{topic.name} has partitions 0 to {len(queues) - 1}")
            return queues[partition]
        if key is not None:
            return queues[(murmur2(key) & _POSITIVE) % len(queues)]
        if topic.sticky is None:
            chosen = next_sticky(len(queues), topic.available, -1, self._rng)
            topic.sticky = queues[chosen]
        return topic.sticky

    def _open(self, queue: PartitionQueue, now_s: float, bound: int, wanted: int) -> Batch | None:
        """Open a batch; one record may be larger than a batch is meant to be."""
        least = HEADER_BYTES + bound
        size = max(least, min(self.batching.batch_bytes, max(LEASE_BYTES_MIN, wanted)))
        free = self.batching.memory_bytes - self.used_bytes
        if size > free:
            size = least
        if size > free:
            return None
        batch = Batch(
            queue,
            BatchBuilder(self.batching.codec, size),
            BatchResult(queue.partition, self._owner),
            created_s=now_s,
            deadline_s=now_s + self.batching.delivery_timeout_s,
        )
        batch.bytes_held = size
        self.used_bytes += size
        queue.open = batch
        self.active[queue] = None
        self.incomplete[batch] = None
        self._owner.wake()
        return batch

    def _extend(self, batch: Batch, size: int, wanted: int) -> bool:
        """Let the batch grow to `size` bytes, better to more; False when memory is short."""
        held = batch.bytes_held
        free = self.batching.memory_bytes - self.used_bytes
        grown = held + max(min(held, LEASE_BYTES_STEP), wanted)
        grown = min(self.batching.batch_bytes, max(size, grown))
        if grown - held > free:
            grown = size
        if grown - held > free:
            return False
        self.used_bytes += grown - held
        batch.bytes_held = batch.builder.bytes_max = grown
        return True

    # Batches

    def seal(self, queue: PartitionQueue) -> None:
        """Let the open batch of a partition take no more records, because it is full or due."""
        batch = queue.open
        if batch is not None:
            queue.seal()
            self._on_sealed(batch)
            self._owner.wake()

    def seal_all(self) -> list[Batch]:
        """Seal every open batch; return all batches that are not done."""
        for queue in list(self.active):
            self.seal(queue)
        return list(self.incomplete)

    def take(self, queue: PartitionQueue) -> Batch | None:
        """Return the batch of a partition that is to be sent now, if there is one."""
        opened = queue.open
        batch = queue.take()
        if opened is not None and queue.open is None:
            self._on_sealed(opened)
        return batch

    def _on_sealed(self, batch: Batch) -> None:
        unused = batch.bytes_held - batch.builder.size_bytes
        batch.bytes_held -= unused
        self._free(unused)
        self.unstick(batch.queue)

    def unstick(self, queue: PartitionQueue) -> None:
        """Send the records without a key to another partition than this one from now on."""
        topic = self._topics[queue.topic]
        if topic.sticky is queue:
            chosen = next_sticky(len(topic.queues), topic.available, queue.partition, self._rng)
            topic.sticky = topic.queues[chosen]

    def served(self, queue: PartitionQueue) -> None:
        """Let a queue that was served wait behind the others, or leave when it is idle."""
        self.active.pop(queue, None)
        if not queue.is_idle:
            self.active[queue] = None

    def release(self, batch: Batch) -> None:
        """Give back what a batch held that is done."""
        self._free(batch.bytes_held)
        batch.bytes_held = 0
        self.incomplete.pop(batch, None)

    def _free(self, size: int) -> None:
        self.used_bytes -= size
        self._has_freed = self._has_freed or size > 0

    def take_freed(self) -> bool:
        """Return whether memory was given back since this was asked last."""
        freed, self._has_freed = self._has_freed, False
        return freed

    def discard_if_empty(self, batch: Batch) -> None:
        """Forget an open batch that got no record."""
        if batch.builder.is_empty:
            batch.queue.open = None
            self.release(batch)
            if batch.queue.is_idle:
                self.active.pop(batch.queue, None)

    def split(self, batch: Batch) -> None:
        """Let two halves wait in the place of a batch that is too large and off the wire.

        They keep its place, its numbers and its deadline, and share what it held.
        """
        records = decode(batch.encoded())
        middle = len(records) // 2
        parts: list[tuple[int, BatchResult]] = []
        for index, (first, chosen) in enumerate(
            ((0, records[:middle]), (middle, records[middle:]))
        ):
            bound = sum(record_bytes_bound(each.key, each.value, each.headers) for each in chosen)
            part = Batch(
                batch.queue,
                BatchBuilder(self.batching.codec, HEADER_BYTES + bound),
                BatchResult(batch.result.partition, self._owner),
                created_s=batch.created_s,
                deadline_s=batch.deadline_s,
            )
            for each in chosen:
                part.builder.append(each.key, each.value, each.headers, each.timestamp_ms)
            part.record_count = len(chosen)
            part.order = (*batch.order, index)
            part.last_error = batch.last_error
            part.may_be_written = batch.may_be_written
            if batch.base_sequence >= 0:
                sequence = (batch.base_sequence + first) & SEQUENCE_MASK
                part.number(batch.producer_id, batch.producer_epoch, sequence)
            part.bytes_held = batch.bytes_held // 2 + (batch.bytes_held % 2) * index
            batch.queue.insert(part)
            self.incomplete[part] = None
            parts.append((first, part.result))
        batch.bytes_held = 0
        self.release(batch)
        batch.result.split(parts)
