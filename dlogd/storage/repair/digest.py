"""Digests of a log on disk, by ranges of offsets, for comparison between replicas.

Segments end elsewhere on each replica, offsets do not: a range holds the batches that begin within
a step of offsets. Its checksum is over the heads of these batches, each of which has the checksum
of its batch, which is verified here. So equal checksums mean equal bytes. Memory is never asked:
what is there says nothing about the disk. Damage of closed segments is noted in the log, which is
mended then. Owner: the event loop's thread.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from dlog.checksum import crc32c
from dlog.errors import KafkaStorageError
from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ReadBuffer
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log.segment_opener import guarded
from dlogd.storage.repair.scrubber import PIECE_BYTES
from dlogd.storage.segment.batch_scan import next_good
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.segment_verifier import SegmentVerifier

STEP = 10_000
BYTES_MAX = 32 << 20
"""What one digest reads at most; the next one goes on."""
RATE = 64 << 20
"""Bytes per second: others read from the disk as well."""


@dataclass(slots=True)
class Range:
    """Some batches in a row. `next_offset` is exclusive."""

    first_offset: int
    next_offset: int
    crc: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Digest:
    """What was found from `first_offset` up to `next_offset`."""

    first_offset: int
    next_offset: int
    ranges: list[Range] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)  # offsets, the end exclusive
    read_bytes: int = 0


class DigestWalk:
    """One digest. `run` once."""

    def __init__(
        self,
        opened: PartitionLog,
        first: int,
        end: int,
        *,
        step: int = STEP,
        limit: int = BYTES_MAX,
    ) -> None:
        """Of the batches that begin in [first, end), both within the log."""
        self.found = Digest(first, first)
        self._log = opened
        self._end = end
        self._step = step
        self._limit = limit

    async def run(self) -> Digest:
        """Read until the end or the limit. Raises KafkaStorageError when the log fails."""
        found = self.found
        while found.next_offset < self._end and found.read_bytes < self._limit:
            place = await self._log.locate(found.next_offset)
            if place is None:
                self._skip()
            else:
                await self._walk(*place)
        return found

    def _skip(self) -> None:
        """Nobody can say where the next batch is: pass the segment over.

        Raises KafkaStorageError when it is no longer part of the log.
        """
        found, log = self.found, self._log
        if not log.log_start_offset <= found.next_offset < log.log_end_offset:
            raise KafkaStorageError(
                f"{log.directory.path} has changed meanwhile: it is from {log.log_start_offset}"
                f" to {log.log_end_offset} now"
            )
        segment = self._log.segment_of(found.next_offset)
        end = min(self._end, self._log.end_offset_of(segment))
        found.damaged.append((found.next_offset, end))
        found.next_offset = max(end, found.next_offset + 1)

    async def _walk(self, segment: Segment, base_offset: int, position: int) -> None:
        state, engine = self._log, self._log.services.engine
        open_file = partial(
            segment.directory.open,
            file_name(segment.base_offset),
            direct=segment.direct,
            read_only=True,
        )
        file = await guarded(state, engine.run(open_file), segment)
        try:
            await self._walk_file(file, segment, base_offset, position)
        finally:
            await asyncio.shield(engine.run(file.close))

    async def _walk_file(
        self, file: File, segment: Segment, base_offset: int, position: int
    ) -> None:
        found, state = self.found, self._log
        cut_count = segment.cut_count
        is_sealed = segment.state is SegmentState.SEALED
        end_position = segment.end_position if is_sealed else segment.written_position
        check = SegmentVerifier(base_offset, end_position, self._visit)
        check.resume(position, base_offset)
        while check.position < end_position and check.expected_offset < self._end:
            before = check.position
            length = min(PIECE_BYTES, end_position - before)
            check.feed(memoryview(await self._read(file, segment, before, length)))
            if segment.cut_count != cut_count or segment.state is SegmentState.DROPPED:
                raise KafkaStorageError(f"{segment.path} has changed meanwhile")
            found.read_bytes += max(0, check.position - before)
            if check.is_bad:
                await self._pass_over(file, segment, check)
            found.next_offset = max(found.next_offset, min(check.expected_offset, self._end))
            if found.read_bytes >= self._limit:
                return
            await asyncio.sleep(length / RATE)
        if check.expected_offset < self._end and segment is state.active:
            raise KafkaStorageError(f"{segment.path} is not written up to {self._end} yet")

    def _visit(self, head: bytes) -> None:
        offset = int.from_bytes(head[:8], "big")
        found = self.found
        if not found.first_offset <= offset < self._end:
            return  # a batch that begins before, and is another range's
        size = int.from_bytes(head[8:12], "big") + 12
        following = offset + int.from_bytes(head[23:27], "big") + 1
        last = found.ranges[-1] if found.ranges else None
        if last is None or offset // self._step != last.first_offset // self._step:
            last = Range(offset, following)
            found.ranges.append(last)
        last.next_offset = following
        last.crc = crc32c(head, last.crc)
        last.bytes += size

    async def _pass_over(self, file: File, segment: Segment, check: SegmentVerifier) -> None:
        cut_count, log = segment.cut_count, self._log
        bad = check.batch_position
        search = partial(next_good, file, bad, check.end_position, bad, check.expected_offset)
        found = await guarded(log, log.services.engine.run(search), segment)
        end_offset = int(log.end_offset_of(segment))
        position, offset = found or (check.end_position, end_offset)
        self.found.damaged.append((check.expected_offset, offset))
        if segment.state is SegmentState.SEALED and segment.cut_count == cut_count:
            # As the scrub does, which reads the same segments: the node mends it, and says so.
            log.damage.note(segment.path, bad, check.expected_offset, offset, position)
        check.resume(position, offset)

    async def _read(self, file: File, segment: Segment, position: int, length: int) -> bytes:
        state = self._log
        engine = state.services.engine
        future = state.services.loop.create_future()
        engine.read(file, position, min(length, engine.read_length_max), partial(_settle, future))
        return bytes(await guarded(state, state.answer(future), segment))


def _settle(future: "asyncio.Future[bytes]", result: ReadBuffer | OSError) -> None:
    if isinstance(result, OSError):
        if not future.done():
            future.set_exception(result)
        return
    data = bytes(result.view)
    result.release()
    if not future.done():
        future.set_result(data)
