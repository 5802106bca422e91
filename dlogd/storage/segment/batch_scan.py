"""Scan of the batches of a segment file, with checks; blocks, run by the engine.

Only finds out what is there: where the good batches end, what follows them. What that means is
decided by `dlogd.storage.log.log_recovery`.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    BatchHeader,
    follows_on,
    next_offset_of,
    size_of,
)
from dlog.checksum import crc32c
from dlogd.storage.io.files import File

WINDOW_BYTES_MIN = 16 * 1024
WINDOW_BYTES = 1 << 20
SECTOR_BYTES = 512
"""What a disk writes whole or not at all; disks with larger sectors write several of these."""

_SEARCH_BYTES = 64 * 1024
_NO_END = 1 << 62  # a batch may claim more than there is of the file
_ZEROS = bytes(WINDOW_BYTES)
_SECTOR_ZEROS = bytes(SECTOR_BYTES)

Fields = tuple[int, ...]
Visit = Callable[[Fields, int], None]
OnRead = Callable[[int], None]
"""Told how many bytes each read brought."""


def ignore_read(_: int) -> None:
    """Do nothing: nobody follows the progress."""


class Window:
    """Part of a file in memory, moved forward as it is asked for, in pieces that become larger."""

    def __init__(self, file: File, end: int, on_read: OnRead = ignore_read) -> None:
        self._file = file
        self._on_read = on_read
        self._data = b""
        self._start = 0
        self._step = WINDOW_BYTES_MIN
        self.end = end
        self.bytes_read = 0

    def at(self, position: int, length: int) -> tuple[bytes, int]:
        """Return (bytes, index of `position` in them); `length` bytes unless the file ends."""
        index = position - self._start
        if index < 0 or index + length > len(self._data):
            want = min(max(length, self._step), self.end - position)
            self._step = min(2 * self._step, WINDOW_BYTES)
            self._data = self._file.pread(want, position) if want > 0 else b""
            self._start = position
            self.bytes_read += len(self._data)
            self._on_read(len(self._data))
            index = 0
        return self._data, index


def batch_at(window: Window, position: int, expected_offset: int) -> Fields | None:
    """Return the head of the good batch at `position` that begins with `expected_offset`."""
    fields = plausible_head(window, position)
    if fields is None or not follows_on(fields, expected_offset):
        return None
    return fields if has_good_crc(window, position, fields) else None


def plausible_head(window: Window, position: int) -> Fields | None:
    """Return what stands at `position` when it can be the head of a batch within the file."""
    if window.end - position < HEADER_BYTES:
        return None
    data, index = window.at(position, HEADER_BYTES)
    if len(data) - index < HEADER_BYTES:
        return None
    fields = BATCH_STRUCT.unpack_from(data, index)
    size = size_of(fields)
    if (
        fields[FORMAT] != MAGIC
        or fields[BASE_OFFSET] < 0
        or fields[LAST_DELTA] < 0
        or not HEADER_BYTES <= size <= window.end - position
    ):
        return None
    return fields


def has_good_crc(window: Window, position: int, fields: Fields) -> bool:
    """Return whether the bytes of the batch at `position` are as its writer checksummed them."""
    at = position + CRC_START
    end = position + size_of(fields)
    crc = 0
    while at < end:
        data, index = window.at(at, min(end - at, WINDOW_BYTES))
        piece = memoryview(data)[index : index + end - at]
        if not piece:
            return False
        crc = crc32c(piece, crc)
        at += len(piece)
    return crc == fields[CRC]


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Where the row of good batches ends."""

    position: int
    next_offset: int


def scan(window: Window, position: int, expected_offset: int, visit: Visit) -> ScanEnd:
    """Visit each good batch from `position` on, until one is not what must come next."""
    while True:
        fields = batch_at(window, position, expected_offset)
        if fields is None:
            return ScanEnd(position, expected_offset)
        visit(fields, position)
        position += size_of(fields)
        expected_offset = next_offset_of(fields)


def iter_headers(window: Window, position: int) -> Iterator[BatchHeader]:
    """Yield the head of each batch from `position` to the window's end; CRCs are not checked."""
    while True:
        fields = plausible_head(window, position)
        if fields is None:
            return
        size = size_of(fields)
        yield BatchHeader(fields[BASE_OFFSET], size, *fields[LEADER_EPOCH:])
        position += size


def find_data_end(file: File, start: int, size: int, on_read: OnRead = ignore_read) -> int:
    """Return the position after the last byte that is not zero in [start, size), at least start."""
    while size > start:
        length = min(WINDOW_BYTES, size - start)
        data = file.pread(length, size - length)
        on_read(len(data))
        # Comparing is several times faster than stripping, and nearly all of it is zeros.
        if data != _ZEROS[: len(data)]:
            return size - length + len(data.rstrip(b"\0"))
        size -= length
    return start


