"""Index files as a whole: make, open, read, write. Entries: `dlogd.storage.segment.sparse_index`.

Everything here blocks and is run by the engine.
"""

import struct
from dataclasses import dataclass

from dlog.rows import unpack_rows
from dlogd.storage.io.checkpoint_files import replace_file
from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment.index_checksum import ENTRY_BYTES, IndexChecksum
from dlogd.storage.segment.sparse_index import (
    HEADER_BYTES,
    NO_ENTRIES,
    EntryHeader,
    OpenedEntries,
    decode_header,
    decode_sum,
    encode_header,
)

_PIECE_BYTES = ENTRY_BYTES * 65536


class BadEntriesError(Exception):
    """An index file does not hold the entries that it was written with."""


def open_entries(
    directory: Directory, name: str, header: EntryHeader, settled: int, *, writable: bool
) -> OpenedEntries:
    """Open an index file with `settled` good entries, all of which are checked. Blocks.

    A writable one is made when missing; it gets `header`, and nothing but zeros after its entries.
    One to be read is a closed segment's: it has no others. Raises BadEntriesError, OSError.
    """
    if not writable and not directory.exists(name):
        raise BadEntriesError(f"{directory.path}/{name} is missing")
    file = directory.open(name, create=writable, read_only=not writable)
    try:
        entries = _check(file, header, settled, is_all=not writable) if settled else NO_ENTRIES
        if writable:
            _prepare(file, header, entries)
    except (OSError, BadEntriesError):
        file.close()
        raise
    return OpenedEntries(file, entries, header.mark)


def _check(file: File, header: EntryHeader, settled: int, *, is_all: bool) -> IndexChecksum:
    """Return the sum of the first `settled` entries, if the head vouches for them."""
    head = file.pread(HEADER_BYTES, 0)
    found = decode_header(head, header.magic)
    if found is None or found.base_offset != header.base_offset:
        raise BadEntriesError(f"{file.path} has not the head of an index of its segment")
    stored = decode_sum(head)
    if stored.total < settled or (is_all and stored.total > settled):
        raise BadEntriesError(
            f"{file.path} vouches for {stored.total} entries instead of {settled}"
        )
    entries = sum_entries(file, NO_ENTRIES, settled)
    if sum_entries(file, entries, stored.total).stored() != stored:
        raise BadEntriesError(f"The checksum of the entries of {file.path} is wrong")
    return entries


def sum_entries(file: File, entries: IndexChecksum, count: int) -> IndexChecksum:
    """Return the sum of the first `count` entries, `entries` of which is known; less at the end."""
    while entries.total < count:
        length = min(_PIECE_BYTES, ENTRY_BYTES * (count - entries.total))
        data = file.pread(length, HEADER_BYTES + ENTRY_BYTES * entries.total)
        if len(data) < length:
            break
        entries = entries.plus(data)
    return entries


def _prepare(file: File, header: EntryHeader, entries: IndexChecksum) -> None:
    """Write the header; what follows the good entries becomes zeros."""
    file.pwrite(encode_header(header, entries), 0)
    used = HEADER_BYTES + ENTRY_BYTES * entries.total
    rest = max(0, file.size() - used)
    if file.pread(rest, used).strip(b"\0"):
        file.pwrite(bytes(rest), used)


def finish_entries(file: File, count: int) -> None:
    """Cut the file to its entries and bring it to stable storage. Blocks."""
    file.truncate(HEADER_BYTES + ENTRY_BYTES * count)
    file.sync()


@dataclass(frozen=True, slots=True)
class LastEntry:
    """What the index file of a closed segment says at its two ends."""

    header: EntryHeader
    count: int
    entry: tuple[int, int]
    """(0, 0) when there is none."""


def load_last_entry(
    directory: Directory, name: str, header: EntryHeader, entry: struct.Struct
) -> LastEntry | None:
    """Read both ends of a closed segment's index file; None when it is no such file. Blocks.

    Head and last entry are checked; what is between them only when the file is opened to be used.
    """
    if not directory.exists(name):
        return None
    file = directory.open(name, read_only=True)
    try:
        count, rest = divmod(file.size() - HEADER_BYTES, ENTRY_BYTES)
        head = file.pread(HEADER_BYTES, 0)
        found = decode_header(head, header.magic)
        if found is None or rest or count < 0 or found.base_offset != header.base_offset:
            return None
        last = bytes(ENTRY_BYTES)
        if count:
            last = file.pread(ENTRY_BYTES, HEADER_BYTES + ENTRY_BYTES * (count - 1))
        if not decode_sum(head).ends_with(count, last):
            return None
    finally:
        file.close()
    return LastEntry(found, count, entry.unpack(last))


@dataclass(frozen=True, slots=True)
class LoadedEntries:
    """What an index file holds: its header and the entries up to the first impossible one."""

    header: EntryHeader
    entries: list[tuple[int, int]]
    vouched: int
    """So many of them are covered by the checksum; 0 when it is wrong."""
    is_wrong: bool
    """Whether the checksum is wrong."""
    is_whole: bool
    """Whether nothing else is in the file, and all is vouched for."""


def load_entries(
    directory: Directory, name: str, header: EntryHeader, entry: struct.Struct
) -> LoadedEntries | None:
    """Read an index file; None when it is missing or does not belong to the segment. Blocks.

    In each entry the second number is above that of the one before, the first not below.
    """
    if not directory.exists(name):
        return None
    file = directory.open(name, read_only=True)
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    found = decode_header(data[:HEADER_BYTES], header.magic)
    if found is None or found.base_offset != header.base_offset:
        return None
    body = memoryview(data)[HEADER_BYTES:]
    body = body[: len(body) - len(body) % ENTRY_BYTES]
    entries: list[tuple[int, int]] = []
    previous = (-(1 << 63), 0)
    for first, second in unpack_rows(entry, body):
        if first < previous[0] or second <= previous[1]:
            break
        previous = (first, second)
        entries.append(previous)
    stored = decode_sum(data)
    is_good = NO_ENTRIES.plus(body[: ENTRY_BYTES * stored.total]).stored() == stored
    vouched = min(stored.total, len(entries)) if is_good else 0
    is_whole = len(data) == HEADER_BYTES + ENTRY_BYTES * vouched
    return LoadedEntries(found, entries, vouched, not is_good, is_whole)


def store_entries(
    directory: Directory,
    name: str,
    header: EntryHeader,
    entry: struct.Struct,
    entries: list[tuple[int, int]],
    *,
    durable: bool,
) -> None:
    """Write a whole index file over what is there. Blocks."""
    data = encode_entries(header, entry, entries)
    file = directory.open(name, create=True)
    try:
        file.pwrite(data, 0)
        file.truncate(len(data))
        if durable:
            file.sync()
    finally:
        file.close()


def encode_entries(
    header: EntryHeader, entry: struct.Struct, entries: list[tuple[int, int]]
) -> bytes:
    """Return the bytes of a whole index file."""
    body = b"".join([entry.pack(*numbers) for numbers in entries])
    return encode_header(header, NO_ENTRIES.plus(body)) + body


def replace_entries(
    directory: Directory,
    name: str,
    header: EntryHeader,
    entry: struct.Struct,
    entries: list[tuple[int, int]],
) -> OpenedEntries:
    """Replace a closed segment's index file atomically and durably, and open it. Blocks."""
    replace_file(directory, name, encode_entries(header, entry, entries))
    return open_entries(directory, name, header, len(entries), writable=False)
