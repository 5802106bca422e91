"""Sparse index: 12-byte entries of two ascending numbers, in memory first, then in a file.

    bytes   field
    0-3     magic, `DLIX` or `DLTX`
    4-5     version u16, 1
    6-7     flags u16; bit 0: every write of the segment was durable before it counted;
            in `.tdx` bit 1: the timestamps are those of the records, bit 2: some could not be read
    8-15    base offset of the segment u64
    16-19   CRC-32C of bytes 0-15
    20-23   CRC of the entries, see `dlogd.storage.segment.index_checksum`
    24-31   flushed mark u64, only in `.idx`: all below this position of the segment is durable
    32-39   the same with all bits inverted, so that garbage is not taken for a mark
    40-47   count of the entries that the CRC covers, and a CRC of that and the last of them
    48-     entries of 12 bytes; the first that is all zero ends them

Little-endian; docs/formats/index.md. What the two numbers of an entry mean is the business of
`dlogd.storage.segment.offset_index` and `dlogd.storage.segment.time_index`. An entry waits in
memory until it is settled: the bytes before it and the batch that it names are on stable storage.
Only then does it reach the file, so recovery may trust what stands there, as far as the checksum
agrees, and start its scan at the last entry. The file is searched by reads, not by a mapping: a
dying disk must not end the process (docs/decisions/0010).
"""

import errno
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from dlog.checksum import crc32c
from dlogd.storage.io.files import File
from dlogd.storage.segment.index_checksum import ENTRY_BYTES, IndexChecksum, StoredSum

HEADER_BYTES = 48
VERSION = 1
FLAG_DURABLE = 1
FLAG_TRUE = 2
FLAG_UNDECODED = 4

# Entries read at once where a search ends, and kept: one block of the file system.
PAGE_COUNT = 340

# So many settled entries stay in memory as well: readers of the tail find them by a bisect in C.
RECENT_COUNT_MAX = 4096

_HEADER = struct.Struct("<4sHHQ")
_CRC = struct.Struct("<I")
# What changes as entries and flushes come: CRC of the entries, mark, mark inverted, count, guard.
_NOTE = struct.Struct("<IQQII")
_NOTE_POSITION = 20
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
    is_true: bool = False
    """Of a closed segment's `.tdx`: whether its timestamps were computed from the records."""
    is_decoded: bool = True
    """Whether the records of all batches could be decoded for that."""


NO_ENTRIES = IndexChecksum()


def encode_header(header: EntryHeader, entries: IndexChecksum = NO_ENTRIES) -> bytes:
    """Return the 48 bytes before the entries, which vouch for `entries`."""
    flags = FLAG_DURABLE if header.durable else 0
    flags |= FLAG_TRUE if header.is_true else 0
    flags |= 0 if header.is_decoded else FLAG_UNDECODED
    head = _HEADER.pack(header.magic, VERSION, flags, header.base_offset)
    return head + _CRC.pack(crc32c(head)) + _encode_note(header.mark, entries.stored())


def _encode_note(mark: int, stored: StoredSum) -> bytes:
    count, crc, guard = stored
    return _NOTE.pack(crc, mark, mark ^ _MASK, count, guard)


def decode_header(data: bytes | memoryview, magic: bytes) -> EntryHeader | None:
    """Return the header, or None when the bytes are not one of this kind."""
    if len(data) < HEADER_BYTES:
        return None
    found, version, flags, base_offset = _HEADER.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, 16)
    if found != magic or version != VERSION or crc != crc32c(bytes(data[:16])):
        return None
    _, mark, inverted, _, _ = _NOTE.unpack_from(data, _NOTE_POSITION)
    known = mark ^ _MASK == inverted and mark < MARK_MAX
    return EntryHeader(
        magic=magic,
        base_offset=base_offset,
        durable=bool(flags & FLAG_DURABLE),
        mark=mark if known else 0,
        is_true=bool(flags & FLAG_TRUE),
        is_decoded=not flags & FLAG_UNDECODED,
    )


def decode_sum(data: bytes | memoryview) -> StoredSum:
    """Return what a head says of the entries."""
    crc, _, _, count, guard = _NOTE.unpack_from(data, _NOTE_POSITION)
    return StoredSum(count, crc, guard)


