"""Whole batches, as a fetch brings them, to records: bounds, checksums, decompression.

`decode_records` gives one object per record; `dlog.batch.columns` gives columns and opens batches
through here too. Control batches are left out, they hold nothing of a user's. A batch of which not
all bytes are there ends the reading in silence: a fetch may cut the last one.

Pure. Memory is bounded: one call decompresses about as much as its `Opening` says before the last
batch that it opens, and no batch to more than that allows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from dlog.batch import native
from dlog.batch.header import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    decode_header,
    verify_crc,
)
from dlog.batch.open_batch import OpenBatch
from dlog.batch.records import RECORDS_BYTES_MAX, Record
from dlog.checksum import Buffer
from dlog.compression import decompress
from dlog.errors import CorruptMessageError, WireError

R = TypeVar("R", bound=tuple[Any, ...])

_OFFSET_FIELD = Record._fields.index("offset")
_UNBOUNDED = 2**63 - 1
_DATA_BYTES_MAX = 2**31 - 1  # what int32 bounds can address


class Bounds(NamedTuple):
    """Which records a caller wants: offsets from `start_offset`, below `end_offset`.

    The order of the fields is that of the inner loops' arguments.
    """

    start_offset: int = 0
    end_offset: int = _UNBOUNDED
    record_count_max: int = _UNBOUNDED
    bytes_max: int = _DATA_BYTES_MAX
    """Of whole uncompressed records; the first is given whatever its size."""


def bounds(
    start_offset: int, end_offset: int | None, max_records: int | None, max_bytes: int | None
) -> Bounds:
    """Return the bounds, None meaning none."""
    return Bounds(
        start_offset=start_offset,
        end_offset=_UNBOUNDED if end_offset is None else end_offset,
        record_count_max=_UNBOUNDED if max_records is None else max_records,
        bytes_max=_DATA_BYTES_MAX if max_bytes is None else min(max_bytes, _DATA_BYTES_MAX),
    )


OPENED_BYTES_ENOUGH = 8 * 1024 * 1024
"""Consumers decompress batches in runs of about that, and decode them run by run."""


class Opening(NamedTuple):
    """How much to decompress."""

    batch_bytes_max: int
    """A batch with more is refused with DecompressedTooLargeError."""
    bytes_enough: int
    """No further batch is opened once so much is."""


class Opened(NamedTuple):
    """The batches that hold what is wanted, and the offset behind them."""

    batches: list[OpenBatch]
    next_offset: int

    @property
    def data_bytes(self) -> int:
        """What the batches take, decompressed."""
        return sum(memoryview(batch.data).nbytes for batch in self.batches)


class Shaped(NamedTuple, Generic[R]):
    """Records of a type of the caller's, where to read on, and what their batches take."""

    records: list[R]
    next_offset: int
    data_bytes: int


class RecordRun(NamedTuple):
    """Records in order, and the offset to read on from.

    `next_offset` passes over control batches and over what compaction has removed.
    """

    records: list[Record]
    next_offset: int


def decode_records(
    buffer: Buffer,
    start_offset: int = 0,
    *,
    end_offset: int | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
    verify_crc: bool = True,
) -> list[Record]:
    """Return the records of the whole batches in `buffer`, as far as the bounds allow.

    Raises CorruptMessageError that names the offset and the cause.
    """
    wanted = bounds(start_offset, end_offset, max_records, max_bytes)
    return read_records([buffer], wanted, verify_crc=verify_crc).records


def read_records(
    buffers: Sequence[Buffer], wanted: Bounds, *, verify_crc: bool = True
) -> RecordRun:
    """Return the wanted records of the whole batches in `buffers`, and where they end."""
    batches, next_offset = open_batches(buffers, wanted, verify_crc=verify_crc)
    records, is_complete = native.decode_records(batches, *wanted)
    if not is_complete:
        next_offset = records[-1].offset + 1 if records else wanted.start_offset
    return RecordRun(records, next_offset)


def read_shaped(
    buffers: Sequence[Buffer],
    wanted: Bounds,
    record_type: type[R],
    more: tuple[str | int, ...],
    *,
    opening: Opening | None = None,
    verify_crc: bool = True,
) -> Shaped[R]:
    """Do what `read_records` does, but make another named tuple of each record.

    Its fields are those of `Record`, and then `more`, the same for all.
    """
    opened = open_batches(buffers, wanted, opening=opening, verify_crc=verify_crc)
    records, is_complete = native.decode_records(opened.batches, *wanted, (record_type, *more))
    next_offset = opened.next_offset
    if not is_complete:
        next_offset = records[-1][_OFFSET_FIELD] + 1 if records else wanted.start_offset
    return Shaped(records, next_offset, opened.data_bytes)


