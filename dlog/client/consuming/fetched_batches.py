"""Batches of one partition from one fetch: whole, checked, still packed.

Pure. `scan` goes over the heads once, when the bytes arrive: it checks every CRC, leaves out
control batches and, for readers of committed records only, batches of aborted transactions
(KIP-98). Records are not decoded before somebody takes them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dlog.batch.header import (
    CONTROL_BIT,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    decode_header,
    verify_crc,
)
from dlog.batch.records import decode
from dlog.errors import CorruptMessageError

_ABORT = 0  # type of a control record; its key is two int16: version, type


class BatchSpan(NamedTuple):
    """Where one batch lies in the bytes of its chunk, and what it holds."""

    start: int
    end: int
    base_offset: int
    next_offset: int
    record_count: int
    leader_epoch: int


class Hole(NamedTuple):
    """Offsets from `start` to `end` (exclusive) that no batch covers."""

    start: int
    end: int


class FetchedBatches:
    """Batches of one partition, in order; taken from the front.

    Invariant: batches before `next_batch` were taken; `end_offset` is behind the last batch, those
    that were left out included.
    """

    __slots__ = (
        "_alone_before",
        "_data",
        "batches",
        "end_offset",
        "leader_epoch",
        "next_batch",
        "size_bytes",
    )

    def __init__(self, data: memoryview, end_offset: int, leader_epoch: int) -> None:
        self._data = data
        self.size_bytes = len(data)
        self.batches: list[BatchSpan] = []
        self.next_batch = 0
        # Batches below this index are taken one by one.
        self._alone_before = 0
        self.end_offset = end_offset
        self.leader_epoch = leader_epoch  # of the last batch

    @property
    def is_spent(self) -> bool:
        """Whether every batch was taken."""
        return self.next_batch >= len(self.batches)

    def select(self, count_max: int) -> int:
        """Return how far (exclusive) to take batches for `count_max` records: one at least."""
        last = self.next_batch
        if last < self._alone_before:
            return last + 1
        count = 0
        for span in self.batches[last:]:
            count += span.record_count
            if count > count_max and last > self.next_batch:
                break
            last += 1
            if count >= count_max:
                break
        return last

    def take_alone(self, last: int) -> None:
        """Select the batches before `last` one by one: some batch of them cannot be decoded."""
        self._alone_before = last

    def views(self, last: int) -> list[memoryview]:
        """Return the bytes of the batches from the next one to `last` (exclusive)."""
        views: list[memoryview] = []
        start = end = -1
        for span in self.batches[self.next_batch : last]:
            if span.start != end:
                if end >= 0:
                    views.append(self._data[start:end])
                start = span.start
            end = span.end
        if end >= 0:
            views.append(self._data[start:end])
        return views

    def skip_to(self, offset: int) -> int:
        """Leave the batches below `offset` behind; return the epoch of the batch before it.

        That is -1 when none of the batches that were left is.
        """
        epoch = -1
        while not self.is_spent:
            span = self.batches[self.next_batch]
            if span.base_offset >= offset:
                break
            epoch = span.leader_epoch
            if span.next_offset > offset:
                break
            self.next_batch += 1
        return epoch


class _Aborted:
    """Which transactional batches belong to aborted transactions, batch by batch in order."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        # (first offset, producer id), the next one last.
        self._coming = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: dict[int, None] = {}

    def drops(self, header: BatchHeader) -> bool:
        """Return whether the batch is part of an aborted transaction."""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open[self._coming.pop()[1]] = None
        return header.attributes & TRANSACTIONAL_BIT != 0 and header.producer_id in self._open

    def on_marker(self, header: BatchHeader, data: memoryview, position: int) -> None:
        """Take in a control batch: an abort marker ends the transaction of its producer."""
        if header.producer_id in self._open and _is_abort(data, position):
            del self._open[header.producer_id]


def _is_abort(data: memoryview, position: int) -> bool:
    records = decode(data, position)
    key = records[0].key if records else None
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == _ABORT


def scan(
    data: memoryview,
    fetch_offset: int,
    *,
    aborted: Sequence[tuple[int, int]] = (),
    is_sparse: bool = False,
) -> tuple[FetchedBatches, Hole | None]:
    """Return the whole batches of `data` as a chunk that begins at `fetch_offset`.

    With `is_sparse` (a compacted topic) offsets may be missing. Without, the chunk ends before the
    first hole; a hole at its very beginning is returned too. Raises CorruptMessageError that names
    the offset when the first batches are damaged; a chunk ends before damage behind good batches.
    """
    chunk = FetchedBatches(data, fetch_offset, -1)
    filter_aborted = _Aborted(aborted) if aborted else None
    position = 0
    end = len(data)
    while end - position >= HEADER_BYTES:
        try:
            header = _check(data, position, end)
        except CorruptMessageError as error:
            if chunk.end_offset > fetch_offset:
                break
            raise CorruptMessageError(f"after offset {fetch_offset}: {error}") from None
        if header is None:
            break
        expected = chunk.end_offset
        if header.base_offset > expected and not is_sparse:
            return chunk, Hole(expected, header.base_offset) if expected == fetch_offset else None
        if header.next_offset > expected:
            if _is_wanted(header, data, position, filter_aborted):
                chunk.batches.append(_span(header, position))
            chunk.end_offset = header.next_offset
            chunk.leader_epoch = header.leader_epoch
        position += header.batch_bytes
    return chunk, None


def _span(header: BatchHeader, position: int) -> BatchSpan:
    return BatchSpan(
        position,
        position + header.batch_bytes,
        header.base_offset,
        header.next_offset,
        header.record_count,
        header.leader_epoch,
    )


def _check(data: memoryview, position: int, end: int) -> BatchHeader | None:
    """Return the head of the batch at `position`; None when the fetch cut it behind others."""
    header = decode_header(data, position)
    if header.batch_bytes > end - position:
        if position == 0:
            raise CorruptMessageError(f"the first batch, of {header.batch_bytes} bytes, is cut")
        return None
    if not verify_crc(data, position, header.batch_bytes):
        raise CorruptMessageError(f"the batch at {header.base_offset} fails its CRC")
    return header


def _is_wanted(
    header: BatchHeader, data: memoryview, position: int, aborted: _Aborted | None
) -> bool:
    if aborted is not None and aborted.drops(header) and not header.attributes & CONTROL_BIT:
        return False
    if header.attributes & CONTROL_BIT:
        if aborted is not None:
            aborted.on_marker(header, data, position)
        return False
    return header.record_count > 0
