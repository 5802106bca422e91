"""Known holes, opened again: each mutant replaces one function of the daemon by a wrong one.

The simulation must see each of them within a stated number of seeds (`test_simulation`); else its
workload or its faults are too tame.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dlog.batch.header import BATCH_STRUCT
from dlog.errors import CorruptMessageError
from dlogd.metadata import journal_format
from dlogd.metadata.journal_files import JournalFiles
from dlogd.replication import replica_manager
from dlogd.replication.partition import batch_validation
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_state import ProducerStates
from dlogd.replication.partition.record_validation import RecordTimes
from dlogd.server import batch_unpacker
from dlogd.server.handlers.fetch import FetchWork
from dlogd.storage.log import log_recovery, truncation
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.log_reader import LogReader
from dlogd.storage.log.timestamp_learner import TimestampLearner
from dlogd.storage.segment import batch_scan
from dlogd.storage.segment.record_timestamps import KnownTimes
from tests.fakes.engine import MemoryEngine
from tests.fakes.files import MemoryDirectory

Make = Callable[[Any], Any]


def _ack_before_flush(_: Any) -> Any:
    def wait(
        self: Any, end_offset: int, acks: int, timeout_ms: int, waiter: Any, index: int = 0
    ) -> None:
        queue = self._acks.own
        queue._loop.call_soon(queue._settle, [(end_offset, 0.0, waiter, index)], None)

    return wait


def _flush_nothing(original: Any) -> Any:
    def write(
        self: Any, file: Any, position: int, buffers: Any, *, durable: bool, done: Any
    ) -> None:
        original(self, file, position, buffers, durable=False, done=done)

    return write


class _Unbounded:
    """A partition to be read that takes the end of its log for its high watermark."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)

    @property
    def high_watermark(self) -> int:
        return self._partition.log.log_end_offset


def _read_beyond_watermark(original: Any) -> Any:
    def read(self: Any, partition: Any, *arguments: Any) -> Any:
        return original(self, _Unbounded(partition), *arguments)

    return read


def _append_behind_torn_tail(original: Any) -> Any:
    def tidy(self: Any, file: Any, segment: Any, *, is_closed: bool) -> None:
        segment.end_position = max(segment.data_end, segment.end_position)
        original(self, file, segment, is_closed=is_closed)

    return tidy


def _rebuild_no_producers(_: Any) -> Any:
    async def load_producers(*_: Any) -> bool:
        return True

    return load_producers


def _journal_without_flush(_: Any) -> Any:
    def append(self: Any, first_version: int, commands: list[bytes]) -> None:
        live = self._live
        data = journal_format.encode_frame(live.end_position, first_version, commands)
        live.file.pwrite(data, live.end_position)
        live.end_position += len(data)

    return append


def _index_before_data(original: Any) -> Any:
    def settle(self: Any, segment: Any, position: int) -> None:
        segment.index.mark(segment.tail.end)
        original(self, segment, segment.tail.end)

    return settle


def _remember_across_rolls(_: Any) -> Any:
    return lambda self, segment, offset: self._cursors.get(offset)


def _forget_entries(original: Any) -> Any:
    def sync(self: Any) -> None:
        if "/topics/" not in self.path:
            original(self)

    return sync


def _believe_heads(_: Any) -> Any:
    def newest_ms(self: Any, segment: Any) -> Any:
        return segment.max_timestamp_ms

    return newest_ms


def _delete_by_heads(_: Any) -> Any:
    def newest_ms(self: Any, end_position: int, max_timestamp_ms: int) -> Any:
        return max_timestamp_ms

    return newest_ms


def _believe_plain_heads(_: Any) -> Any:
    return lambda settings, buffer, start, end, fields: (fields[8], fields[7])


def _believe_compressed_records(_: Any) -> Any:
    def times_in(batch: bytes, bytes_max: int = 0) -> RecordTimes:
        fields = BATCH_STRUCT.unpack_from(batch)
        return RecordTimes(fields[8], fields[7])

    return times_in


def _walk_to_the_end(original: Any) -> Any:
    """However many records there are, whatever the head says."""

    def walk(buffer: Any, start: int, end: int, record_count: int, base_timestamp_ms: int) -> Any:
        for count in range(1, end - start):
            try:
                return original(buffer, start, end, count, base_timestamp_ms)
            except CorruptMessageError:
                continue
        return original(buffer, start, end, record_count, base_timestamp_ms)

    return walk


def _constant(value: Any) -> Make:
    return lambda _: lambda *arguments, **options: value


MUTANTS: dict[str, tuple[Any, str, Make]] = {
    "acknowledge before the flush": (Partition, "wait", _ack_before_flush),
    "flush nothing (H14)": (MemoryEngine, "write", _flush_nothing),
    "read beyond the high watermark (H18)": (FetchWork, "_read", _read_beyond_watermark),
    "accept a torn tail (H16)": (batch_scan, "has_good_crc", _constant(True)),
    "append behind a torn tail (H17)": (log_recovery._Recovery, "_tidy", _append_behind_torn_tail),
    "append duplicates": (ProducerStates, "check", _constant(None)),
    "forget producers at a start": (
        replica_manager,
        "load_producers",
        _rebuild_no_producers,
    ),
    "journal without flush (H15)": (JournalFiles, "append", _journal_without_flush),
    "index and mark before the data": (LogJobs, "_settle", _index_before_data),
    "do not save the log start": (
        truncation,
        "encode_log_start",
        lambda original: lambda _: original(0),
    ),
    "read at places of a rolled segment": (LogReader, "_known", _remember_across_rolls),
    "believe the heads of plain batches": (batch_validation, "_times_of", _believe_plain_heads),
    "believe compressed records": (batch_unpacker, "times_in", _believe_compressed_records),
    "walk without the count": (batch_validation, "walk_records", _walk_to_the_end),
    "search by head": (TimestampLearner, "newest_ms", _believe_heads),
    "retention by head": (KnownTimes, "newest_ms", _delete_by_heads),
    "no flush of a log's directory": (MemoryDirectory, "sync", _forget_entries),
}

SHOWS = {
    "flush nothing (H14)": ("lost-write", "lost-read"),
    "append behind a torn tail (H17)": ("garbage",),
    "search by head": ("timestamp",),
    "retention by head": ("early",),
}
"""How the violation begins by which a hole is known, which most seeds see for another one: a log
that is damaged takes nothing more."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Open one hole for a while."""
    owner, attribute, make = MUTANTS[name]
    original = getattr(owner, attribute)
    setattr(owner, attribute, make(original))
    try:
        yield
    finally:
        setattr(owner, attribute, original)
