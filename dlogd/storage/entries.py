"""A sparse index: 12-byte entries of two ascending numbers, in memory first, then in a mapped file.

    bytes   field
    0-3     magic, `DLIX` or `DLTX`
    4-5     version u16, 1
    6-7     flags u16; bit 0: every write of the segment was durable before it counted
    8-15    base offset of the segment u64
    16-19   CRC-32C of bytes 0-15
    20-23   zero
    24-31   flushed mark u64, only in `.idx`: all below this position of the segment is durable
    32-39   the same with all bits inverted, so that garbage is not taken for a mark
    40-47   zero
    48-     entries of 12 bytes; the first that is all zero ends them

Little-endian; docs/formats/index.md. What the two numbers of an entry mean is the business of
`dlogd.storage.index` and `dlogd.storage.time_index`. An entry waits in memory until it is settled:
the bytes before it and the batch that it names are on stable storage. Only then does it reach the
file, so recovery may trust what stands there and start its scan at the last entry.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dlog.checksum import crc32c
from dlogd.storage.files import Directory, File

HEADER_BYTES = 48
ENTRY_BYTES = 12
VERSION = 1
FLAG_DURABLE = 1

# Mapped first, then four times as much whenever it is full: 64 KiB cover 21 MiB of small batches.
MAP_BYTES_MIN = 64 * 1024
MAP_GROWTH = 4

# So many settled entries stay in memory as well: readers of the tail find them by a bisect in C.
RECENT_COUNT_MAX = 4096

_HEADER = struct.Struct("<4sHHQ")
_CRC = struct.Struct("<II")
_MARK = struct.Struct("<QQ")
_MARK_POSITION = 24
_MASK = (1 << 64) - 1
MARK_MAX = 1 << 40
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryHeader:
    """The head of an index file."""

    magic: bytes
    base_offset: int
    durable: bool
    mark: int = 0  # 0 where it is unknown


def encode_header(header: EntryHeader) -> bytes:
    """Return the 48 bytes before the entries."""
    head = _HEADER.pack(
        header.magic, VERSION, FLAG_DURABLE if header.durable else 0, header.base_offset
    )
    mark = _MARK.pack(header.mark, header.mark ^ _MASK)
    return head + _CRC.pack(crc32c(head), 0) + mark + bytes(8)


def decode_header(data: bytes | memoryview, magic: bytes) -> EntryHeader | None:
    """Return the header, or None when the bytes are not one of this kind."""
    if len(data) < HEADER_BYTES:
        return None
    found, version, flags, base_offset = _HEADER.unpack_from(data)
    (crc, _) = _CRC.unpack_from(data, 16)
    if found != magic or version != VERSION or crc != crc32c(bytes(data[:16])):
        return None
    mark, inverted = _MARK.unpack_from(data, _MARK_POSITION)
    known = mark ^ _MASK == inverted and mark < MARK_MAX
    return EntryHeader(
        magic=magic,
        base_offset=base_offset,
        durable=bool(flags & FLAG_DURABLE),
        mark=mark if known else 0,
    )


class EntryTable:
    """The entries of one file: `first` and `second` ascend together.

    Entries [0, settled) are in the file; [recent, count) are in memory; recent <= settled <= count.
    Owner: the event loop's thread; `open_file` and what takes a File blocks and runs in the engine.
    """

    __slots__ = (
        "_ends",
        "_entry",
        "_file",
        "_firsts",
        "_recent",
        "_seconds",
        "_view",
        "capacity",
        "settled",
    )

    def __init__(self, entry: struct.Struct, typecodes: str, settled: int) -> None:
        self._entry = entry
        self._firsts = array(typecodes[0])
        self._seconds = array(typecodes[1])
        # Position in the segment where the batch that the entry names ends.
        self._ends = array("Q")
        self._recent = settled
        self._file: File | None = None
        self._view: memoryview | None = None
        self.settled = settled
        self.capacity = 0

    @property
    def count(self) -> int:
        """Number of entries."""
        return self._recent + len(self._ends)

    @property
    def due(self) -> int:
        """Position up to which the segment must be durable for the next entry to settle."""
        ends, at = self._ends, self.settled - self._recent
        return ends[at] if at < len(ends) else _NEVER

    @property
    def file(self) -> File | None:
        """The mapped file."""
        return self._file

    @property
    def is_open(self) -> bool:
        """Whether the file is mapped."""
        return self._view is not None

    @property
    def is_full(self) -> bool:
        """Whether entries wait for a larger mapping."""
        return self._view is not None and self.settled >= self.capacity

    def add(self, first: int, second: int, end: int) -> None:
        """Append an entry that settles when the segment is on stable storage up to `end`."""
        self._firsts.append(first)
        self._seconds.append(second)
        self._ends.append(end)

    def settle(self, position: int) -> None:
        """Write the entries to the file whose batches end at or before `position`.

        By a write, not by a store into the mapping: on a disk that fails or is full a store would
        end the process (SIGBUS). What cannot be written waits in memory; the next flush tells.
        """
        file = self._file
        if file is None:
            return
        ends = self._ends
        at = self.settled - self._recent
        limit = min(len(ends), self.capacity - self._recent)
        if at >= limit or ends[at] > position:
            return
        pack, firsts, seconds = self._entry.pack, self._firsts, self._seconds
        written = bytearray()
        while at < limit and ends[at] <= position:
            written += pack(firsts[at], seconds[at])
            at += 1
        try:
            file.pwrite(written, HEADER_BYTES + ENTRY_BYTES * self.settled)
        except OSError:
            return
        self.settled = self._recent + at
        if at > RECENT_COUNT_MAX:
            drop = at - RECENT_COUNT_MAX // 2
            del firsts[:drop], seconds[:drop], ends[:drop]
            self._recent += drop

    def mark(self, position: int) -> None:
        """Note in the file that everything below `position` is on stable storage.

        A lower bound: what cannot be written is left at its old value.
        """
        if self._file is not None:
            with suppress(OSError):
                self._file.pwrite(_MARK.pack(position, position ^ _MASK), _MARK_POSITION)

    def set_header(self, header: bytes) -> None:
        """Replace the head of the file. Raises OSError."""
        if self._file is not None:
            self._file.pwrite(header, 0)

    def entry(self, number: int) -> tuple[int, int] | None:
        """Return an entry, or None when the file that holds it is not mapped."""
        at = number - self._recent
        if at >= 0:
            return self._firsts[at], self._seconds[at]
        if self._view is None:
            return None
        first, second = self._entry.unpack_from(self._view, HEADER_BYTES + ENTRY_BYTES * number)
        return first, second

    def count_up_to(self, value: int, *, column: int) -> int | None:
        """Return how many entries have `column` <= value; None when that needs the mapped file."""
        recent = self._seconds if column else self._firsts
        if recent and recent[0] <= value:
            return self._recent + bisect_right(recent, value)
        return self._bisect(value, column, bisect_right)

    def count_below(self, value: int, *, column: int) -> int | None:
        """Return how many entries have `column` < value; None when that needs the mapped file."""
        recent = self._seconds if column else self._firsts
        if recent and recent[0] < value:
            return self._recent + bisect_left(recent, value)
        return self._bisect(value, column, bisect_left)

    def _bisect(self, value: int, column: int, bisect: Callable[..., int]) -> int | None:
        """Search the entries that are only in the file."""
        if not self._recent:
            return 0
        view = self._view
        if view is None:
            return None
        unpack = self._entry.unpack_from
        return bisect(
            range(self._recent),
            value,
            key=lambda number: unpack(view, HEADER_BYTES + ENTRY_BYTES * number)[column],
        )

    def cut(self, count: int) -> None:
        """Forget all entries from number `count` on; the file has zeros there. Raises OSError."""
        at = max(0, count - self._recent)
        del self._firsts[at:], self._seconds[at:], self._ends[at:]
        if count < self._recent:
            self._recent = count
        if self._file is not None and count < self.settled:
            zeros = bytes(ENTRY_BYTES * (self.settled - count))
            self._file.pwrite(zeros, HEADER_BYTES + ENTRY_BYTES * count)
        self.settled = min(self.settled, count)

    # -- the file; blocking, run by the engine

    def attach(self, opened: "OpenedEntries") -> None:
        """Use a file that `open_entries` brought; on the loop's thread."""
        self._file, self._view, self.capacity = opened.file, opened.view, opened.capacity

    def detach(self) -> File | None:
        """Stop using the file and return it, to be closed; what is settled stays in it."""
        found, self._file, self._view = self._file, None, None
        self.capacity = 0
        return found

    def forget_recent(self) -> None:
        """Keep in memory only what is not in the file."""
        drop = self.settled - self._recent
        del self._firsts[:drop], self._seconds[:drop], self._ends[:drop]
        self._recent = self.settled


@dataclass(frozen=True, slots=True)
class OpenedEntries:
    """A mapped index file."""

    file: File
    view: memoryview
    capacity: int


def open_entries(
    directory: Directory, name: str, header: EntryHeader, settled: int, *, writable: bool
) -> OpenedEntries:
    """Open and map an index file with `settled` good entries. Blocks.

    A writable one is made when missing; it gets `header`, zeros after its entries, room to grow.
    """
    used = HEADER_BYTES + ENTRY_BYTES * settled
    file = directory.open(name, create=writable)
    try:
        length = used
        if writable:
            length = MAP_BYTES_MIN
            while length < used + ENTRY_BYTES:
                length *= MAP_GROWTH
        if writable:
            _prepare(file, header, used)
        view = file.map(length)
    except (OSError, ValueError):
        file.close()
        raise
    return OpenedEntries(file, view, (length - HEADER_BYTES) // ENTRY_BYTES)


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
