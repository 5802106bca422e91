"""Verifier of a closed segment, piece by piece.

Pure. `dlogd.storage.repair.scrubber` reads the pieces and decides what a bad place means.
"""

from collections.abc import Callable

from dlog.batch.header import (
    BASE_OFFSET,
    BATCH_STRUCT,
    CRC,
    CRC_START,
    FORMAT,
    HEADER_BYTES,
    LAST_DELTA,
    LEADER_EPOCH,
    MAGIC,
    follows_on,
    next_offset_of,
    size_of,
)
from dlog.checksum import crc32c
from dlog.types import NO_EPOCH


def _any_epoch(_base_offset: int, _next_offset: int) -> int:
    """Nobody knows the leader epochs."""
    return NO_EPOCH


class SegmentVerifier:
    """The walk over one segment: heads, their order, their epochs, the checksum of each batch.

        while not check.is_done:
            check.feed(<bytes from check.position on, at least HEADER_BYTES unless it ends>)

    Invariant: all before the batch at `batch_position` was good, or was passed over by `resume`.
    """

    __slots__ = (
        "_crc",
        "_epoch_of",
        "_head",
        "_left_bytes",
        "_next_offset",
        "_wanted_crc",
        "batch_position",
        "end_position",
        "expected_offset",
        "is_bad",
        "position",
        "visit",
    )

    def __init__(
        self,
        base_offset: int,
        end_position: int,
        visit: Callable[[bytes], None] | None = None,
        epoch_of: Callable[[int, int], int] = _any_epoch,
    ) -> None:
        """`visit` gets the head of each batch that was seen to be good.

        `epoch_of(base_offset, next_offset)`: the leader epoch that a batch must have, which no
        checksum covers; NO_EPOCH when that is not known.
        """
        self.expected_offset = base_offset
        self.end_position = end_position
        self.position = 0
        """What is to be fed next."""
        self.batch_position = 0
        self.is_bad = False
        """Whether the batch at `batch_position` is not what was written: then `resume`."""
        self.visit = visit
        self._epoch_of = epoch_of
        self._head = b""
        self._crc = 0
        self._wanted_crc = 0
        self._left_bytes = 0  # of the batch that is being looked at
        self._next_offset = base_offset

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to feed: all was seen, or something is bad."""
        return self.is_bad or self.position >= self.end_position

    def feed(self, data: memoryview) -> None:
        """Look at the bytes from `position` on; too few for a head: the file is too short."""
        before = self.position
        while data and not self.is_bad:
            start = 0
            if not self._left_bytes:
                if not self._begin(data):
                    break
                start = CRC_START  # what comes before is not under the checksum
            piece = data[start : self._left_bytes]
            self._crc = crc32c(piece, self._crc)
            taken = start + len(piece)
            self._left_bytes -= taken
            self.position += taken
            data = data[taken:]
            if not self._left_bytes:
                self._end()
        if self.position == before:
            self.is_bad = True

    def _begin(self, data: memoryview) -> bool:
        """Read the head of the batch at `position`; return whether there is a plausible one."""
        self.batch_position = self.position
        room = self.end_position - self.position
        if len(data) < HEADER_BYTES <= room:
            return False  # the rest of the head comes with the next piece
        fields = BATCH_STRUCT.unpack_from(data) if room >= HEADER_BYTES else None
        if (
            fields is None
            or not follows_on(fields, self.expected_offset)
            or fields[FORMAT] != MAGIC
            or fields[LAST_DELTA] < 0
            or not HEADER_BYTES <= size_of(fields) <= room
        ):
            self.is_bad = True
            return False
        following = next_offset_of(fields)
        if self._epoch_of(fields[BASE_OFFSET], following) not in (fields[LEADER_EPOCH], NO_EPOCH):
            self.is_bad = True
            return False
        self._left_bytes = size_of(fields)
        self._wanted_crc = fields[CRC]
        if self.visit is not None:
            self._head = bytes(data[:HEADER_BYTES])
        self._crc = 0
        self._next_offset = following
        return True

    def _end(self) -> None:
        if self._crc != self._wanted_crc:
            self.is_bad = True
            return
        self.expected_offset = self._next_offset
        self.batch_position = self.position
        if self.visit is not None:
            self.visit(self._head)

    def resume(self, position: int, offset: int) -> None:
        """Go on with the batch at `position`, which begins with `offset`."""
        self.position = self.batch_position = position
        self.expected_offset = offset
        self.is_bad = False
        self._left_bytes = 0
