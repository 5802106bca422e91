"""State that the parts of one partition log share: segments, offsets, failure.

`dlogd.storage.log.partition_log.PartitionLog` is this state with the public operations; flushing,
maintenance and reading each get it as their first argument.
"""

import asyncio
import errno
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dlog.batch.header import BASE_OFFSET, LEADER_EPOCH, next_offset_of
from dlog.errors import KafkaStorageError, OffsetOutOfRangeError, WireError
from dlog.types import NO_EPOCH, LeaderEpoch, Offset, PartitionId, TopicId, TopicPartition
from dlogd.runtime.clock import Clock
from dlogd.runtime.fair_lock import FairLock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.emergency_space import EmergencySpace
from dlogd.storage.io.errnos import SHORTAGES
from dlogd.storage.io.files import Directory
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_offsets import LogOffsets
from dlogd.storage.segment.bad_ranges import BadRanges
from dlogd.storage.segment.leader_epochs import EpochHistory
from dlogd.storage.segment.open_file_cache import OpenFileCache
from dlogd.storage.segment.segment import Segment
from dlogd.storage.segment.segment_info import SegmentInfo, describe
from dlogd.telemetry.metrics import StorageMetrics

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogServices:
    """What all logs of a node use together."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    engine: Engine
    memory: AppendMemory
    tasks: Tasks
    metrics: StorageMetrics
    open_segments: OpenFileCache
    spare: EmergencySpace | None = None  # of the data directory
    unpacking: FairLock = field(default_factory=FairLock)
    """Held while batches are unpacked: a few KiB may become RECORDS_BYTES_MAX."""
    remembering: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one closed segment that is read in the background for its timestamps."""


