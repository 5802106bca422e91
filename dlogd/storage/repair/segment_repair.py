"""Repair of a damaged range of a closed segment, in place.

All replicas hold the same batches at the same offsets, byte for byte, so what another one has for
the offsets of a damaged place fits into it exactly. Nothing before or behind is touched: no cut, no
new ISR, no election. A batch is written only when its checksum fits, it follows on, its
leader epoch is the one that this log knows, and it stays within the place. A crash in the middle
leaves a damaged place, as before. Owner: the event loop's thread; who fetches the batches is
`dlogd.replication.replica_repair`.
"""

from functools import partial

from dlog.batch.header import (
    BASE_OFFSET,
    BATCH_STRUCT,
    FORMAT,
    HEADER_BYTES,
    MAGIC,
    follows_on,
    next_offset_of,
    size_of,
    verify_crc,
)
from dlog.errors import CorruptMessageError, KafkaStorageError
from dlogd.storage.io.files import Directory
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log.segment_opener import guarded
from dlogd.storage.segment.bad_ranges import BadRange
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.segment_verifier import SegmentVerifier


class SegmentRepair:
    """One place on its way to be whole. Life: `take` until `is_whole`, then `finish` once."""

    def __init__(self, opened: PartitionLog, place: BadRange) -> None:
        """Raises KafkaStorageError when the place is not one of a closed segment any more."""
        self.next_offset = place.first_offset
        """What is to be given next; at the end the place's own end."""
        self._position = place.position
        self._log = opened
        self._place = place
        self._segment = opened.segment_of(place.first_offset)
        self._cut_count = self._segment.cut_count
        self._check()

    @property
    def is_whole(self) -> bool:
        """Whether all of it was given."""
        return self.next_offset >= self._place.next_offset

    def _check(self) -> None:
        segment = self._segment
        if (
            segment.path != self._place.path
            or segment.state is not SegmentState.SEALED
            or segment.cut_count != self._cut_count
            or not self._log.is_working
            # By identity: a log that was begun anew may have another one of the same numbers.
            or not any(place is self._place for place in self._log.damage.places)
        ):
            raise KafkaStorageError(f"{self._place.path} has changed meanwhile")

    async def take(self, data: bytes) -> None:
        """Write the whole batches of `data` that belong here; what comes before them is skipped.

        Raises CorruptMessageError for batches that do not fit, KafkaStorageError.
        """
        start, end = self._fitting(data)
        if start < end:
            await self._write(bytes(data[start:end]))

    async def _write(self, data: bytes) -> None:
        """Write what comes next; on stable storage on return."""
        self._check()
        state, segment = self._log, self._segment
        state.check_shortage()  # other logs want to be mended meanwhile
        async with state.lock:
            self._check()
            write = partial(_write, segment.directory, segment, data, self._position)
            await guarded(state, state.services.engine.run(write), segment)
        self._position += len(data)

    def _fitting(self, data: bytes) -> tuple[int, int]:
        """Return where the batches that come next begin and end in `data`; count them."""
        place, position, start = self._place, 0, -1
        expected = self.next_offset
        while len(data) - position >= HEADER_BYTES and expected < place.next_offset:
            fields = BATCH_STRUCT.unpack_from(data, position)
            size = size_of(fields)
            if size < HEADER_BYTES or position + size > len(data):
                break
            following = next_offset_of(fields)
            if following <= expected:
                position += size
                continue
            if (
                not follows_on(fields, expected)
                or fields[FORMAT] != MAGIC
                or not self._log.has_its_epoch(fields)
                or not verify_crc(data, position, size)
            ):
                raise CorruptMessageError(
                    f"What another replica has at {fields[BASE_OFFSET]} does not fit into"
                    f" {place.path}"
                )
            start = position if start < 0 else start
            position += size
            expected = following
            if self._position + position - start > place.end_position:
                raise CorruptMessageError(
                    f"What another replica has is larger than the place in {place.path}"
                )
        self.next_offset = expected
        return max(start, 0), position if start >= 0 else 0

    async def finish(self) -> None:
        """Read what was written, and forget the damage; raise CorruptMessageError if it is bad."""
        place = self._place
        self._check()
        if self._position != place.end_position or self.next_offset != place.next_offset:
            raise CorruptMessageError(f"What was written does not fill the place in {place.path}")
        state = self._log
        read = partial(_is_good, self._segment.directory, self._segment, place)
        is_good = await guarded(state, state.services.engine.run(read), self._segment)
        self._check()
        if not is_good:
            raise CorruptMessageError(f"{place.path} does not keep what was written")
        # The bad bytes may have been read into memory, when the log was cut behind them.
        self._segment.tail.forget_all()
        self._segment.known_times.forget()
        state.damage.forget_place(place)


def _write(directory: Directory, segment: Segment, data: bytes, position: int) -> None:
    """Overwrite bytes of a segment; on stable storage on return. Blocks."""
    file = directory.open(file_name(segment.base_offset))
    try:
        file.pwrite(data, position)
        file.sync()
    finally:
        file.close()


def _is_good(directory: Directory, segment: Segment, place: BadRange) -> bool:
    """Return whether the place holds good batches in a row. Blocks."""
    file = directory.open(file_name(segment.base_offset), read_only=True)
    try:
        check = SegmentVerifier(place.first_offset, place.end_position)
        check.resume(place.position, place.first_offset)
        while not check.is_done:
            length = min(1 << 20, place.end_position - check.position)
            check.feed(memoryview(file.pread(length, check.position)))
        return not check.is_bad and check.expected_offset == place.next_offset
    finally:
        file.close()
