"""The plainest of logs: a list of batches of which so much is flushed; for lives of replicas."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from dlog.batch.header import BATCH_STRUCT
from dlog.errors import KafkaStorageError, OffsetOutOfRangeError
from dlog.types import LeaderEpoch, Offset, PartitionId, TopicPartition
from dlogd.storage.segment.bad_ranges import BadRanges
from dlogd.storage.segment.leader_epochs import EpochHistory


class PlainClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def now_us(self) -> int:
        return self.ms * 1000

    def timestamp_ms(self) -> int:
        return self.ms


class PlainBatch:
    """One batch of a log."""

    def __init__(self, data: bytes) -> None:
        fields = BATCH_STRUCT.unpack_from(data)
        self.data = data
        self.base, self.end, self.epoch = fields[0], fields[0] + fields[6] + 1, fields[2]


PAUSES = (0, 2, 12, 60)
"""In turns of the loop: how long a disk may take for one thing."""


class PlainMemory:
    """Append memory of a node with one directory."""

    may_hang = False


class PlainLog:
    """What replication asks of a `PartitionLog`, under `flush.policy: always`."""

    def __init__(self, topic_id: UUID, rng: random.Random) -> None:
        self.topic_partition, self.topic_id = TopicPartition("t", PartitionId(0)), topic_id
        self.rng = rng
        self.batches: list[PlainBatch] = []
        self.log_start_offset = self.log_end_offset = self.flushed_offset = Offset(0)
        self.epochs = EpochHistory()
        self.failed: Any = None
        self.blocked: Any = None
        self.refuses_appends = False
        self.damage = BadRanges()
        self.services = SimpleNamespace(memory=PlainMemory(), engine=self)
        self.segments: list[Any] = []
        self.on_promised: Callable[[Any], None] = lambda _: None
        self.waiting: list[Callable[[], None]] = []
        self.is_dead = False
        self.trims: list[int] = []
        """Offsets of trims under way."""
        self.trim_pauses: tuple[int, ...] = PAUSES
        self._lock = asyncio.Lock()  # of whatever moves an end of it
        self._disk_start = 0
        self._left: list[PlainBatch] | None = None  # on disk, while all is being dropped

    @property
    def promised_offset(self) -> Offset:
        return self.flushed_offset

    @property
    def last_epoch(self) -> LeaderEpoch:
        return self.epochs.latest

    @property
    def size_bytes(self) -> int:
        return sum(len(each.data) for each in self.batches)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def append(
        self, batch: memoryview, fields: tuple[int, ...], *, leader_epoch: LeaderEpoch
    ) -> Offset | None:
        assert not self.is_dead
        if self.rng.random() < 0.05:
            return None
        base = self.log_end_offset
        head = base.to_bytes(8, "big"), bytes(batch[8:12]), leader_epoch.to_bytes(4, "big")
        self.batches.append(PlainBatch(b"".join(head) + bytes(batch[16:])))
        self.epochs.assign(leader_epoch, base)
        self.log_end_offset = Offset(base + fields[6] + 1)
        return base

    def when_writable(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def flush_some(self) -> None:
        """Flush up to the end of some batch."""
        ends = [each.end for each in self.batches if each.end > self.flushed_offset]
        if ends:
            self.flushed_offset = Offset(self.rng.choice(ends))
            self.on_promised(self)

    async def flush(self) -> None:
        await self._pause()
        if self.flushed_offset < self.log_end_offset:
            self.flushed_offset = self.log_end_offset
            self.on_promised(self)

    def check_shortage(self) -> None:
        """Nothing is ever short here."""

    async def truncate_to(self, offset: int) -> None:
        async with self._lock:
            await self.flush()
            if not self.log_start_offset <= offset <= self.flushed_offset:
                raise OffsetOutOfRangeError(f"Cannot truncate to {offset}")
            await self._pause()
            kept = [each for each in self.batches if each.end <= offset]
            end = kept[-1].end if kept else self.log_start_offset
            if kept == self.batches:
                return
            self.batches = kept
            self.log_end_offset = self.flushed_offset = Offset(max(end, self.log_start_offset))
            self.epochs.truncate_to(self.log_end_offset)

    async def start_at(self, offset: int) -> None:
        """Begin anew, by the steps of a `PartitionLog`: a crash may come after each of them."""
        async with self._lock:
            await self._pause()
            if offset > self.log_start_offset:
                self._disk_start = offset
            self._left = [each for each in self.batches if each.end <= self.flushed_offset]
            while self._left:
                await self._pause()
                self._left.pop()
            self._disk_start = offset
            await self._pause()
            self._left, self.batches = None, []
            self.log_start_offset = self.log_end_offset = self.flushed_offset = Offset(offset)
            self.epochs.truncate_to(Offset(0))

    async def trim_to(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.trims.append(offset)
        try:
            async with self._lock:
                await self._pause(self.trim_pauses)
                if offset > self.promised_offset:
                    raise OffsetOutOfRangeError(f"{offset} is not promised")
                if offset > self.log_start_offset:
                    self._disk_start = offset
                    await self._pause()
                    self.log_start_offset = Offset(offset)
                    self.epochs.trim_to(Offset(offset))
                    self.batches = [each for each in self.batches if each.end > offset]
        finally:
            self.trims.remove(offset)

    async def _pause(self, choices: tuple[int, ...] = PAUSES) -> None:
        for _ in range(self.rng.choice(choices)):
            await asyncio.sleep(0)
            if self.is_dead:
                raise KafkaStorageError("The process has gone")

    def reopened(self) -> "PlainLog":
        """Return what the disk has after a power cut; nothing happens to this one any more."""
        self.is_dead = True
        held, end = self._left, self.flushed_offset
        if held is None:
            held = [each for each in self.batches if each.end <= end]
        else:
            end = Offset(held[-1].end if held else 0)
        return self.holding(held, self._disk_start, end)

    def holding(self, batches: list[PlainBatch], start: int, end: int) -> "PlainLog":
        """Return a log of the same partition that has these batches on its disk, and ends there.

        One that would end before its start is empty.
        """
        found = PlainLog(self.topic_id, self.rng)
        found.trim_pauses = self.trim_pauses
        found.batches = [each for each in batches if each.end > start]
        found.log_start_offset, found._disk_start = Offset(start), start
        found.log_end_offset = found.flushed_offset = Offset(max(start, end))
        for each in found.batches:
            found.epochs.assign(LeaderEpoch(each.epoch), Offset(max(each.base, 0)))
        found.epochs.trim_to(found.log_start_offset)
        return found

    def content(self, start: int, end: int) -> dict[int, bytes]:
        """Return what is at each offset in [start, end): the batch that holds it."""
        return {
            offset: each.data
            for each in self.batches
            for offset in range(max(each.base, start), min(each.end, end))
        }
