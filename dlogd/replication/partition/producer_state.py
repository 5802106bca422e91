"""State of idempotent producers of a partition: epochs, sequences, last batches.

Pure. Kafka's rules (`ProducerStateManager`, KIP-98, KIP-360):

- sequences of one producer epoch follow on without gap, and wrap from 2^31 - 1 to 0;
- a batch that is one of the last five again is a duplicate: its first offsets are the answer;
- an older epoch is fenced; a newer one starts at sequence 0;
- of a producer that is not known (any more) every sequence is accepted.

State is lost by expiry and by eviction of the longest silent. A caller asks `check` before the
append and tells `update` after it; the two together take about a microsecond. State is written at
roll and close, and rebuilt from that snapshot and the batch headers behind it.

Snapshot file (docs/formats/producer-snapshot.md), big-endian:

    4s magic `DLPS`, u16 version 1, u32 CRC-32C of all that follows
    i64 end offset: all below is in the snapshot, u32 count of producers, then for each
        i64 producer id, i16 epoch, i32 next sequence, i64 last seen ms (wall clock), u8 count of
        batches, oldest first: i32 base sequence, i64 base offset, i64 last offset, i64 append time
"""

import struct
from typing import NamedTuple

from dlog.batch.header import BatchHeader
from dlog.checksum import crc32c
from dlog.errors import (
    DlogError,
    InvalidProducerEpochError,
    OutOfOrderSequenceNumberError,
)

BATCHES_REMEMBERED = 5
"""As many as a client may have in flight (max.in.flight.requests.per.connection)."""

SEQUENCE_MASK = 0x7FFF_FFFF
EVICTED_SHARE = 10
"""A full table forgets one producer in so many at once, so that eviction costs little for each."""

_MAGIC = b"DLPS"
_VERSION = 1
_HEAD = struct.Struct(">4sHI")
_COUNTS = struct.Struct(">qI")
_PRODUCER = struct.Struct(">qhiqB")
_BATCH = struct.Struct(">iqqq")

Known = tuple[int, int, int]
"""Of a duplicate: base offset, last offset, log append time in ms or -1."""

_Batch = tuple[int, int, int, int]  # base sequence, base offset, last offset, append time


class _Entry:
    """What is known of one producer; changed in place at each append.

    Invariant: `batches` has one to five batches of `epoch`, oldest first, without gaps between.
    """

    __slots__ = ("batches", "epoch", "next_sequence", "seen_ms")

    def __init__(self, epoch: int, next_sequence: int, seen_ms: int, batches: list[_Batch]) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.seen_ms = seen_ms
        self.batches = batches


class CorruptSnapshotError(DlogError):
    """A snapshot's bytes are not what was written; rebuild from the log."""


