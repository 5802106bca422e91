"""Reader of a partition log: where a read begins and ends.

Only places are found here, by the indexes and by the heads of a few batches; the bytes themselves
are streamed by the caller, from memory or by the engine. Owner: the event loop's thread.
"""

from bisect import bisect_right
from collections.abc import Awaitable
from typing import NamedTuple, TypeVar

from dlog.batch.header import LENGTH, LENGTH_OVERHEAD_BYTES, MAX_TIME, next_offset_of, size_of
from dlog.errors import KafkaStorageError, OffsetOutOfRangeError
from dlog.types import Offset
from dlogd.storage.io.io_engine import ReadBuffer
from dlogd.storage.log.batch_lookup import BatchLookup, Place, ReadPosition, cursor_of
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.log_state import LogState
from dlogd.storage.log.segment_opener import SegmentOpener, guarded
from dlogd.storage.segment.segment import Segment, SegmentRange, SegmentState

CURSORS_MAX = 32
"""Places remembered per log: found by a search, or the end of a segment or of its file. A read that
ended between two index entries, and not in memory, goes on by a search of the disk."""

T = TypeVar("T")


class Read(NamedTuple):
    """What a read may send: whole batches, the first of which begins with `base_offset`."""

    ranges: list[SegmentRange]
    base_offset: int
    bytes: int


