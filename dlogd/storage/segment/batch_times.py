"""Timestamps of a row of batches, from their records: one piece of a segment at a time.

Pure; run by a work thread, one batch decompressed at a time. `dlogd.storage.log.timestamp_learner`
reads the pieces and keeps what was found in `TrueTimes`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dlog.batch.header import (
    BATCH_STRUCT,
    FORMAT,
    HEADER_BYTES,
    LAST_DELTA,
    LEADER_EPOCH,
    MAGIC,
    follows_on,
    next_offset_of,
    size_of,
    verify_crc,
)
from dlog.batch.record_times import NO_TIMESTAMP, RecordTime, Unpacked, head_limit, newest_of
from dlog.types import NO_EPOCH

STEP_BYTES = 16 * 1024 * 1024
"""Unpacked at a time, and the rest of one batch; others have their turn then."""


class Mark(NamedTuple):
    """All records below `offset`, where a batch begins at `position`, are at most this new."""

    newest_ms: int
    offset: int
    position: int


class Marking:
    """Where marks are made: at given offsets of batches, or else after so many bytes."""

    __slots__ = ("_interval_bytes", "_offsets")

    def __init__(self, interval_bytes: int, offsets: Sequence[int] | None = None) -> None:
        self._interval_bytes = interval_bytes
        self._offsets = offsets

    @property
    def is_by_bytes(self) -> bool:
        """Whether marks may stand anywhere."""
        return self._offsets is None

    def is_due(self, offset: int, position: int, marked_position: int) -> bool:
        """Return whether the batch gets a mark; `marked_position` had the last one."""
        offsets = self._offsets
        if offsets is None:
            return position - marked_position >= self._interval_bytes
        at = bisect_left(offsets, offset)
        return at < len(offsets) and offsets[at] == offset


@dataclass(slots=True)
class Looked:
    """What was found from some place on, up to `position`, where `offset` is expected."""

    newest_ms: int
    offset: int
    position: int
    marked_position: int
    is_whole: bool = True
    """Whether the records of all batches could be decoded."""
    is_damaged: bool = False
    """Whether the checksum of a batch is wrong: it was passed over."""
    is_bad: bool = False
    """Whether no batch stands at `position`."""
    wanted_bytes: int = 0
    """So many bytes from `position` on are needed to go on; 0: more were not there to look at."""
    marks: list[Mark] = field(default_factory=list)


def look(data: bytes, found: Looked, end_position: int, marking: Marking) -> Looked:
    """Look at the whole batches in `data`, which begins at `found.position`; go on in `found`.

    The segment has batches up to `end_position`. Stops early after STEP_BYTES of decompressed
    records, with a mark where that is possible: a search need not unpack them again.
    """
    view = memoryview(data)
    at = 0
    unpacked = Unpacked()
    while found.position < end_position:
        if unpacked.bytes >= STEP_BYTES:
            if marking.is_by_bytes:
                _mark(found)
            break
        fields, size = _head_at(view, at, found.offset, end_position - found.position)
        if fields is None:
            found.is_bad, found.wanted_bytes = not size, size
            break
        batch = view[at : at + size]
        _count(batch, fields, found, marking, unpacked)
        at += size
    return found


def _head_at(
    view: memoryview, at: int, offset: int, room: int
) -> tuple[tuple[int, ...] | None, int]:
    """Return the head and the size of the batch with `offset` that is whole in `view`.

    None and a number: so many bytes are needed. None and 0: there is no such batch.
    """
    if len(view) - at < HEADER_BYTES:
        return None, HEADER_BYTES if room >= HEADER_BYTES else 0
    fields = BATCH_STRUCT.unpack_from(view, at)
    size = size_of(fields)
    if (
        not follows_on(fields, offset)
        or fields[FORMAT] != MAGIC
        or fields[LAST_DELTA] < 0
        or not HEADER_BYTES <= size <= room
    ):
        return None, 0
    return (fields if at + size <= len(view) else None), size


def _mark(found: Looked) -> None:
    found.marks.append(Mark(found.newest_ms, found.offset, found.position))
    found.marked_position = found.position


def _count(
    batch: memoryview,
    fields: tuple[int, ...],
    found: Looked,
    marking: Marking,
    unpacked: Unpacked,
) -> None:
    if marking.is_due(found.offset, found.position, found.marked_position):
        _mark(found)
    newest_ms: int | None = NO_TIMESTAMP
    if verify_crc(batch, 0, len(batch)):
        newest_ms = newest_of(batch, fields, unpacked)
    else:
        found.is_damaged = True
    if newest_ms is None:
        found.is_whole = False
        newest_ms = head_limit(fields)
    found.newest_ms = max(found.newest_ms, newest_ms)
    found.offset = next_offset_of(fields)
    found.position += len(batch)


class Find(Protocol):
    """Finds a record in one batch, and counts what it has unpacked."""

    def __call__(self, batch: memoryview, *, unpacked: Unpacked) -> RecordTime | None:
        """Return the record, None when there is none."""
        ...


@dataclass(slots=True)
class Sought:
    """How far a search has come, and the record that it has found."""

    position: int
    offset: int
    found: RecordTime | None = None
    leader_epoch: int = NO_EPOCH
    is_bad: bool = False
    """Whether no good batch stands at `position`."""
    wanted_bytes: int = 0
    """So many bytes from `position` on are needed to go on."""


def seek(data: bytes, sought: Sought, end_position: int, find: Find, *, is_first: bool) -> Sought:
    """Search the whole batches in `data`, which begins at `sought.position`, for a record.

    `is_first`: stop at the first batch in which `find` finds one; else the newest record counts.
    Stops early after STEP_BYTES of decompressed records.
    """
    view = memoryview(data)
    at = 0
    unpacked = Unpacked()
    while sought.position < end_position and unpacked.bytes < STEP_BYTES:
        fields, sought.wanted_bytes = _head_at(
            view, at, sought.offset, end_position - sought.position
        )
        if fields is None:
            sought.is_bad = not sought.wanted_bytes
            break
        batch = view[at : at + sought.wanted_bytes]
        record = find(batch, unpacked=unpacked) if verify_crc(batch, 0, len(batch)) else None
        if record is not None and (
            sought.found is None or record.timestamp_ms > sought.found.timestamp_ms
        ):
            sought.found, sought.leader_epoch = record, fields[LEADER_EPOCH]
            if is_first:
                break
        at += len(batch)
        sought.position += len(batch)
        sought.offset = next_offset_of(fields)
    return sought
