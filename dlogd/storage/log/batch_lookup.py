"""Lookup of batches on disk between two index entries, and which of them are bad.

Part of `dlogd.storage.log.log_reader`, for what is not in memory. Owner: the event loop's thread.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from dlog.batch.header import (
    BASE_OFFSET,
    BATCH_STRUCT,
    FORMAT,
    HEADER_BYTES,
    LAST_DELTA,
    MAGIC,
    follows_on,
    next_offset_of,
    size_of,
    verify_crc,
)
from dlogd.storage.log.log_state import LogState
from dlogd.storage.segment.batch_scan import Fields, next_good
from dlogd.storage.segment.segment import Segment

_PEEK_BYTES = 8 * 1024

BytesOf = Callable[[Segment, int, int], Awaitable[bytes]]
"""`bytes_of(segment, position, length)`: from memory or from the file; shorter only at its end."""


class Place(NamedTuple):
    """Where a batch begins, and with which offset; or where the last one ends."""

    offset: int
    position: int


class Bad(NamedTuple):
    """A damaged place, as `Damage.note` wants it. What ends is exclusive."""

    position: int
    first_offset: int
    next_offset: int
    end_position: int


class Found(NamedTuple):
    """Batches in a row, the first at `position`, and what is damaged before or behind them."""

    position: int
    batches: list[Fields]
    bad: list[Bad]


class Around(NamedTuple):
    """The batches in a row before a damaged place, the place, if there is one, and those behind."""

    before: list[Fields]
    bad: Bad | None
    behind: list[Fields]


class BatchLookup:
    """Walks over the batches of one log. The caller holds the segment, and guards against errors.

    What it returns may be outdated: the log may have been cut meanwhile.
    """

    __slots__ = ("_bytes_of", "_state")

    def __init__(self, state: LogState, bytes_of: BytesOf) -> None:
        self._state = state
        self._bytes_of = bytes_of

    async def find(self, segment: Segment, start: Place, end: Place, offset: int) -> Found:
        """Find the batches around `offset` between `start` and `end`, entries of the index."""
        before, bad, behind = await self.around(segment, start, end)
        found = Found(start.position, before, [])
        if bad is not None:
            if behind and bad.next_offset <= offset:
                found = Found(bad.end_position, behind, [])
            found.bad.append(bad)
        rotten = await self._rotten(segment, found, offset)
        if rotten is not None:
            found.bad.append(rotten)
        return found

    async def around(self, segment: Segment, start: Place, end: Place) -> Around:
        """Find the batches between `start` and `end` on both sides of a damaged place.

        The heads behind it count when they lead to `end` exactly: what looks like a batch in the
        content of another one does not.
        """
        before, bad_position = await self._walk_strictly(segment, start, end)
        if bad_position is None:
            return Around(before, None, [])
        bad = Place(_end_of(before) if before else start.offset, bad_position)
        good = await self._good_after(segment, bad, end)
        # Walked to the end whatever is asked for: nobody else's batch fits into a damaged place
        # that ends at what only looks like a batch.
        behind, second = await self._walk_strictly(segment, good, end)
        if second is not None or not self._leads_to(behind, end):
            good, behind = end, []
        return Around(before, Bad(bad.position, bad.offset, good.offset, good.position), behind)

    def _leads_to(self, batches: list[Fields], end: Place) -> bool:
        reached = _end_of(batches) if batches else -1
        return reached == end.offset and all(map(self._state.has_its_epoch, batches))

    async def _good_after(self, segment: Segment, bad: Place, end: Place) -> Place:
        """Return where good batches go on behind a bad one, `end` when that is not to be found."""
        for known in self._state.damage.places:
            if (known.path, known.position) == (segment.path, bad.position):
                is_within = known.end_position < end.position
                return Place(known.next_offset, known.end_position) if is_within else end
        file = segment.file
        if file is None or end.position > segment.written_position:
            return end
        search = partial(next_good, file, bad.position, end.position, bad.position, bad.offset)
        found = await self._state.services.engine.run(search)
        if found is None or not bad.offset < found[1] < end.offset:
            return end
        return Place(found[1], found[0])

    async def _rotten(self, segment: Segment, found: Found, offset: int) -> Bad | None:
        """Return the batch that holds `offset` when it is not as it was written.

        Looked at only when its readers have asked again and again: nobody else looks at records.
        """
        if not self._state.damage.is_suspect(offset):
            return None
        position = found.position
        for fields in found.batches:
            size, following = size_of(fields), next_offset_of(fields)
            if fields[BASE_OFFSET] <= offset < following:
                data = await self._bytes_of(segment, position, size)
                is_good = self._state.has_its_epoch(fields) and verify_crc(data, 0, len(data))
                if len(data) == size and not is_good:
                    return Bad(position, fields[BASE_OFFSET], following, position + size)
                self._state.damage.vouch(offset)
                break
            position += size
        return None

    async def _walk_strictly(
        self, segment: Segment, start: Place, end: Place
    ) -> tuple[list[Fields], int | None]:
        """Do as `walk`; a batch that leads astray by what its head says counts as none."""
        batches, bad_position = await self.walk(segment, start.position, end.position, start.offset)
        # Behind the last one there is no head that would tell that its number of offsets is wrong.
        if batches and (bad_position is not None or _end_of(batches) != end.offset):
            size = size_of(batches[-1])
            position = (end.position if bad_position is None else bad_position) - size
            data = await self._bytes_of(segment, position, size)
            if len(data) < size or not verify_crc(data, 0, size):
                batches.pop()
                bad_position = position
        return batches, bad_position

    async def walk(
        self, segment: Segment, start: int, end: int, expected: int | None = None
    ) -> tuple[list[Fields], int | None]:
        """Return the heads of the batches in [start, end), and where there is none but should be.

        With `expected`, the offset at `start`, also one that leaves a gap counts as none.
        """
        heads: list[Fields] = []
        position = start
        data, data_start = b"", start
        while end - position >= HEADER_BYTES:
            index = position - data_start
            if index + HEADER_BYTES > len(data):
                data = await self._bytes_of(segment, position, min(_PEEK_BYTES, end - position))
                data_start, index = position, 0
                if len(data) < HEADER_BYTES:
                    break
            fields = BATCH_STRUCT.unpack_from(data, index)
            size = size_of(fields)
            if not HEADER_BYTES <= size <= end - position or fields[FORMAT] != MAGIC:
                return heads, position
            if expected is not None:
                if not follows_on(fields, expected) or fields[LAST_DELTA] < 0:
                    return heads, position
                expected = next_offset_of(fields)
            heads.append(fields)
            position += size
        return heads, position if position < end else None


def _end_of(batches: list[Fields]) -> int:
    """Return the offset behind the last one of `batches`, which has some."""
    return next_offset_of(batches[-1])


class ReadPosition(NamedTuple):
    """A batch, and where the batches after it begin as far as that is known; ends with an end."""

    segment: Segment
    base_offset: int
    position: int
    offsets: list[int]
    positions: list[int]


def cursor_of(
    segment: Segment, position: int, heads: Sequence[tuple[int, ...]], offset: int
) -> ReadPosition | None:
    """Return the place of the batch that holds `offset`; the first of `heads` is at `position`."""
    cursor = None
    for fields in heads:
        if (
            cursor is None
            and fields[BASE_OFFSET] <= offset <= fields[BASE_OFFSET] + fields[LAST_DELTA]
        ):
            cursor = ReadPosition(segment, fields[BASE_OFFSET], position, [], [])
        position += size_of(fields)
        if cursor is not None:
            cursor.offsets.append(next_offset_of(fields))
            cursor.positions.append(position)
    return cursor