def open_batches(
    buffers: Sequence[Buffer],
    wanted: Bounds,
    *,
    opening: Opening | None = None,
    verify_crc: bool = True,
) -> Opened:
    """Check and decompress the batches that hold wanted records; stop when there are enough."""
    opening = opening or Opening(RECORDS_BYTES_MAX, RECORDS_BYTES_MAX)
    batches: list[OpenBatch] = []
    next_offset = wanted.start_offset
    records_left = wanted.record_count_max
    bytes_left = min(wanted.bytes_max, opening.bytes_enough)
    for view, position, header in _iter_batches(buffers, wanted):
        if header.base_offset >= wanted.end_offset:
            return Opened(batches, max(next_offset, wanted.end_offset))
        if records_left <= 0 or bytes_left <= 0:
            break
        if not header.is_control:
            batch = _open_batch(view, position, header, verify_crc, opening.batch_bytes_max)
            batches.append(batch)
            if header.base_offset >= wanted.start_offset:
                records_left -= header.record_count
                bytes_left -= memoryview(batch.data).nbytes
        next_offset = min(header.next_offset, wanted.end_offset)
    return Opened(batches, next_offset)


class Undecodable(NamedTuple):
    """The first batch that cannot be decoded: its first offset, and the offset behind the batch."""

    base_offset: int
    next_offset: int


def find_undecodable(
    buffers: Sequence[Buffer], wanted: Bounds, batch_bytes_max: int
) -> Undecodable | None:
    """Return the first batch with wanted records that cannot be decoded, after it was met.

    Decodes all batches before it once more, each by itself.
    """
    for view, position, header in _iter_batches(buffers, wanted):
        if header.base_offset >= wanted.end_offset:
            return None
        if header.is_control:
            continue
        try:
            native.decode_records(
                [_open_batch(view, position, header, False, batch_bytes_max)], *wanted
            )
        except WireError:
            return Undecodable(header.base_offset, header.next_offset)
    return None


def open_in_runs(
    buffers: Sequence[Buffer], wanted: Bounds, opening: Opening, *, verify_crc: bool = True
) -> Iterator[list[OpenBatch]]:
    """Check and decompress the batches that hold wanted records, some at a time.

    A run is closed when it has `opening.bytes_enough`, so that no batch is opened twice, and its
    batches agree on who stamped their records: the writer, or the leader. The run before a batch
    that cannot be opened is yielded before the error is raised.
    """
    run: list[OpenBatch] = []
    run_bytes = 0
    for view, position, header in _iter_batches(buffers, wanted):
        if header.base_offset >= wanted.end_offset:
            break
        if header.is_control:
            continue
        if run and (
            run_bytes >= opening.bytes_enough or _is_stamped(run[0]) != header.is_log_append_time
        ):
            yield run
            run, run_bytes = [], 0
        try:
            batch = _open_batch(view, position, header, verify_crc, opening.batch_bytes_max)
        except WireError:
            if run:
                yield run
            raise
        run.append(batch)
        run_bytes += memoryview(batch.data).nbytes
    if run:
        yield run


def _is_stamped(batch: OpenBatch) -> bool:
    return batch.append_time_ms is not None


def _iter_batches(
    buffers: Sequence[Buffer], wanted: Bounds
) -> Iterator[tuple[memoryview, int, BatchHeader]]:
    """Yield where the whole batches are that end behind `start_offset`."""
    next_offset = wanted.start_offset
    for buffer in buffers:
        view = memoryview(buffer)
        position = 0
        while len(view) - position >= HEADER_BYTES:
            try:
                header = decode_header(view, position)
            except CorruptMessageError as error:
                raise CorruptMessageError(f"batch at offset {next_offset}: {error}") from None
            if header.batch_bytes > len(view) - position:
                break
            if header.next_offset > wanted.start_offset:
                yield view, position, header
                next_offset = header.next_offset
            position += header.batch_bytes


def _open_batch(
    view: memoryview,
    position: int,
    header: BatchHeader,
    must_verify: bool,
    bytes_max: int,
) -> OpenBatch:
    if must_verify and not verify_crc(view, position, header.batch_bytes):
        raise CorruptMessageError(f"batch at offset {header.base_offset}: its CRC is wrong")
    data: Buffer = view[position + HEADER_BYTES : position + header.batch_bytes]
    if header.attributes & CODEC_MASK:
        try:
            data = decompress(header.codec, data, bytes_max)
        except WireError as error:
            raise type(error)(f"batch at offset {header.base_offset}: {error}") from None
    return OpenBatch(
        data,
        header.record_count,
        header.base_offset,
        header.base_timestamp_ms,
        header.max_timestamp_ms if header.is_log_append_time else None,
        header.last_offset_delta,
    )
