"""Remembered read positions of a log, so that the next read need not search."""

from collections.abc import Sequence
from typing import NamedTuple

from dlog.batch.header import (
    BASE_OFFSET,
    LAST_DELTA,
    next_offset_of,
    size_of,
)
from dlogd.storage.segment.segment import Segment


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