class OpenedEntries(NamedTuple):
    """An index file that was opened, and the sum of its settled entries as they were read."""

    file: File
    entries: IndexChecksum
    mark: int = 0


class IndexKind(NamedTuple):
    """What all index files of one kind have in common."""

    suffix: str
    magic: bytes
    entry: struct.Struct
    typecodes: str
    """Of the two columns in memory, as `array` names them."""


class SparseIndex:
    """The entries of one file: `first` and `second` ascend together.

    Entries [0, settled) are in the file; [recent, count) are in memory; recent <= settled <= count.
    Owner: the event loop's thread. Reads and writes of the file are small and go through the page
    cache; they are done in place.
    """

    __slots__ = (
        "_ends",
        "_entry",
        "_file",
        "_firsts",
        "_mark",
        "_page",
        "_page_first",
        "_recent",
        "_seconds",
        "_stored",
        "_sum",
        "kind",
        "settled",
    )

    def __init__(self, kind: IndexKind, settled: int) -> None:
        self.kind = kind
        self._entry = kind.entry
        self._firsts = array(kind.typecodes[0])
        self._seconds = array(kind.typecodes[1])
        # Position in the segment where the batch that the entry names ends.
        self._ends = array("Q")
        self._recent = settled
        self._file: File | None = None
        # The entries from number `_page_first` on, as they stand in the file.
        self._page = b""
        self._page_first = 0
        # Of the settled entries and of the file's head, as long as the file is open.
        self._sum = NO_ENTRIES
        self._stored = NO_ENTRIES.stored()
        self._mark = 0
        self.settled = settled

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
        """The open file."""
        return self._file

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._file is not None

    def add(self, first: int, second: int, end: int) -> None:
        """Append an entry that settles when the segment is on stable storage up to `end`."""
        self._firsts.append(first)
        self._seconds.append(second)
        self._ends.append(end)

    def settle(self, position: int) -> None:
        """Write the entries to the file whose batches end at or before `position`.

        What cannot be written waits in memory, and is tried again with the next ones.
        """
        with suppress(OSError):
            self.settle_all(position)

    def settle_all(self, position: int) -> None:
        """Do as `settle`, but raise OSError when not all could be written."""
        file = self._file
        ends = self._ends
        at = self.settled - self._recent
        count = len(ends)
        if file is None or at >= count or ends[at] > position:
            return
        pack, firsts, seconds = self._entry.pack, self._firsts, self._seconds
        written = bytearray()
        while at < count and ends[at] <= position:
            written += pack(firsts[at], seconds[at])
            at += 1
        file.pwrite(written, HEADER_BYTES + ENTRY_BYTES * self.settled)
        self.settled = self._recent + at
        self._sum = self._sum.plus(written)
        self._stored = self._sum.stored()
        if at > RECENT_COUNT_MAX:
            drop = at - RECENT_COUNT_MAX // 2
            del firsts[:drop], seconds[:drop], ends[:drop]
            self._recent += drop
        self.note()

    def note(self) -> None:
        """Vouch in the file for what is settled; until then it vouches for less. Raises OSError."""
        if self._file is not None:
            self._file.pwrite(_encode_note(self._mark, self._stored), _NOTE_POSITION)

    def mark(self, position: int) -> None:
        """Note in the file that everything below `position` is on stable storage.

        A lower bound: what cannot be written is left at its old value.
        """
        self._mark = position
        with suppress(OSError):
            self.note()

    def set_header(self, header: EntryHeader) -> None:
        """Replace the head of the file. Raises OSError."""
        self._mark = header.mark
        if self._file is not None:
            self._file.pwrite(encode_header(header, self._sum), 0)

    def entry(self, number: int) -> tuple[int, int] | None:
        """Return an entry, or None when the file that holds it is not open. May raise OSError."""
        at = number - self._recent
        if at >= 0:
            return self._firsts[at], self._seconds[at]
        if self._file is None:
            return None
        at = number - self._page_first
        if 0 <= at < len(self._page) // ENTRY_BYTES:
            first, second = self._entry.unpack_from(self._page, ENTRY_BYTES * at)
        else:
            first, second = self._entry.unpack(self._load(number, 1))
        return first, second

    def first_in_memory(self) -> tuple[int, int] | None:
        """Return the first entry that is in memory, if there is one."""
        return (self._firsts[0], self._seconds[0]) if self._ends else None

    def count_up_to(self, value: int, *, column: int) -> int | None:
        """Return how many entries have `column` <= value; None when that needs the file, which is
        not open. May raise OSError.
        """
        recent = self._seconds if column else self._firsts
        if recent and recent[0] <= value:
            return self._recent + bisect_right(recent, value)
        return self._bisect(value, column, bisect_right)

    def count_below(self, value: int, *, column: int) -> int | None:
        """Return how many entries have `column` < value; None when that needs the file, which is
        not open. May raise OSError.
        """
        recent = self._seconds if column else self._firsts
        if recent and recent[0] < value:
            return self._recent + bisect_left(recent, value)
        return self._bisect(value, column, bisect_left)

    def _bisect(self, value: int, column: int, bisect: Callable[..., int]) -> int | None:
        """Search the entries that are only in the file: in the last page, else by its first."""
        if not self._recent:
            return 0
        if self._file is None:
            return None
        count = len(self._page) // ENTRY_BYTES
        found = self._bisect_page(value, column, bisect)
        if 0 < found < count:
            return self._page_first + found
        unpack = self._entry.unpack
        pages = range(0, self._recent, PAGE_COUNT)
        number = bisect(pages, value, key=lambda first: unpack(self._load(first, 1))[column])
        if not number:
            return 0
        first = pages[number - 1]
        self._page = self._load(first, min(PAGE_COUNT, self._recent - first))
        self._page_first = first
        return first + self._bisect_page(value, column, bisect)

    def _bisect_page(self, value: int, column: int, bisect: Callable[..., int]) -> int:
        unpack, page = self._entry.unpack_from, self._page
        entries = range(0, len(page), ENTRY_BYTES)
        return bisect(entries, value, key=lambda at: unpack(page, at)[column])

    def _load(self, number: int, count: int) -> bytes:
        """Read entries from the file; from the page cache that takes about a microsecond."""
        assert self._file is not None
        data = self._file.pread(ENTRY_BYTES * count, HEADER_BYTES + ENTRY_BYTES * number)
        if len(data) < ENTRY_BYTES * count:
            # Not a disk that fails: somebody has cut the file.
            raise OSError(errno.EINVAL, "An index has lost its end", self._file.path)
        return data

    def cut(self, count: int) -> None:
        """Forget all entries from number `count` on; the file has zeros there. Raises OSError."""
        self._page = b""
        at = max(0, count - self._recent)
        del self._firsts[at:], self._seconds[at:], self._ends[at:]
        if count < self._recent:
            self._recent = count
        if self._file is not None and count < self.settled:
            # Before anything changes: a sum cannot be taken back, so it is made anew.
            left = NO_ENTRIES.plus(self._load(0, count))
            zeros = bytes(ENTRY_BYTES * (self.settled - count))
            self._file.pwrite(zeros, HEADER_BYTES + ENTRY_BYTES * count)
            self._sum, self._stored = left, left.stored()
            self.note()
        self.settled = min(self.settled, count)

    # -- the file

    def attach(self, opened: OpenedEntries) -> None:
        """Use a file that `open_entries` brought; on the loop's thread."""
        assert opened.entries.total == self.settled
        self._file, self._sum, self._mark = opened
        self._stored = self._sum.stored()

    def replace_settled(self, count: int) -> None:
        """The file, which is not open, was made anew and has `count` entries now."""
        assert self._file is None and self._recent == self.settled
        self._recent = self.settled = count

    def detach(self) -> File | None:
        """Stop using the file and return it, to be closed; what is settled stays in it."""
        found, self._file = self._file, None
        self._page = b""
        return found

    def forget_recent(self) -> None:
        """Keep in memory only what is not in the file."""
        drop = self.settled - self._recent
        del self._firsts[:drop], self._seconds[:drop], self._ends[:drop]
        self._recent = self.settled