def has_lost_sector(file: File, start: int, end: int, expected_offset: int) -> bool:
    """Return whether a sector in [start, end) looks never written: it is all zeros.

    Of the first sector, which begins with older batches, only the rest counts, and only when a
    batch with `expected_offset` would have put something else than zeros there.
    """
    rest = -start % SECTOR_BYTES
    if rest:
        head = struct.pack(">qI", expected_offset, 0xFF)[:rest]
        data = file.pread(rest, start)
        if not any(data) and (any(head) or rest >= 12):
            return True
    position = start + rest
    while position < end:
        length = min(WINDOW_BYTES, end - position + -(end - position) % SECTOR_BYTES)
        data = file.pread(length, position)
        for index in range(0, min(len(data), end - position), SECTOR_BYTES):
            if data[index : index + SECTOR_BYTES] == _SECTOR_ZEROS:
                return True
        if len(data) < length:
            return False
        position += len(data)
    return False


def may_be_one_write(
    file: File,
    start: int,
    data_end: int,
    expected_offset: int,
    bytes_max: int,
    on_read: OnRead = ignore_read,
) -> bool:
    """Return whether a single write can have left what lies in [start, data_end), torn or not.

    It began at `start` or before, with older batches. It has `bytes_max` and the rest of the batch
    that reaches over them, however large: no setting of today says how large one was allowed to be.
    The heads that arrived tell where it ends; where one did not, no good batch begins beyond.
    """
    limit = start + bytes_max
    if data_end <= limit:
        return True
    size = file.size()
    window = Window(file, _NO_END)
    position, offset = start, expected_offset
    while position < limit:
        head_end = position + HEADER_BYTES
        if head_end > size or has_lost_sector(file, position, head_end, offset):
            return find_batch(file, limit, size, expected_offset, on_read) is None
        fields = plausible_head(window, position)
        if fields is None or not follows_on(fields, offset):
            return False  # no sector is missing there: the bytes were changed
        position += size_of(fields)
        offset += fields[LAST_DELTA] + 1
    return data_end <= position


def find_batch(
    file: File, start: int, end: int, expected_offset: int, on_read: OnRead = ignore_read
) -> int | None:
    """Return the position of the first good batch that begins at or after `start`.

    It must have an offset >= `expected_offset`. Candidates are found at any byte by a regular
    expression over what is fixed in a head, in C: the upper half of the offset, the magic, the
    upper half of the attributes, the signs of the length and of the last offset delta.
    """
    pattern = _pattern(expected_offset)
    window = Window(file, end)
    position = start
    while end - position >= HEADER_BYTES:
        data = file.pread(min(_SEARCH_BYTES, end - position), position)
        on_read(len(data))
        if len(data) < HEADER_BYTES:
            return None  # the file ends before `end`: it was cut meanwhile, or has lost its end
        found = None if data == _ZEROS[: len(data)] else pattern.search(data)
        while found is not None:
            candidate = position + found.start()
            fields = plausible_head(window, candidate)
            if (
                fields is not None
                and fields[BASE_OFFSET] >= expected_offset
                and has_good_crc(window, candidate, fields)
            ):
                return candidate
            found = pattern.search(data, found.start() + 1)
        # A head may begin in the last bytes of what was searched.
        position += max(len(data) - HEADER_BYTES + 1, 1)
    return None


def next_good(
    file: File, start: int, end: int, bad_position: int, bad_offset: int
) -> tuple[int, int] | None:
    """Return position and offset of the first good batch in [start, end), None if there is none.

    That is behind the bad batch at `bad_position`, which should begin with `bad_offset`. When it is
    only the content of the bad batch that is bad, its own length tells where the next one is; else
    they are searched for at any byte, but a record may hold what looks like a batch.
    """
    window = Window(file, end)
    fields = plausible_head(window, start) if start == bad_position else None
    if fields is not None and fields[BASE_OFFSET] == bad_offset:
        position, offset = start + size_of(fields), next_offset_of(fields)
        if position == end:
            return None
        if batch_at(window, position, offset) is not None:
            return position, offset
    first = start + 1 if start == bad_position else start
    found = find_batch(file, first, end, bad_offset + 1)
    if found is None:
        return None
    head = plausible_head(window, found)
    assert head is not None
    return found, head[0]


def _pattern(expected_offset: int) -> re.Pattern[bytes]:
    upper, lower = divmod(expected_offset, 1 << 32)
    prefix = re.escape(struct.pack(">i", upper))
    if lower > 1 << 31:
        prefix = b"(?:" + prefix + b"|" + re.escape(struct.pack(">i", upper + 1)) + b")"
    return re.compile(prefix + rb"(?s:.{4}[\x00-\x7f].{3}.{4}\x02.{4}\x00[\x00-\x7f][\x00-\x7f])")
