"""Space of a segment's file ahead of its tail: preallocated, then overwritten with zeros."""

NEVER = 1 << 62
"""Beyond every position in a segment."""


class SegmentSpace:
    """How far a segment's file is prepared, and when more is due. Owner: the loop's thread.

    Its fields are assigned here alone. docs/decisions/0002-preallocation.md.
    """

    __slots__ = ("allocated_end", "extend_at", "wait_position", "zero_at", "zeroed_end")

    def __init__(self) -> None:
        self.allocated_end = 0
        # More space is prepared when writes have passed this position.
        self.extend_at = NEVER
        # Of what is allocated, this much has been overwritten with zeros; more is when writes
        # have passed `zero_at`.
        self.zeroed_end = 0
        self.zero_at = NEVER
        # Writes must stay below: space beyond is being preallocated and zeroed at the moment.
        self.wait_position = NEVER

    def adopt(self, size: int) -> None:
        """The file, which was found or sealed, has `size` bytes."""
        self.allocated_end = size

    def extend_from(self, position: int) -> None:
        """Prepare more space when writes have passed `position`, or earlier."""
        self.extend_at = min(self.extend_at, position)

    def pause_extending(self) -> None:
        """Prepare no more space until `note_allocated`."""
        self.extend_at = NEVER

    def note_allocated(self, start: int, length: int, *, zeroes: bool) -> None:
        """The file has space for [start, start + length); `zeroes`: write zeros over it."""
        self.allocated_end = start + length
        self.extend_at = self.allocated_end - length // 2
        self.zeroed_end = start
        self.zero_at = -1 if zeroes else NEVER

    def pause_zeroing(self) -> None:
        """Write no more zeros until `note_zeroed`."""
        self.zero_at = NEVER

    def note_zeroed(self, stop: int, zero_at: int) -> None:
        """Zeros are written up to `stop`; write more when writes have passed `zero_at`."""
        self.zeroed_end, self.zero_at = stop, zero_at

    def hold_writes(self, position: int = NEVER) -> None:
        """Writes must stay below `position`; by default they need not."""
        self.wait_position = position

    def cut(self, position: int) -> None:
        """The file was cut at `position`, and will be appended to."""
        self.allocated_end = min(self.allocated_end, position)
        self.extend_at, self.zero_at = position, NEVER
