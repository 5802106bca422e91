"""Recovery of a stopped log: its end, a torn tail or corruption.

After an unclean stop every segment is looked at from its last good index entry on. At the first
place that is not the batch that must come there (docs/formats/segment.md has the reasons):

- zeros to the end of the file: preallocated space, the log ends here;
- before the end that the last run has noted, or before the first segment: files are missing, out of
  service, nothing is changed;
- below the flushed mark, or in a segment that was complete before later data was written:
  acknowledged data is damaged, so the partition goes out of service and nothing is changed;
- nothing valid follows: the tail of the last write, never acknowledged, is cut;
- valid batches follow and a whole sector of zeros lies between: the last write of several sectors
  reached the disk in part and was never acknowledged: cut;
- valid batches follow and no sector is missing: corruption, out of service, nothing is changed.

Blocks, run by the engine; called by `dlogd.storage.log.partition_log` only.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dlog.errors import KafkaStorageError
from dlog.types import LeaderEpoch, Offset
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError
from dlogd.storage.io.files import Directory, File, write_again
from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.log.log_config import FLUSH_BYTES_MAX, LogConfig
from dlogd.storage.segment import leader_epochs
from dlogd.storage.segment.batch_scan import (
    Window,
    find_batch,
    find_data_end,
    has_lost_sector,
    iter_headers,
    may_be_one_write,
)
from dlogd.storage.segment.leader_epochs import EpochHistory, EpochStart
from dlogd.storage.segment.segment_examination import Examined, examine, quick_look
from dlogd.storage.segment.segment_names import LOG, SUFFIXES, TDX, file_name, parse_name

log = logging.getLogger(__name__)

LOG_START = "log-start"
"""Name and kind of the small file with the log start offset; docs/formats/log-start.md."""

WHAT_TO_DO = (
    "The partition is out of service and its files are untouched. Restore them from another replica"
    " or a backup, or move the partition's directory away to give up this copy; `dlogctl segment"
    " check` shows what is readable."
)


@dataclass(slots=True)
class RecoveryReport:
    """What recovery read and changed."""

    bytes_scanned: int = 0
    bytes_cut: int = 0
    segments_removed: int = 0
    indexes_rebuilt: int = 0


@dataclass(slots=True)
class RecoveredLog:
    """A log that is ready to be used; the last segment is the active one."""

    segments: list[Examined]
    file: File
    """Of the active segment, open for writing."""
    prefix: bytes
    """The bytes of the active segment's last partial block."""
    history: EpochHistory
    log_start_offset: Offset
    report: RecoveryReport = field(default_factory=RecoveryReport)


def encode_log_start(offset: Offset) -> bytes:
    """Return the bytes of the file `log-start`."""
    return checkpoint_files.encode(LOG_START, f"{offset}\n")


def recover(
    directory: Directory,
    config: LogConfig,
    *,
    clean: bool,
    stored_end: int = 0,
    on_progress: Callable[[int], None] = lambda _: None,
) -> RecoveredLog:
    """Open the log in `directory`; an empty one is made when there is none.

    `clean`: the node was stopped in order, so closed segments need no look. `stored_end`: below it
    all was on stable storage in the last run, without `clean` only under the policy `always`.
    `on_progress` is told bytes as they are read, from this thread. Raises KafkaStorageError for
    damaged data, OSError.
    """
    return _Recovery(directory, config, clean, stored_end, on_progress).run()