class LogState(LogOffsets):
    """The state of one partition log.

    Invariant: 0 <= log_start_offset <= flushed_offset <= promised_offset <= log_end_offset.
    Invariant: `segments` ascend by base offset, `bases` are their base offsets, the last is active.
    """

    __slots__ = (
        "_holds",
        "_unanswered",
        "active",
        "bases",
        "blocked",
        "closed",
        "config",
        "cut_ceiling",
        "cut_count",
        "cut_offset",
        "damage",
        "directory",
        "epochs",
        "failed",
        "flush_waiters",
        "given_up",
        "last_epoch",
        "lock",
        "on_cut",
        "on_failure",
        "on_promised",
        "on_sealed",
        "refusal",
        "segments",
        "services",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        directory: Directory,
        config: LogConfig,
        services: LogServices,
    ) -> None:
        super().__init__()
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.services = services
        self.segments: list[Segment] = []
        self.bases: list[int] = []
        self.active: Segment  # the last of `segments`; there is one as soon as the log is open
        self.epochs = EpochHistory()
        self.last_epoch: LeaderEpoch = self.epochs.latest
        # Set once, never cleared: the log neither appends nor reads any more.
        self.failed: WireError | None = None
        # Set while nothing may be appended: by the log itself (failed, closed, what `hold` says),
        # and by its manager (the disk's reserve is touched).
        self.blocked: WireError | None = None
        self.damage = BadRanges()
        self.lock = asyncio.Lock()  # of slow jobs: one at a time
        self._holds: dict[str, WireError] = {}
        self.refusal: WireError | None = None
        self.closed = False
        # The disk hangs: what it was given may end at any time, or never, and nobody waits for it.
        self.given_up = False
        self._unanswered: dict[asyncio.Future[Any], None] = {}
        self.on_promised: Callable[[Any], None] = _ignore
        self.on_sealed: Callable[[Segment], None] = _ignore
        self.on_failure: Callable[[Any, OSError], None] = _ignore_failure
        # Awaited before the end is cut back, while `cut_ceiling` says how far: nothing on disk may
        # go on saying that there was more.
        self.on_cut: Callable[[Any], Awaitable[None]] = _no_notes
        self.cut_ceiling: Offset | None = None
        # Whatever was planned before a cut is meant for what was there before.
        self.cut_count = 0
        self.cut_offset = Offset(0)  # of the last one
        self.flush_waiters: list[tuple[Offset, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic_partition}>"

    @property
    def key(self) -> tuple[TopicId, PartitionId]:
        """What tells logs apart, whatever becomes of their topics' names."""
        return self.topic_id, self.topic_partition.partition

    # -- segments

    def begin_segment(self, base_offset: int, end: int = 0, prefix: bytes = b"") -> Segment:
        """Make a segment object the active one."""
        config = self.config
        segment = Segment(
            self.directory,
            base_offset,
            self.services.memory,
            durable=config.durable,
            direct=config.direct_writes,
            end=end,
            prefix=prefix,
        )
        segment.on_read_error = self.fail_read
        self.segments.append(segment)
        self.bases.append(base_offset)
        self.active = segment
        return segment

    def segment_of(self, offset: int) -> Segment:
        """Return the segment that `offset` belongs to."""
        if not self.segments:
            return self.active  # dropped: the log begins anew
        active = self.segments[-1]
        if offset >= active.base_offset:
            return active
        return self.segments[max(0, bisect_right(self.bases, offset) - 1)]

    def end_offset_of(self, segment: Segment) -> Offset:
        """Return the offset after the segment's last record."""
        if not self.segments or segment is self.segments[-1]:
            return self.log_end_offset
        return Offset(segment.end_offset)

    def segment_infos(self) -> list[SegmentInfo]:
        """Describe all segments, oldest first; the last is the active one."""
        return [describe(segment, self.end_offset_of(segment)) for segment in self.segments]

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, without what is preallocated."""
        return sum(segment.tail.end for segment in self.segments)

    # -- progress

    def advance(self, flushed: int, promised: int) -> None:
        """Move the offsets forward, and tell who waits."""
        is_news = promised != self.promised_offset
        self.promise(flushed, promised)
        if self.flush_waiters:
            self._wake_flush_waiters()
        if is_news:
            self.on_promised(self)

    def flushed_to(self, offset: Offset) -> "asyncio.Future[None]":
        """Return a future that is done when all below `offset` is on stable storage."""
        future = self.services.loop.create_future()
        if self.failed is not None:
            future.set_exception(self.failed)
        elif self.flushed_offset >= offset:
            future.set_result(None)
        else:
            self.flush_waiters.append((offset, future))
        return future

    def _wake_flush_waiters(self) -> None:
        waiting = self.flush_waiters
        self.flush_waiters = [entry for entry in waiting if entry[0] > self.flushed_offset]
        for offset, future in waiting:
            if offset <= self.flushed_offset and not future.done():
                future.set_result(None)

    def end_flush_waits(self) -> None:
        """The log was cut: all that is left of it is on stable storage, and nothing else comes."""
        waiting, self.flush_waiters = self.flush_waiters, []
        for _, future in waiting:
            if not future.done():
                future.set_result(None)

    def hold(self, reason: str, error: WireError) -> None:
        """Refuse appends with `error` until `resume(reason)`."""
        # The first error of a reason stays: `resume` knows it by its identity.
        held = self._holds.setdefault(reason, error)
        self.blocked = self.blocked or held

    @property
    def refuses_appends(self) -> bool:
        """Whether nothing may be appended now."""
        return self.blocked is not None or self.refusal is not None

    def resume(self, reason: str) -> None:
        """Take appends again, unless something else holds them up."""
        error = self._holds.pop(reason, None)
        if error is not None and self.blocked is error:
            self.blocked = next(iter(self._holds.values()), None)

    def fail(self, error: OSError) -> None:
        """Take the log out of service for good, and tell who waits; only the first error counts."""
        if self.failed is not None or self.closed:
            return
        log.error("Log failed partition=%s error=%s", self.topic_partition, error)
        self.failed = self.blocked = KafkaStorageError(
            f"{self.topic_partition} is out of service after an I/O error: {error}."
            " Check its disk, then restart the node"
        )
        self.services.metrics.flush_failures_total += 1
        self.give_memory_back()
        self.end_waiting(self.failed)
        self.on_promised(self)
        self.on_failure(self, error)

    def fail_read(self, error: OSError) -> KafkaStorageError:
        """Let an error of a read have its effect on the log; return what the reader is told.

        Some file systems need space to overwrite: the head of an index, or what is mended. Nothing
        is lost where there is none, and it is asked for again.
        """
        if error.errno not in SHORTAGES:
            self.fail(error)
        return KafkaStorageError(f"{self.topic_partition}: {error}")

    async def answer(self, future: "asyncio.Future[T]") -> T:
        """Wait for a read or a write, unless the disk hangs: raise OSError (ETIMEDOUT) then.

        Who sets the future looks whether it is done.
        """
        if self.given_up:
            raise self._hanging()
        self._unanswered[future] = None
        try:
            return await future
        finally:
            del self._unanswered[future]

    def end_unanswered(self) -> None:
        """The disk has been given up: tell who waits for its answers."""
        self.given_up = True
        for future in self._unanswered:
            if not future.done():
                future.set_exception(self._hanging())

    def _hanging(self) -> OSError:
        return OSError(errno.ETIMEDOUT, "The disk hangs", self.directory.path)

    def give_memory_back(self) -> None:
        """Drop all tails: what is only in memory is lost. For a log that has ended or failed."""
        raise NotImplementedError

    def change_policy(self) -> None:
        """Write what comes next as the settings say."""
        raise NotImplementedError

    def check_trim(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError when the log may not begin at `offset`: not promised yet."""
        if offset > self.promised_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition} has records up to {self.promised_offset} only"
            )

    def check_history(self, offset: int, cut_count: int) -> None:
        """Raise KafkaStorageError when what is below `offset` may have been cut since then."""
        cuts = self.cut_count - cut_count
        if cuts > 1 or (cuts and offset > self.cut_offset):
            raise KafkaStorageError(f"{self.topic_partition} was cut back to {self.cut_offset}")

    def end_waiting(self, error: WireError) -> None:
        """Tell who waits for a flush that it will not come."""
        waiting, self.flush_waiters = self.flush_waiters, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Return the leader epoch of the batch that holds `offset`, NO_EPOCH when there is none."""
        return self.epochs.epoch_at(Offset(offset))

    def epoch_of_batch(self, base_offset: int, next_offset: int) -> LeaderEpoch:
        """Return the leader epoch that a batch must have, which no checksum covers.

        NO_EPOCH when that is not known: of what is below the log's start. The start may be in a
        batch.
        """
        start = self.log_start_offset
        return NO_EPOCH if next_offset <= start else self.epoch_at(max(base_offset, start))

    def has_its_epoch(self, fields: tuple[int, ...]) -> bool:
        """Whether the batch with this head has the leader epoch that it must have."""
        wanted = self.epoch_of_batch(fields[BASE_OFFSET], next_offset_of(fields))
        return wanted in (fields[LEADER_EPOCH], NO_EPOCH)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """Return the largest epoch <= `epoch` in the log and where it ends (exclusive)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    @property
    def is_working(self) -> bool:
        """Whether background work still makes sense."""
        return self.failed is None and not self.closed


def _ignore(_: Any) -> None:
    """Nobody waits for promises, or for closed segments."""


async def _no_notes(_: LogState) -> None:
    """Nobody keeps notes about this log."""


def _ignore_failure(_: LogState, __: OSError) -> None:
    """Nobody asked to be told."""
