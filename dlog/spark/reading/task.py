"""Task of a read: one range of offsets into Arrow record batches.

Runs in Spark's Python workers, which take one task after the other: the thread that fetches, with
its connections and what it knows of the cluster, stays for the next one. `dlog.client` deals with
leaders that change and nodes that are lost; here it is decided what a gap means to a query.
"""

import atexit
import contextlib
import gc
import logging
from collections.abc import Generator, Iterator
from functools import cache

import pyarrow as pa
from pyspark import TaskContext

from dlog.batch.decoding import bounds, find_undecodable
from dlog.client.cluster.loop_thread import LoopThread
from dlog.client.consuming.fetch_plan import FetchLimits
from dlog.client.consuming.partition_cursor import Packed
from dlog.client.gaps import Gap, GapError, GapReason
from dlog.client.range_reader import RangeReader
from dlog.client.retry import RetryPolicy
from dlog.errors import (
    CorruptMessageError,
    DecompressedTooLargeError,
    DlogError,
    TransportError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedCompressionTypeError,
)
from dlog.spark.errors import UNREACHABLE, DataLossError, SparkSourceError
from dlog.spark.reading.ranges import OffsetRange
from dlog.spark.reading.rows import RowMaker
from dlog.spark.settings import ClientSettings
from dlog.types import ZERO_TOPIC_ID

IDLE_MAX = 4
"""Readers that are kept for the next task; a worker uses one, for each cluster that it reads."""

_LOG = logging.getLogger("dlog.spark")
_PREFETCH_ANSWERS = 2  # one is decoded while the next one comes
_MAX_WAIT_MS = 250
_LOSS = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
_RECREATED = "KAFKA_DATA_LOSS.PARTITIONS_DELETED"  # as the planner says it
_LOSS_CURE = (
    "Records were deleted by retention, or the topic was deleted or cut back, before they were "
    "read; set failOnDataLoss to false to go on without them."
)