class _Recovery:
    def __init__(
        self,
        directory: Directory,
        config: LogConfig,
        clean: bool,
        stored_end: int,
        on_progress: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._config = config
        self._clean = clean
        self._stored_end = stored_end
        self._on_progress = on_progress
        self._report = RecoveryReport()
        self._saved_epochs: list[EpochStart] | None = None
        self._to_index: list[tuple[Examined, bool]] = []
        self._strays: list[str] = []  # indexes without a segment, and unfinished ones

    def run(self) -> RecoveredLog:
        if not self._clean:
            # A killed process may have made entries that only the system's memory holds.
            self._directory.sync()
        log_start = self._load_log_start()
        bases = self._segment_bases(log_start)
        self._check_first(bases, log_start)
        found = self._look_at(bases, log_start)
        if found and found[-1].end_offset < log_start:
            # Under a weak flush policy data was lost that had been trimmed already.
            self._remove([segment.base_offset for segment in found])
            found = []
        if not found:
            found = [Examined(log_start, 0, end_offset=log_start, durable=self._config.durable)]
            found[0].files_are_current = True
        log_start = max(log_start, Offset(found[0].base_offset))
        history = self._load_history(found, log_start)
        history.truncate_to(Offset(found[-1].end_offset))
        history.trim_to(log_start)
        self._save_history(history)
        for name in self._strays:
            self._directory.unlink(name)
        for segment, is_closed in self._to_index:
            segment.store_indexes(self._directory, durable=is_closed)
        active = found[-1]
        name = file_name(active.base_offset)
        is_new = not self._directory.exists(name)
        file = self._directory.open(name, create=True, direct=self._config.direct_writes)
        try:
            if is_new:
                self._directory.sync()
            length = active.end_position % ALIGNMENT
            prefix = file.pread(length, active.end_position - length) if length else b""
        except OSError:
            file.close()
            raise
        return RecoveredLog(found, file, prefix, history, log_start, self._report)

    # -- which segments there are

    def _load_log_start(self) -> Offset:
        try:
            data = checkpoint_files.load_file(self._directory, LOG_START)
            if data is None:
                return Offset(0)
            return Offset(int(checkpoint_files.decode(LOG_START, data)))
        except (MalformedFileError, ValueError) as error:
            raise KafkaStorageError(f"{self._directory.path}/{LOG_START}: {error}") from error

    def _segment_bases(self, log_start: Offset) -> list[int]:
        """Return the base offsets of the segments that count; end a removal of trimmed ones."""
        names = self._directory.names()
        parsed = [(name, found) for name in names if (found := parse_name(name)) is not None]
        bases = [base for _, (base, suffix) in parsed if suffix == LOG]
        self._strays = [name for name, (base, _) in parsed if base not in bases]
        self._strays += [name for name in names if name.endswith(TDX + checkpoint_files.TEMPORARY)]
        while len(bases) > 1 and bases[1] <= log_start:
            self._remove([bases.pop(0)])
        return bases

    def _remove(self, bases: list[int]) -> None:
        """Remove segments, the newest first, so that what is left is a whole log at any moment."""
        for base in reversed(bases):
            for suffix in SUFFIXES:
                if self._directory.exists(file_name(base, suffix)):
                    self._directory.unlink(file_name(base, suffix))
            self._directory.sync()

    def _check_first(self, bases: list[int], log_start: Offset) -> None:
        """Raise when the log does not reach back to its start: segments go only after it moved."""
        if not bases:
            self._check_end(log_start, is_strict=self._config.durable)
        if bases and bases[0] > log_start:
            raise KafkaStorageError(
                f"{self._directory.path} begins with offset {bases[0]}, but the log starts at"
                f" {log_start}: its first segments or `{LOG_START}` are missing. {WHAT_TO_DO}"
            )

    def _check_end(self, end: int, *, is_strict: bool) -> None:
        """Raise when there is less than the last run had on stable storage."""
        if end < self._stored_end and (is_strict or self._clean):
            raise KafkaStorageError(
                f"{self._directory.path} ends at offset {end}, but held all up to"
                f" {self._stored_end} when the node ran last. {WHAT_TO_DO}"
            )

    # -- one after the other

    def _look_at(self, bases: list[int], log_start: Offset) -> list[Examined]:
        found: list[Examined] = []
        for number, base in enumerate(bases):
            following = bases[number + 1 :]
            file = self._directory.open(file_name(base))
            try:
                segment = self._quick(file, base, following)
                if segment is None:
                    segment, is_last = self._slow(file, base, following, log_start)
                    if is_last and following:
                        self._remove(following)
                        self._report.segments_removed += len(following)
                        following = []
                    self._tidy(file, segment, is_closed=bool(following))
            finally:
                file.close()
            found.append(segment)
            if not following:
                break
        return found

    def _quick(self, file: File, base: int, following: list[int]) -> Examined | None:
        """Return the segment if it is sealed; the last one can only be after a clean stop."""
        if not following and not self._clean:
            return None
        end = following[0] if following else None
        segment = quick_look(self._directory, file, base, end, self._on_progress)
        if segment is not None:
            self._report.bytes_scanned += segment.bytes_read
            if not following:
                self._check_end(segment.end_offset, is_strict=True)
                segment.reopen_times()
        return segment

    def _slow(
        self, file: File, base: int, following: list[int], log_start: int
    ) -> tuple[Examined, bool]:
        """Return what the segment holds and whether the log ends in it."""
        segment = examine(
            self._directory,
            file,
            base,
            durable=self._config.durable,
            interval_bytes=self._config.index_interval_bytes,
            on_read=self._on_progress,
        )
        self._report.bytes_scanned += segment.bytes_read
        data_end = segment.data_end = find_data_end(
            file, segment.end_position, segment.size, self._on_progress
        )
        is_whole = data_end == segment.end_position
        if following and is_whole and segment.end_offset == following[0]:
            return segment, False
        if segment.end_position < segment.mark:
            raise self._damaged(file, segment, f"flushed records reach to {segment.mark}")
        if following and self._has_data(following):
            self._judge_gap(file, segment, data_end, following[0])
        else:
            self._judge_tail(file, segment, data_end)
        self._check_end(max(segment.end_offset, log_start), is_strict=segment.durable)
        return segment, True

    def _has_data(self, bases: list[int]) -> bool:
        """Return whether any of these segments holds anything."""
        for base in bases:
            file = self._directory.open(file_name(base), read_only=True)
            try:
                if find_data_end(file, 0, file.size()) > 0:
                    return True
            finally:
                file.close()
        return False

    def _judge_gap(self, file: File, segment: Examined, data_end: int, next_base: int) -> None:
        """Return when the log may be cut in this segment although later ones have data."""
        if segment.durable or segment.is_sealed:
            raise self._damaged(
                file, segment, f"the next segment begins with offset {next_base} and holds data"
            )
        # Pages of several files reach the disk in any order under a weak flush policy.
        self._judge_tail(file, segment, data_end)

    def _judge_tail(self, file: File, segment: Examined, data_end: int) -> None:
        """Return when what lies beyond the good batches is a torn tail; raise when it is not."""
        start = segment.end_position
        if data_end == start:
            return
        offset, on_read = segment.end_offset, self._on_progress
        if segment.durable and not may_be_one_write(
            file, start, data_end, offset, FLUSH_BYTES_MAX, on_read
        ):
            raise self._damaged(file, segment, f"more than one write lies beyond, to {data_end}")
        following = find_batch(file, start + 1, segment.size, offset, on_read)
        if following is not None and not has_lost_sector(file, start, following, offset):
            raise self._damaged(file, segment, f"a good batch follows at {following}")

    def _damaged(self, file: File, segment: Examined, why: str) -> KafkaStorageError:
        return KafkaStorageError(
            f"{file.path} is damaged at position {segment.end_position}"
            f" (offset {segment.end_offset}): no valid batch there, but {why}. {WHAT_TO_DO}"
        )

    def _tidy(self, file: File, segment: Examined, *, is_closed: bool) -> None:
        """Bring the files to what was found: cut, durable, indexed."""
        if is_closed:
            segment.close_times()
        else:
            segment.reopen_times()
        # What is good but beyond the mark may be only in the system's memory (kill -9).
        must_sync = segment.mark != segment.end_position
        is_torn = segment.data_end > segment.end_position
        if is_torn or (is_closed and segment.size != segment.end_position):
            file.truncate(segment.end_position)
            segment.size = segment.end_position
            must_sync = True
        if is_torn:
            self._report.bytes_cut += segment.data_end - segment.end_position
            log.warning(
                "Cut a torn tail file=%s position=%d bytes=%d next_offset=%d",
                file.path,
                segment.end_position,
                segment.data_end - segment.end_position,
                segment.end_offset,
            )
        if must_sync:
            write_again(file, segment.mark, segment.end_position, self._on_progress)
            segment.mark = segment.end_position
        is_tidy = segment.files_are_current and (segment.files_are_whole or not is_closed)
        if not is_tidy or must_sync:
            self._report.indexes_rebuilt += not segment.files_are_current
            self._to_index.append((segment, is_closed))

    # -- leader epochs

    def _load_history(self, found: list[Examined], log_start: int) -> EpochHistory:
        """Return the saved history, completed by what was scanned."""
        try:
            data = checkpoint_files.load_file(self._directory, leader_epochs.FILE_NAME)
            saved = self._saved_epochs = (
                leader_epochs.decode(data).entries if data is not None else None
            )
        except MalformedFileError as error:
            log.warning(
                "Rebuilding leader epochs directory=%s error=%s", self._directory.path, error
            )
            saved = None
        if saved is None and any(s.scanned_from > s.base_offset or not s.epochs for s in found):
            return leader_epochs.in_order(self._heads(found), self._directory.path, log_start)
        log_end = found[-1].end_offset
        entries = [entry for entry in saved or [] if entry[1] < log_end]
        for segment in found:
            if segment.epochs:
                start, end = segment.scanned_from, segment.end_offset
                entries = [entry for entry in entries if not start <= entry[1] < end]
                entries += [(LeaderEpoch(epoch), Offset(at)) for epoch, at in segment.epochs]
        entries.sort(key=lambda entry: entry[1])
        return leader_epochs.in_order(entries, self._directory.path, log_start)

    def _save_history(self, history: EpochHistory) -> None:
        """Save what was found, before index entries make the next recovery begin behind it."""
        if history.entries != (self._saved_epochs or []):
            checkpoint_files.replace_file(
                self._directory, leader_epochs.FILE_NAME, history.encode()
            )

    def _heads(self, found: list[Examined]) -> Iterator[tuple[int, int]]:
        for segment in found:
            if not segment.end_position:
                continue
            file = self._directory.open(file_name(segment.base_offset), read_only=True)
            try:
                window = Window(file, segment.end_position, self._on_progress)
                for header in iter_headers(window, 0):
                    yield header.leader_epoch, header.base_offset
            finally:
                file.close()
