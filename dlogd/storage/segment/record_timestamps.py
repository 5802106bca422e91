"""Timestamps of a segment by its records, as far as they are known; in memory.

An active segment has one as soon as somebody searched it by time or retention had to know; a
closed one while its time index is not made of records. Owner: the event loop's thread.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from dlogd.storage.segment.batch_times import Looked, Mark, Marking
from dlogd.storage.segment.time_index import NO_TIMESTAMP

INTERVAL_BYTES = 256 * 1024
"""A search looks into so many bytes of batches beside the one that it finds."""


class TrueTimes:
    """What is known of the batches of one segment before `position`.

    Invariant: marks ascend; each is true of all records of the segment below its offset.
    """

    __slots__ = (
        "_base_offset",
        "_maxima",
        "_offsets",
        "_positions",
        "is_damaged",
        "is_whole",
        "marking",
        "newest_ms",
        "offset",
        "position",
    )

    def __init__(self, base_offset: int, marking: Marking | None = None) -> None:
        self._base_offset = base_offset
        self._maxima = array("q")
        self._offsets = array("Q")
        self._positions = array("Q")
        self.marking = marking or Marking(INTERVAL_BYTES)
        self.position = 0
        self.offset = base_offset
        """Offset of the batch that begins at `position`."""
        self.newest_ms = NO_TIMESTAMP
        """The largest timestamp of the records before `position`."""
        self.is_whole = True
        """Whether no batch before `position` was damaged or impossible to decode."""
        self.is_damaged = False
        """Whether something before `position` was no batch: it may be mended."""

    def begin(self) -> Looked:
        """Return where the next look begins."""
        marked = self._positions[-1] if self._positions else 0
        return Looked(self.newest_ms, self.offset, self.position, marked)

    def take(self, looked: Looked) -> None:
        """Count what a look has found that began where this ends."""
        for mark in looked.marks:
            self._maxima.append(mark.newest_ms)
            self._offsets.append(mark.offset)
            self._positions.append(mark.position)
        self.newest_ms, self.offset, self.position = (
            looked.newest_ms,
            looked.offset,
            looked.position,
        )
        self.is_damaged = self.is_damaged or looked.is_damaged
        self.is_whole = self.is_whole and looked.is_whole and not looked.is_damaged

    def pass_over(self, offset: int, position: int) -> None:
        """Go on at the batch at `position`: before it is something that is no batch."""
        self.offset, self.position = offset, position
        self.is_whole, self.is_damaged = False, True

    def older_than(self, timestamp_ms: int) -> int:
        """Return an offset below which no record has a timestamp >= `timestamp_ms`."""
        count = bisect_left(self._maxima, timestamp_ms)
        return self._offsets[count - 1] if count else self._base_offset

    def entries(self, offsets: Sequence[int]) -> list[tuple[int, int]] | None:
        """Return entries of a time index for `offsets`, the last of which is where all ends.

        None: the marks do not stand there.
        """
        if not offsets or offsets[-1] != self.offset or self._offsets != offsets[:-1]:
            return None
        base_offset = self._base_offset
        newest = [*self._maxima, self.newest_ms]
        return [(ms, at - base_offset) for ms, at in zip(newest, offsets, strict=True)]

    def thinned(self) -> "TrueTimes":
        """Return the same with fewer marks, to be kept in memory."""
        kept = TrueTimes(self._base_offset)
        looked = Looked(self.newest_ms, self.offset, self.position, 0)
        for mark in map(Mark, self._maxima, self._offsets, self._positions):
            if mark.position - looked.marked_position >= INTERVAL_BYTES:
                looked.marks.append(mark)
                looked.marked_position = mark.position
        kept.take(looked)
        kept.is_whole, kept.is_damaged = self.is_whole, self.is_damaged
        return kept

    def cut(self, position: int) -> None:
        """Forget the batches at or behind `position`, where the segment was cut."""
        if position >= self.position:
            return
        count = bisect_left(self._positions, position + 1)
        mark = Mark(NO_TIMESTAMP, self._base_offset, 0)
        if count:
            at = count - 1
            mark = Mark(self._maxima[at], self._offsets[at], self._positions[at])
        del self._maxima[count:], self._offsets[count:], self._positions[count:]
        self.newest_ms, self.offset, self.position = mark


class KnownTimes:
    """Which timestamps of a segment are those of its records, and when its file was written."""

    __slots__ = ("is_claimed", "is_decoded", "is_true", "learned", "written_end", "written_ms")

    def __init__(self) -> None:
        self.is_true = False
        """Whether the time index of the closed segment, on disk, was made from the records."""
        self.is_claimed = False
        """Whether a batch was appended whose head may lie; of others a leader has corrected it."""
        self.is_decoded = True
        """Whether the records of all batches could be read for that."""
        self.learned: TrueTimes | None = None
        self.written_ms = NO_TIMESTAMP
        """When the file was last written, by the wall clock, as far as somebody had to know."""
        self.written_end = -1
        """Where the segment ended when somebody looked at that."""

    def newest_ms(self, end_position: int, max_timestamp_ms: int) -> int | None:
        """Return the largest timestamp of the records; None: it is not known.

        `max_timestamp_ms` is the segment's.
        """
        if self.is_true or not self.is_claimed or not end_position:
            return max_timestamp_ms
        learned = self.learned
        if learned is not None and learned.position >= end_position:
            return learned.newest_ms
        return None

    @property
    def is_whole(self) -> bool:
        """Whether the records of all batches could be read."""
        return self.is_decoded and (self.learned is None or self.learned.is_whole)

    def cut(self, position: int) -> None:
        """The segment was cut at `position`, and will be appended to."""
        self.is_true, self.is_decoded, self.is_claimed = False, True, position > 0
        self.written_ms, self.written_end = NO_TIMESTAMP, -1
        if self.learned is not None:
            self.learned.cut(position)

    def adopt(self, *, is_true: bool, is_decoded: bool, has_batches: bool) -> None:
        """Begin with what recovery found in the time index."""
        self.is_true, self.is_decoded = is_true, is_decoded
        self.is_claimed = has_batches and not is_true

    def claim(self) -> None:
        """A batch was appended whose head may lie."""
        self.is_claimed = True

    def doubt(self) -> None:
        """The time index is made of heads, or will be written again."""
        self.is_true, self.is_claimed = False, True

    def rebuild(self) -> None:
        """The time index was made again, of heads."""
        self.is_claimed, self.is_true = self.is_claimed or self.is_true, False

    def learn(self, learned: TrueTimes) -> None:
        """Remember in memory what is known of the records."""
        self.learned = learned

    def remember(self, *, is_decoded: bool) -> None:
        """The time index is made of the records now."""
        self.is_true, self.is_decoded, self.learned = True, is_decoded, None

    def close(self) -> None:
        """The segment ends: its time index is true if no head could lie."""
        self.is_true = self.is_true or not self.is_claimed

    def reopen(self) -> None:
        """The segment, which was finished when the log was closed, will be appended to."""
        self.is_claimed = self.is_claimed or not self.is_decoded
        self.is_true, self.is_decoded = False, True

    def note_write(self, end_position: int, written_ms: int = NO_TIMESTAMP) -> None:
        """The file, which ends at `end_position`, was last written then; or nobody has asked."""
        self.written_end, self.written_ms = end_position, written_ms

    def forget(self) -> None:
        """Bytes of the segment were changed in their place."""
        self.learned = None
        self.written_ms, self.written_end = NO_TIMESTAMP, -1
