"""Offsets of one log, assigned nowhere else: start, end, flushed, promised.

    0 <= log_start_offset <= flushed_offset <= promised_offset <= log_end_offset

Each change that could break this order asserts it. Owner: the event loop's thread.
"""

from dlog.types import Offset


class LogOffsets:
    """The four offsets of a log."""

    __slots__ = ("flushed_offset", "log_end_offset", "log_start_offset", "promised_offset")

    def __init__(self) -> None:
        self.log_start_offset = Offset(0)
        """First readable offset."""
        self.log_end_offset = Offset(0)
        """Offset of the next record."""
        self.flushed_offset = Offset(0)
        """All below is on stable storage."""
        self.promised_offset = Offset(0)
        """All below is as safe as the flush policy says."""

    def adopt(self, start: int, end: int) -> None:
        """Begin with what recovery found: all of it is on stable storage."""
        self.log_start_offset = Offset(start)
        self.log_end_offset = self.promised_offset = self.flushed_offset = Offset(end)
        self.check_chain()

    def extend_to(self, end: int) -> None:
        """Count an appended batch."""
        self.log_end_offset = Offset(end)

    def promise(self, flushed: int, promised: int) -> None:
        """Count a write that has ended."""
        self.flushed_offset, self.promised_offset = Offset(flushed), Offset(promised)
        assert self.log_start_offset <= flushed <= promised <= self.log_end_offset, self._chain()

    def rewind(self, end: int) -> None:
        """Count a truncation of the end; what was safe below it stays so."""
        self.log_end_offset = Offset(end)
        self.flushed_offset = min(self.flushed_offset, Offset(end))
        self.promised_offset = min(self.promised_offset, Offset(end))
        self.check_chain()

    def raise_start(self, start: int) -> None:
        """Count a deletion of the oldest records."""
        self.log_start_offset = Offset(start)
        self.check_chain()

    def restart_at(self, offset: int) -> None:
        """Count that all records were deleted; the log is empty and begins at `offset`."""
        self.log_start_offset = self.log_end_offset = Offset(offset)
        self.flushed_offset = self.promised_offset = Offset(offset)

    def check_chain(self) -> None:
        """Assert the order of the offsets."""
        start, end = self.log_start_offset, self.log_end_offset
        assert 0 <= start <= self.flushed_offset <= self.promised_offset <= end, self._chain()

    def _chain(self) -> str:
        return (
            f"{self!r}: start={self.log_start_offset} flushed={self.flushed_offset}"
            f" promised={self.promised_offset} end={self.log_end_offset}"
        )
