"""Whole index files: made, opened, read and written; what stands in them is in `entries`.

Everything here blocks and is run by the engine.
"""

import struct
from dataclasses import dataclass

from dlogd.storage.entries import (
    ENTRY_BYTES,
    HEADER_BYTES,
    EntryHeader,
    decode_header,
    encode_header,
)
from dlogd.storage.files import Directory, File


def open_entries(
    directory: Directory, name: str, header: EntryHeader, settled: int, *, writable: bool
) -> File:
    """Open an index file with `settled` good entries. Blocks.

    A writable one is made when missing; it gets `header`, and nothing but zeros after its entries.
    """
    file = directory.open(name, create=writable, read_only=not writable)
    try:
        if writable:
            _prepare(file, header, HEADER_BYTES + ENTRY_BYTES * settled)
    except OSError:
        file.close()
        raise
    return file


def _prepare(file: File, header: EntryHeader, used: int) -> None:
    """Write the header; what follows the good entries becomes zeros."""
    file.pwrite(encode_header(header), 0)
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
    """Read both ends of a closed segment's index file; None when it is no such file. Blocks."""
    if not directory.exists(name):
        return None
    file = directory.open(name, read_only=True)
    try:
        count, rest = divmod(file.size() - HEADER_BYTES, ENTRY_BYTES)
        found = decode_header(file.pread(HEADER_BYTES, 0), header.magic)
        if found is None or rest or count < 0 or found.base_offset != header.base_offset:
            return None
        last = (0, 0)
        if count:
            data = file.pread(ENTRY_BYTES, HEADER_BYTES + ENTRY_BYTES * (count - 1))
            last = entry.unpack(data)
    finally:
        file.close()
    return LastEntry(found, count, last)


@dataclass(frozen=True, slots=True)
class LoadedEntries:
    """What an index file holds: its header and the entries up to the first impossible one."""

    header: EntryHeader
    entries: list[tuple[int, int]]
    is_whole: bool
    """Whether nothing else is in the file."""


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
    for first, second in entry.iter_unpack(body):
        if first < previous[0] or second <= previous[1]:
            break
        previous = (first, second)
        entries.append(previous)
    is_whole = len(data) == HEADER_BYTES + ENTRY_BYTES * len(entries)
    return LoadedEntries(found, entries, is_whole)


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
    data = encode_header(header) + b"".join([entry.pack(*numbers) for numbers in entries])
    file = directory.open(name, create=True)
    try:
        file.pwrite(data, 0)
        file.truncate(len(data))
        if durable:
            file.sync()
    finally:
        file.close()
