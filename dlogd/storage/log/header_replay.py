"""Replay of batch heads from an offset on, to rebuild producer state.

The heads are read off the event loop in pieces; appends may go on meanwhile, they are not seen.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from dlog.batch.header import BatchHeader
from dlogd.storage.io.files import Directory
from dlogd.storage.log.log_state import LogState
from dlogd.storage.segment.batch_scan import Window, iter_headers
from dlogd.storage.segment.index_files import load_entries
from dlogd.storage.segment.offset_index import KIND
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.sparse_index import EntryHeader

PIECE_COUNT = 1000
"""Heads handed over at once."""


@dataclass(slots=True)
class _Place:
    """Where the next piece begins in one segment."""

    directory: Directory
    base_offset: int
    end: int
    position: int = -1  # not looked for yet


async def headers_from(state: LogState, offset: int) -> AsyncIterator[BatchHeader]:
    """Yield the heads of all written batches whose last offset is `offset` or more, in order."""
    places = [
        _Place(segment.directory, segment.base_offset, segment.written_position)
        for segment in state.segments
        if segment.written_position and state.end_offset_of(segment) > offset
    ]
    for place in places:
        while place.position < place.end:
            piece = await state.services.engine.run(partial(_read_piece, place, offset))
            for header in piece:
                yield header


def _read_piece(place: _Place, offset: int) -> list[BatchHeader]:
    """Return the next heads and move `place` behind them; none of a dropped segment. Blocks."""
    try:
        if place.position < 0:
            place.position = _start(place, offset)
        file = place.directory.open(file_name(place.base_offset), read_only=True)
    except FileNotFoundError:  # retention goes on meanwhile
        place.position = place.end
        return []
    found: list[BatchHeader] = []
    try:
        for header in iter_headers(Window(file, place.end), place.position):
            place.position += header.batch_bytes
            if header.last_offset >= offset:
                found.append(header)
            if len(found) >= PIECE_COUNT:
                return found
    finally:
        file.close()
    place.position = place.end
    return found


def _start(place: _Place, offset: int) -> int:
    """Return the position of the last indexed batch at or before `offset`."""
    header = EntryHeader(magic=KIND.magic, base_offset=place.base_offset, durable=False)
    loaded = load_entries(
        place.directory, file_name(place.base_offset, KIND.suffix), header, KIND.entry
    )
    position = 0
    for relative, at in loaded.entries if loaded is not None else []:
        if place.base_offset + relative > offset or at >= place.end:
            break
        position = at
    return position
