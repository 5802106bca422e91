"""Idempotent batches refused for a moment, which later batches must not overtake.

A client has up to five batches of a partition under way. The first is refused by what passes (too
few in sync, no room, a leader or a topic that is not there yet), and it has passed when the second
is looked at: a leader that does not know the producer would append that one, and any other would
refuse it as out of order. Then the first, sent again, is behind what the leader has: librdkafka
takes that for "was written before", and the record is lost. So what comes behind is refused as the
first was. Batches that are under way together share a connection, hence so does this.
Owner: the connection; the event loop's thread.
"""

from dataclasses import dataclass

from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES, producer_of
from dlog.errors import CorruptMessageError, OutOfOrderSequenceNumberError, WireError
from dlog.wire.topics import TopicKey
from dlogd.replication.partition.producer_state import (
    BATCHES_REMEMBERED,
    SEQUENCE_MASK,
    ProducerStates,
)

PARTITIONS_MAX = 1024
"""More are not remembered for one connection: those refused longest ago are forgotten."""

_Key = tuple[TopicKey, int, int]  # topic, partition, producer id


@dataclass(slots=True)
class _Refused:
    epoch: int
    sequence: int
    kind: type[WireError]
    text: str
    behind: int = BATCHES_REMEMBERED - 1
    """How many more may be refused for it: so many were under way. Nobody is refused for ever."""

    def is_before(self, epoch: int, sequence: int) -> bool:
        """Whether a batch of the same producer comes behind this one; sequences wrap around."""
        behind = (sequence - self.sequence) & SEQUENCE_MASK
        return epoch == self.epoch and 0 < behind <= SEQUENCE_MASK // 2


class RefusedBatches:
    """Of each producer and partition the first batch that was refused and has not come again."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[_Key, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def note(
        self, topic: TopicKey, index: int, buffer: bytearray, start: int, end: int, error: WireError
    ) -> None:
        """Remember that the batch in `buffer[start:end]` was refused and not appended."""
        # Of a batch with a wrong checksum nobody knows whose it is.
        if not error.retriable or isinstance(error, CorruptMessageError):
            return
        producer_id, epoch, sequence, _ = _producer_of(buffer, start, end)
        if producer_id < 0:
            return
        key = topic, index, producer_id
        known = self._refused.get(key)
        if known is not None and known.is_before(epoch, sequence):
            return
        self._refused.pop(key, None)
        if len(self._refused) >= PARTITIONS_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = _Refused(epoch, sequence, type(error), str(error))

    def check(
        self,
        topic: TopicKey,
        index: int,
        buffer: bytearray,
        start: int,
        end: int,
        producers: ProducerStates,
    ) -> None:
        """Raise the error of an earlier batch that the one in `buffer[start:end]` would overtake.

        `producers` is what the partition knows: who follows on there, overtakes nothing.
        """
        producer_id, epoch, sequence, count = _producer_of(buffer, start, end)
        key = topic, index, producer_id
        refused = self._refused.get(key)
        if refused is None or not refused.is_before(epoch, sequence):
            return
        if producers.follows_on(producer_id, epoch, sequence):
            del self._refused[key]  # it came by another way
            return
        if refused.behind == 0:
            del self._refused[key]
            return
        try:
            known = producers.check(producer_id, epoch, sequence, count)
        except OutOfOrderSequenceNumberError:
            known = None
        if known is None:
            refused.behind -= 1
            raise refused.kind(f"The batch before it was refused: {refused.text}")


def _producer_of(buffer: bytearray, start: int, end: int) -> tuple[int, int, int, int]:
    """Return producer id, epoch, base sequence and number of records; no id: -1."""
    if end - start < HEADER_BYTES:
        return -1, -1, -1, 0
    fields: tuple[int, ...] = BATCH_STRUCT.unpack_from(buffer, start)
    return producer_of(fields)