class LogReader:
    """Reads of one log."""

    __slots__ = ("_cursors", "_cut_count", "_locator", "_opener", "_state")

    def __init__(self, state: LogState, maintenance: LogJobs) -> None:
        self._state = state
        self._opener = SegmentOpener(state, maintenance)
        self._locator = BatchLookup(state, self.bytes_of)
        self._cursors: dict[int, ReadPosition] = {}
        self._cut_count = 0

    def forget(self, offset: int) -> None:
        """Forget all remembered places, and damage at or behind `offset`: the log was cut there."""
        self._cursors.clear()
        self._state.damage.forget(offset)
        self._cut_count += 1

    # -- reads

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, minimum_one: bool = True
    ) -> Read | None:
        """Find the batches from the one that holds `offset` on, all below `end_offset`.

        None when a disk has to be asked: `await locate(offset)` and try again. A range ends within
        one segment, so less than `max_bytes` may be found although more is there.
        """
        state = self._state
        if state.failed is not None:
            raise state.failed.with_traceback(None)
        if not state.log_start_offset <= offset <= state.log_end_offset:
            raise OffsetOutOfRangeError(
                f"Offset {offset} of {state.topic_partition} is not within"
                f" [{state.log_start_offset}, {state.log_end_offset}]"
            )
        if offset >= end_offset:
            return Read([], offset, 0)
        state.damage.check(offset)
        segment = state.segment_of(offset)
        if segment.file is None and segment.state is not SegmentState.CREATING:
            return None
        try:
            cursor = self._look_up(segment, offset)
            if cursor is None:
                return None
            start = cursor.position
            end = self._end(segment, cursor, start + max_bytes, end_offset, minimum_one)
        except OSError as error:
            raise state.fail_read(error) from error
        if end is None:
            return None
        if end <= start:
            return Read([], cursor.base_offset, 0)
        services = state.services
        services.open_segments.touch(segment)
        if segment.tail.holds(start):
            services.metrics.tail_reads_total += 1
        else:
            services.metrics.disk_reads_total += 1
        is_whole = end_offset >= state.end_offset_of(segment)
        readable_end = max(end, segment.written_position if is_whole else 0)
        found = SegmentRange(segment, start, end - start, readable_end)
        return Read([found], cursor.base_offset, end - start)

    def place_in_active(self, offset: int, near: tuple[int, int] | None = None) -> int | None:
        """Return the position in the active segment where the batch of `offset` begins.

        `near`: an offset before it and the position of that one, to begin the search at. None: the
        offset is in an earlier segment, within a batch, or not found in memory.
        """
        state = self._state
        segment = state.active
        if offset >= state.log_end_offset:
            return segment.tail.end
        if offset == segment.written_offset:
            return segment.written_position
        if offset < segment.base_offset:
            return None
        place = max(segment.index.floor_offset(offset) or (segment.base_offset, 0), near or (0, 0))
        base_offset, position = place
        while base_offset < offset:
            fields = segment.tail.batch_fields(position)
            if fields is None:
                return None
            base_offset = next_offset_of(fields)
            position += size_of(fields)
        return position if base_offset == offset else None

    def _known(self, segment: Segment, offset: int) -> ReadPosition | None:
        """Return the remembered place of `offset`, unless the log has rolled there since."""
        cursor = self._cursors.get(offset)
        return cursor if cursor is not None and cursor.segment is segment else None

    def _look_up(self, segment: Segment, offset: int) -> ReadPosition | None:
        """Find the batch that holds `offset`; None as well when it has been sent in vain."""
        known = self._known(segment, offset)
        cursor = known or self._find(segment, offset)
        if cursor is not None and cursor.position < segment.written_position:
            is_on_disk = segment.tail.batch_fields(cursor.position) is None
            if is_on_disk and self._state.damage.is_doubtful(offset, is_known=known is not None):
                return None
        return cursor

    def _find(self, segment: Segment, offset: int) -> ReadPosition | None:
        """Find the batch that holds `offset` by the index and the batches in memory."""
        place = segment.index.floor_offset(offset)
        if place is None:
            return None
        base_offset, position = place
        while base_offset != offset:
            fields = segment.tail.batch_fields(position)
            if fields is None:
                return None
            next_offset = next_offset_of(fields)
            if offset < next_offset:
                break
            base_offset, position = next_offset, position + size_of(fields)
        return ReadPosition(segment, base_offset, position, [], [])

    def _end(
        self,
        segment: Segment,
        cursor: ReadPosition,
        target: int,
        end_offset: int,
        minimum_one: bool,
    ) -> int | None:
        """Return the largest known batch boundary that the limits allow.

        `target`: position that the range should not pass, unless one batch does and `minimum_one`.
        """
        segment_end = self._state.end_offset_of(segment)
        if end_offset >= segment_end:
            limit = segment.tail.end
            if limit <= target:
                if segment is self._state.active:
                    self._remember(segment, segment_end, limit)
                return limit
        elif end_offset == segment.written_offset:
            limit = segment.written_position
            if limit <= target:
                self._remember(segment, end_offset, limit)
                return limit
        else:
            found = self._boundary(segment, cursor, end_offset)
            if found is None or found <= target:
                return found
            limit = found
        place = segment.index.floor_position(target)
        if place is not None and place[1] > cursor.position:
            return min(place[1], limit)
        return self._few(segment, cursor, target, limit, minimum_one)

    def _boundary(self, segment: Segment, cursor: ReadPosition, end_offset: int) -> int | None:
        """Return the position where `end_offset` begins, or a boundary before it."""
        known = self._known(segment, end_offset)
        if known is not None:
            return known.position
        place = segment.index.floor_offset(end_offset)
        if place is None:
            return None
        base_offset, position = place
        if position <= cursor.position:
            # The end is near the start: walk from there instead.
            base_offset, position = cursor.base_offset, cursor.position
        while base_offset < end_offset:
            fields = segment.tail.batch_fields(position)
            if fields is None:
                break
            base_offset, position = (
                next_offset_of(fields),
                position + size_of(fields),
            )
            if base_offset > end_offset:
                return position - fields[LENGTH] - LENGTH_OVERHEAD_BYTES
        if position > cursor.position or base_offset == end_offset:
            return position
        if not cursor.offsets:
            return None
        number = bisect_right(cursor.offsets, end_offset) - 1
        return cursor.positions[number] if number >= 0 else cursor.position

    def _few(
        self, segment: Segment, cursor: ReadPosition, target: int, limit: int, minimum_one: bool
    ) -> int | None:
        """Return where the batches end that fit before `target`, all between two index entries."""
        position = end = cursor.position
        while position < limit:
            fields = segment.tail.batch_fields(position)
            if fields is None:
                break
            position += size_of(fields)
            if position > target:
                return position if end == cursor.position and minimum_one else end
            end = position
        if end > cursor.position:
            return end
        if not cursor.positions:
            return None
        number = bisect_right(cursor.positions, min(target, limit)) - 1
        if number >= 0:
            return cursor.positions[number]
        return cursor.positions[0] if minimum_one else cursor.position

    def _remember(self, segment: Segment, offset: int, position: int) -> None:
        """Note where the batch with `offset` begins or will begin: the next read asks for it."""
        self._add(offset, ReadPosition(segment, offset, position, [], []))

    def _add(self, offset: int, cursor: ReadPosition) -> None:
        cursors = self._cursors
        cursors.pop(offset, None)
        while len(cursors) >= CURSORS_MAX:
            del cursors[next(iter(cursors))]
        cursors[offset] = cursor

    def position_of(self, offset: int) -> tuple[Segment, int, int] | None:
        """Return segment, base offset and position of the batch that holds `offset`, if known."""
        segment = self._state.segment_of(offset)
        try:
            cursor = self._known(segment, offset) or self._find(segment, offset)
        except OSError as error:
            raise self._state.fail_read(error) from error
        return None if cursor is None else (segment, cursor.base_offset, cursor.position)

    # -- asking the disk

    async def locate(self, offset: int) -> tuple[Segment, int, int] | None:
        """Find the batch that holds `offset`, so that `read` can begin with it; say where it is."""
        await self.guard(self._locate(offset))
        return self.position_of(offset)

    async def _locate(self, offset: int) -> None:
        state = self._state
        if not state.log_start_offset <= offset < state.log_end_offset:
            return
        segment = state.segment_of(offset)
        await self.open(segment)
        place = segment.index.floor_offset(offset)
        if place is None:
            return
        following = segment.index.after_position(place[1])
        end = segment.tail.end
        if following is not None and following[1] < end:
            end = following[1]
        next_offset = state.end_offset_of(segment)
        if following is not None and following[1] == end:
            next_offset = Offset(following[0])
        cut_count = self._cut_count
        segment.acquire()  # so that its file stays open
        try:
            found = await self._locator.find(
                segment, Place(*place), Place(next_offset, end), offset
            )
        finally:
            segment.release()
        if state.segment_of(offset) is not segment or cut_count != self._cut_count:
            return
        if found.bad and (
            segment.file is None or end > segment.written_position or not state.is_working
        ):
            raise self._changed(segment, found.bad[0].position)
        for bad in found.bad:
            state.damage.note(segment.path, *bad)
        cursor = cursor_of(segment, found.position, found.batches, offset)
        if cursor is not None:
            self._add(offset, cursor)

    async def open(self, segment: Segment) -> None:
        """Open the files of a segment for reading, unless they are."""
        await self._opener.open(segment)

    async def heads(self, segment: Segment, start: int, end: int) -> list[tuple[int, ...]]:
        """Return the heads of the batches in [start, end), both of which are boundaries."""
        heads, damaged_position = await self._locator.walk(segment, start, end)
        if damaged_position is not None:
            raise self._changed(segment, damaged_position)
        return heads

    async def newest_before(self, segment: Segment, offset: int, position: int) -> int:
        """Return the largest timestamp in ms from the last entry of the index to where it ends.

        Batches in a damaged place do not count; -1 when none is left.
        """
        start = segment.index.floor_position(position) or (segment.base_offset, 0)
        found = await self._locator.around(segment, Place(*start), Place(offset, position))
        return max((fields[MAX_TIME] for fields in found.before + found.behind), default=-1)

    async def bytes_of(self, segment: Segment, position: int, length: int) -> bytes:
        """Return bytes of a segment from memory or from the file; shorter only at its end."""
        return b"".join(await self.parts_of(segment, position, length))

    async def parts_of(self, segment: Segment, position: int, length: int) -> list[bytes]:
        """Do as `bytes_of`, without a copy that makes one of many."""
        parts = []
        segment.acquire()
        try:
            while length > 0:
                view = segment.memory_view(position, length)
                part = bytes(view or b"") or await self._from_file(segment, position, length)
                if not part:
                    break
                parts.append(part)
                position += len(part)
                length -= len(part)
        finally:
            segment.release()
        return parts

    async def bytes_in_file(self, segment: Segment, position: int, length: int) -> bytes:
        """Return bytes of an open segment that no memory holds. Raises OSError as it comes."""
        parts = []
        while part := await self._read_file(segment, position, length):
            parts.append(part)
            position += len(part)
            length -= len(part)
        return b"".join(parts)

    async def _from_file(self, segment: Segment, position: int, length: int) -> bytes:
        return await self.guard(self._read_file(segment, position, length))

    async def _read_file(self, segment: Segment, position: int, length: int) -> bytes:
        services = self._state.services
        length = min(length, segment.written_position - position, services.engine.read_length_best)
        if length <= 0 or segment.file is None:
            return b""
        future = services.loop.create_future()

        def on_read(result: ReadBuffer | OSError) -> None:
            if isinstance(result, OSError):
                if not future.done():
                    future.set_exception(result)
                return
            data = bytes(result.view)
            result.release()
            if not future.done():
                future.set_result(data)

        services.engine.read(segment.file, position, length, on_read)
        return await self._state.answer(future)

    def _changed(self, segment: Segment, position: int) -> KafkaStorageError:
        """Say why there is no batch: dropped or cut while it was read, or else damaged."""
        return KafkaStorageError(
            f"{segment.path} has no batch at {position} ({segment.state.name})"
        )

    async def guard(self, work: Awaitable[T]) -> T:
        """Await I/O; its errors become ours, and those of the disk take the log out of service."""
        return await guarded(self._state, work)