def read_range(
    settings: ClientSettings,
    wanted: OffsetRange,
    schema: pa.Schema,
    *,
    fail_on_data_loss: bool,
    clip_timestamps: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order, as batches of exactly this schema.

    Raises DataLossError where records are gone, unless such places are to be passed over with a
    log line; SparkSourceError when the range cannot be read; OptionError for a schema that the
    source does not have. Offsets that hold no record are no loss.
    """
    batch_bytes_max = settings.decompressed_batch_bytes_max
    rows = RowMaker(
        schema,
        wanted.topic,
        wanted.partition,
        clip_timestamps=clip_timestamps,
        batch_bytes_max=batch_bytes_max,
    )
    if not len(wanted):
        return
    with contextlib.closing(_packed(settings, wanted, fail_on_data_loss)) as found:
        for packed in found:
            yield from _made(rows, packed, wanted, batch_bytes_max)
    _settle_worker()


def _made(
    rows: RowMaker, packed: Packed, wanted: OffsetRange, batch_bytes_max: int
) -> Iterator[pa.RecordBatch]:
    try:
        yield from rows.make(packed.views, packed.start_offset, wanted.end_offset)
    except (CorruptMessageError, UnsupportedCompressionTypeError) as error:
        raise _undecodable(packed, wanted, batch_bytes_max, error) from error


def _undecodable(
    packed: Packed, wanted: OffsetRange, batch_bytes_max: int, error: DlogError
) -> SparkSourceError:
    """Return the error about a batch that cannot be decoded: where to end before and go on."""
    sought = bounds(packed.start_offset, wanted.end_offset, None, None)
    found = find_undecodable(packed.views, sought, batch_bytes_max)
    places = (
        "startingOffsets, endingOffsets"
        if found is None
        else f"endingOffsets {found.base_offset}, then startingOffsets {found.next_offset}"
    )
    return SparkSourceError(
        "DLOG_READ_FAILED",
        f"{_name(wanted)} could not be read: {type(error).__name__}: {error}.",
        f"Raise maxDecompressedBatchBytes, or read what is before and behind that batch ({places})."
        if isinstance(error, DecompressedTooLargeError)
        else "The checksum is right, so a producer wrote damaged records: read what is before"
        f" and behind that batch ({places}), or delete it.",
    )


@cache
def _settle_worker() -> None:
    """Take what a worker of Spark has loaded out of the garbage collector's sight, once.

    Spark collects all garbage after each task: that goes through every object of every module that
    is imported, for 50 ms or more, and none of them is garbage.
    """
    if TaskContext.get() is not None:
        gc.freeze()


def _packed(
    settings: ClientSettings, wanted: OffsetRange, fail_on_data_loss: bool
) -> Generator[Packed]:
    try:
        reader = _borrow(settings)
    except ValueError as error:
        raise SparkSourceError(
            "DLOG_READ_FAILED",
            f"{_name(wanted)} could not be read: {error}.",
            "Check kafka.bootstrap.servers.",
        ) from error
    is_sound = False
    try:
        reading = _RangeReading(reader, settings, wanted, fail_on_data_loss)
        yield from reading.run()
        is_sound = True
    except (GeneratorExit, DataLossError):
        is_sound = True  # nothing is wrong with the reader
        raise
    except SparkSourceError:
        raise
    except DlogError as error:
        raise _failed(wanted, error) from error
    finally:
        _give_back(settings, reader, is_sound=is_sound)


class _Reader:
    """A `RangeReader` on a thread of its own, for callers that wait."""

    def __init__(self, settings: ClientSettings) -> None:
        self.thread = LoopThread("dlog-spark-reader")
        connection = settings.connection()
        size = settings.partition_bytes_max
        limits = FetchLimits(
            prefetch_bytes_max=_PREFETCH_ANSWERS * size,
            partition_bytes_max=size,
            max_wait_ms=_MAX_WAIT_MS,
            isolation=settings.isolation,
            rack=settings.rack or "",
        )

        async def make() -> RangeReader:
            return RangeReader(
                settings.bootstrap,
                limits=limits,
                connection=connection,
                policy=RetryPolicy(deadline_s=settings.deadline_s),
            )

        self.thread.start()
        try:
            self.ranges = self.thread.call(make)
        except ValueError:
            self.thread.close()
            raise

    def close(self) -> None:
        """End the thread and all connections."""
        if self.thread.is_open:
            self.thread.call(self.ranges.close)
            self.thread.close()


class _RangeReading:
    """One range, by one reader."""

    def __init__(
        self,
        reader: _Reader,
        settings: ClientSettings,
        wanted: OffsetRange,
        fail_on_data_loss: bool,
    ) -> None:
        self._call = reader.thread.call
        self._ranges = reader.ranges
        self._deadline_s = settings.deadline_s
        self._wanted = wanted
        self._fail_on_data_loss = fail_on_data_loss
        self._has_read = False
        self._position = wanted.start_offset

    def run(self) -> Iterator[Packed]:
        """Yield the batches of the range."""
        try:
            self._begin(self._wanted.start_offset)
            yield from self._batches()
        except UnknownTopicOrPartitionError as error:
            self._lose(self._position, self._wanted.end_offset, str(error))
        except UnknownTopicIdError as error:
            self._lose(self._position, self._wanted.end_offset, str(error), _RECREATED)

    def _batches(self) -> Iterator[Packed]:
        while True:
            self._position = self._ranges.position
            try:
                packed = self._call(lambda: self._ranges.take(self._deadline_s))
            except GapError as error:
                if not self._pass(error.gap):
                    return
                continue
            if packed is not None:
                self._has_read = True
                yield packed
            elif self._ranges.is_at_end:
                return
            else:
                raise self._late()

    def _begin(self, offset: int) -> None:
        wanted = self._wanted
        self._call(
            lambda: self._ranges.begin(
                wanted.topic,
                wanted.partition,
                offset,
                wanted.end_offset,
                topic_id=wanted.topic_id,
            )
        )

    def _pass(self, gap: Gap) -> bool:
        """Do what a gap asks for; return whether there is more to read behind it."""
        end = self._wanted.end_offset
        resume = gap.resume_offset
        if gap.reason is GapReason.RECREATED and not self._has_read:
            # What this process knew of the topic was old, not the query.
            resume = self._wanted.start_offset
            if self._wanted.topic_id != ZERO_TOPIC_ID:  # or a node lags; if not, that is told here
                self._begin(resume)
                return True
        elif gap.reason is GapReason.MISSING:
            pass  # offsets without a record are no loss: a log that was compacted once has them
        elif gap.reason is GapReason.RETENTION:
            self._lose(gap.offset, min(resume, end), str(gap))
        else:
            is_anew = gap.reason is GapReason.RECREATED
            self._lose(gap.offset, end, str(gap), _RECREATED if is_anew else _LOSS)
            return False
        if resume >= end:
            return False
        self._call(lambda: self._ranges.skip(gap, resume))
        return True

    def _lose(self, start_offset: int, end_offset: int, why: str, error_class: str = _LOSS) -> None:
        lost = f"{self._wanted.topic}-{self._wanted.partition} [{start_offset}, {end_offset})"
        if self._fail_on_data_loss:
            raise DataLossError(error_class, f"Offsets {lost} cannot be read: {why}.", _LOSS_CURE)
        _LOG.warning("Passed over lost records range=%s reason=%s", lost, why)

    def _late(self) -> SparkSourceError:
        return SparkSourceError(
            "DLOG_READ_TIMEOUT",
            f"{_name(self._wanted)} could not be read on from offset {self._ranges.position} "
            f"within {self._deadline_s:g} s.",
            "Raise kafkaConsumer.pollTimeoutMs, or look for a transaction that stays open.",
        )


def _failed(wanted: OffsetRange, error: DlogError) -> SparkSourceError:
    """Return what is told when a range cannot be read: no node is reached from here, or another."""
    is_away = isinstance(error, TransportError)
    return SparkSourceError(
        UNREACHABLE if is_away else "DLOG_READ_FAILED",
        f"{_name(wanted)} could not be read: {type(error).__name__}: {error}.",
        "See that the executors reach the addresses that the nodes advertise, and whether both"
        " sides speak TLS, or none (dlog.tls); then run the query again."
        if is_away
        else "See whether the partition has a leader (dlogctl status), then run the query again.",
    )


def _name(wanted: OffsetRange) -> str:
    return f"{wanted.topic}-{wanted.partition} [{wanted.start_offset}, {wanted.end_offset})"


_idle: list[tuple[ClientSettings, _Reader]] = []


def _borrow(settings: ClientSettings) -> _Reader:
    """Return a reader that nobody uses, or a new one."""
    for number, (key, reader) in enumerate(_idle):
        if key == settings:
            del _idle[number]
            if reader.thread.is_open:
                return reader
            break  # of the process that forked this one
    return _Reader(settings)


def _give_back(settings: ClientSettings, reader: _Reader, *, is_sound: bool) -> None:
    """Keep a reader for the next task; close it when something is wrong with it, or the oldest."""
    if not is_sound:
        reader.close()
        return
    reader.thread.call(reader.ranges.end)
    _idle.append((settings, reader))
    if len(_idle) > IDLE_MAX:
        _idle.pop(0)[1].close()


@atexit.register
def close_idle() -> None:
    """Close what is kept for the next task."""
    while _idle:
        _idle.pop()[1].close()