class ProducerInfo(NamedTuple):
    """One producer, for operators."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    last_seen_ms: int


class ProducerStates:
    """The producers of one partition. Owner: the partition; the event loop's thread."""

    __slots__ = ("_producers", "expiry_ms", "producers_max")

    def __init__(self, *, expiry_ms: int, producers_max: int) -> None:
        self.expiry_ms = expiry_ms
        self.producers_max = producers_max
        self._producers: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self, producer_id: int, epoch: int, base_sequence: int, record_count: int
    ) -> Known | None:
        """Return None when the batch may be appended, the old offsets when it was before.

        Raises InvalidProducerEpochError or OutOfOrderSequenceNumberError; changes nothing.
        """
        entry = self._producers.get(producer_id)
        if entry is None or (base_sequence == entry.next_sequence and epoch == entry.epoch):
            return None
        if epoch < entry.epoch:
            raise InvalidProducerEpochError(
                f"Producer {producer_id} has epoch {epoch}, the last seen was {entry.epoch}"
            )
        if epoch > entry.epoch:
            if base_sequence == 0:
                return None
            raise OutOfOrderSequenceNumberError(
                f"Producer {producer_id} begins epoch {epoch} at sequence {base_sequence}, not 0"
            )
        for sequence, base_offset, last_offset, append_time_ms in entry.batches:
            if sequence == base_sequence and last_offset - base_offset + 1 == record_count:
                return base_offset, last_offset, append_time_ms
        raise OutOfOrderSequenceNumberError(
            f"Producer {producer_id} epoch {epoch} sent sequence {base_sequence}, "
            f"expected {entry.next_sequence}"
        )

    def follows_on(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Whether this is what comes next of a producer that is known."""
        entry = self._producers.get(producer_id)
        return entry is not None and (epoch, base_sequence) == (entry.epoch, entry.next_sequence)

    def update(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: int,
        last_offset: int,
        append_time_ms: int,
        now_ms: int,
    ) -> None:
        """Remember an appended batch; `now_ms` is wall-clock time, for expiry."""
        entry = self._producers.get(producer_id)
        if entry is None or entry.epoch != epoch:
            entry = self._begin(producer_id, epoch, is_new=entry is None)
        entry.next_sequence = (base_sequence + record_count) & SEQUENCE_MASK
        entry.seen_ms = now_ms
        batches = entry.batches
        if len(batches) == BATCHES_REMEMBERED:
            del batches[0]
        batches.append((base_sequence, base_offset, last_offset, append_time_ms))

    def _begin(self, producer_id: int, epoch: int, *, is_new: bool) -> _Entry:
        """Make room for a new producer, or start over with a new epoch of a known one."""
        if is_new and len(self._producers) >= self.producers_max:
            self._evict()
        entry = self._producers[producer_id] = _Entry(epoch, 0, 0, [])
        return entry

    def _evict(self) -> None:
        """Forget the longest silent, so many that there is room again.

        By offsets: times are equal after a replay, and clocks are set.
        """
        surplus = len(self._producers) + 1 - self.producers_max
        count = max(surplus, len(self._producers) // EVICTED_SHARE)
        by_silence = sorted((entry.batches[-1][2], each) for each, entry in self._producers.items())
        for _, producer_id in by_silence[:count]:
            del self._producers[producer_id]

    def highest(self, first: int, end: int) -> int:
        """Return the highest id of a producer in [first, end), -1 when there is none."""
        return max((each for each in self._producers if first <= each < end), default=-1)

    def expire(self, now_ms: int) -> int:
        """Forget producers that were silent for `expiry_ms`; return how many."""
        horizon_ms = now_ms - self.expiry_ms
        expired = [each for each, entry in self._producers.items() if entry.seen_ms <= horizon_ms]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def shift(self, delta_ms: int, now_ms: int) -> None:
        """Let everybody have been seen so much later, but not after `now_ms`: no time has passed.

        For wall clocks that were set forward: ages decide, not dates.
        """
        for entry in self._producers.values():
            entry.seen_ms = max(entry.seen_ms, min(entry.seen_ms + delta_ms, now_ms))

    def count_from(self, now_ms: int) -> None:
        """Let who was seen last have been seen now, and the others before as much as they were."""
        last_ms = max((entry.seen_ms for entry in self._producers.values()), default=now_ms)
        self.shift(max(0, now_ms - last_ms), now_ms)

    def clear(self) -> None:
        """Forget everybody, before a rebuild."""
        self._producers.clear()

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Take in one batch of the log; batches must come in the order of their offsets.

        The batch counts as seen at `now_ms`: when it was appended is not known, its own timestamps
        may be years old, and forgetting a producer too early would let its repetitions in.
        """
        if header.producer_id < 0 or header.is_control:
            return
        entry = self._producers.get(header.producer_id)
        if entry is not None and header.producer_epoch < entry.epoch:
            return
        self.update(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_offset_delta + 1,
            header.base_offset,
            header.last_offset,
            header.max_timestamp_ms if header.is_log_append_time else -1,
            now_ms,
        )

    def describe(self) -> list[ProducerInfo]:
        """Return all producers, ordered by id."""
        return [
            ProducerInfo(
                producer_id=producer_id,
                epoch=entry.epoch,
                last_sequence=(entry.next_sequence - 1) & SEQUENCE_MASK,
                last_offset=entry.batches[-1][2],
                last_seen_ms=entry.seen_ms,
            )
            for producer_id, entry in sorted(self._producers.items())
        ]

    def encode(self, end_offset: int, owner: bytes = b"") -> bytes:
        """Return a snapshot of the state after all batches below `end_offset`.

        `owner` says of which partition; only who says the same can read it.
        """
        body = bytearray(_COUNTS.pack(end_offset, len(self._producers)))
        for producer_id, entry in sorted(self._producers.items()):
            body += _PRODUCER.pack(
                producer_id, entry.epoch, entry.next_sequence, entry.seen_ms, len(entry.batches)
            )
            for batch in entry.batches:
                body += _BATCH.pack(*batch)
        return _HEAD.pack(_MAGIC, _VERSION, crc32c(body, crc32c(owner))) + body

    def load(self, data: bytes | memoryview, owner: bytes = b"") -> int:
        """Replace the state by a snapshot and return its end offset.

        Raises CorruptSnapshotError and changes nothing when the bytes are no whole snapshot
        of this owner.
        """
        producers, end_offset = _decode(bytes(data), owner)
        self._producers = producers
        return end_offset


def _decode(data: bytes, owner: bytes) -> tuple[dict[int, _Entry], int]:
    try:
        magic, version, crc = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise CorruptSnapshotError(f"no producer snapshot: magic {magic!r} version {version}")
        if crc32c(memoryview(data)[_HEAD.size :], crc32c(owner)) != crc:
            raise CorruptSnapshotError("it is damaged, or of another partition")
        end_offset, count = _COUNTS.unpack_from(data, _HEAD.size)
        position = _HEAD.size + _COUNTS.size
        producers: dict[int, _Entry] = {}
        for _ in range(count):
            producer_id, epoch, following, seen_ms, batch_count = _PRODUCER.unpack_from(
                data, position
            )
            position += _PRODUCER.size
            batches_end = position + batch_count * _BATCH.size
            batches = list(_BATCH.iter_unpack(data[position:batches_end]))
            position = batches_end
            producers[producer_id] = _Entry(epoch, following, seen_ms, batches)
    except struct.error as error:
        raise CorruptSnapshotError(f"the producer snapshot is cut short: {error}") from None
    if position != len(data) or len(producers) != count:
        raise CorruptSnapshotError("the producer snapshot has bytes too many or too few")
    for producer_id, entry in producers.items():
        if not 1 <= len(entry.batches) <= BATCHES_REMEMBERED:
            raise CorruptSnapshotError(f"producer {producer_id} has {len(entry.batches)} batches")
    return producers, end_offset
