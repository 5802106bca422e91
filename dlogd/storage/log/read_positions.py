"""Remembered read positions of a log, so that the next read need not search."""

from collections.abc import Sequence
from typing import NamedTuple

from dlog.batch.header import LENGTH_OVERHEAD_BYTES
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
        if cursor is None and fields[0] <= offset <= fields[0] + fields[6]:
            cursor = ReadPosition(segment, fields[0], position, [], [])
        position += fields[1] + LENGTH_OVERHEAD_BYTES
        if cursor is not None:
            cursor.offsets.append(fields[0] + fields[6] + 1)
            cursor.positions.append(position)
    return cursor
