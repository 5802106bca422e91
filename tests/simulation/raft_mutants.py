"""Known holes of Raft implementations, opened again; the simulation must see each (raft_run).

Names follow the sections of the analysis of pysyncobj: durability (vote, log, snapshot), and the
protocol (truncation, commit by snapshot, replies of other terms, cleared logs, membership).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dlogd.metadata import journal_format
from dlogd.metadata.raft import appends, boot, consensus, elections, pysyncobj_adapter, voters
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft.appends import Append
from dlogd.metadata.raft.durable_log import LogCorruptError, RaftLog
from dlogd.metadata.raft.entries import Record
from dlogd.metadata.raft.proposals import Outbox
from dlogd.metadata.raft.replication import Replication
from dlogd.metadata.raft.snapshots import SnapshotFiles
from tests.fakes.files import MemoryFile
from tests.simulation.patches import Patch, patched


def _vote_in_memory_only(_: Any) -> Any:
    def set_term(self: Any, term: int, vote: int | None) -> None:
        self.term, self.vote = term, vote

    return set_term


def _vote_later(original: Any) -> Any:
    def set_term(self: Any, term: int, vote: int | None) -> None:
        flush, self.flush = self.flush, lambda: None
        try:
            original(self, term, vote)
        finally:
            self.flush = flush

    return set_term


def _log_without_sync(_: Any) -> Any:
    def write(self: Any, records: Any) -> None:
        frame = journal_format.encode_frame(self._end_position, self._record_next, records)
        self._file.pwrite(frame, self._end_position)
        self._end_position += len(frame)
        self._record_next += len(records)

    return write


def _never_flush(_: Any) -> Any:
    def flush(self: Any) -> None:
        if self._buffer and len(self._buffer) > 20:
            records, self._buffer = self._buffer, []
            self._write(records)

    return flush


def _rewrite_without_sync(original: Any) -> Any:
    def rewrite(self: Any) -> None:
        sync = MemoryFile.sync
        MemoryFile.sync = lambda _: None  # type: ignore[method-assign,assignment]
        try:
            original(self)
        finally:
            MemoryFile.sync = sync  # type: ignore[method-assign]

    return rewrite


def _cut_whatever_follows(_: Any) -> Any:
    return lambda message, log, commit_index: Append(message)


def _commit_unproven(original: Any) -> Any:
    def normalise(message: Any, log: Any, commit_index: int) -> Append:
        done = original(message, log, commit_index)
        if done.verified is not None:
            fields = {"commit_index": message["commit_index"]}
            return Append(done.message | fields, verified=log.last_index)
        return done  # type: ignore[no-any-return]

    return normalise


def _begin_at_the_beginning(original: Any) -> Any:
    """Send everything again after each reconnection, as pysyncobj may by a stale reset."""

    def on_connected(self: Any, peer: Any) -> None:
        original(self, peer)
        self._core._SyncObj__raftNextIndex[peer] = self._log.base_index + 1

    return on_connected


def _trust_on_connect(original: Any) -> Any:
    def advance(self: Any, peer: Any, index: int) -> None:
        original(self, peer, self._log.last_index)

    return advance


def _open_log_at_snapshot(original: Any) -> Any:
    def open_log(directory: Any, node_id: int, first: Any, rng: Any, taken: Any) -> Any:
        raft_log = original(directory, node_id, first, rng, taken)
        if taken is not None and raft_log.base_index != taken.index:
            del raft_log.entries[1:]
            raft_log._changes.clear()
            raft_log.commit_index = 0
            raft_log.rebase(taken.index, taken.term, taken.voters)
        return raft_log

    return open_log


def _forget_cuts(_: Any) -> Any:
    def delete(self: Any, position: int) -> None:
        if position < len(self.entries):
            index = self.entries[position][1]
            del self.entries[position:]
            while self._changes and self._changes[-1][0] >= index:
                self._changes.pop()

    return delete


def _vote_for_anybody(original: Any) -> Any:
    def on_request(self: Any, peer: Any, message: Any) -> None:
        fields = {"last_log_index": 1 << 40, "last_log_term": 1 << 40}
        original(self, peer, message | fields)

    return on_request


def _any_directory_votes(_: Any) -> Any:
    return lambda self, directory_id: True


def _send_again_at_once(_: Any) -> Any:
    def due(self: Any, term: int, applied_term: int, now_s: float) -> Any:
        items = []
        for pending in self.pending.values():
            if pending.term != term:
                pending.term, pending.sent_s = term, now_s
                items.append(pending.item)
        return items

    return due


def rewrite_in_place(_: Any) -> Any:
    """Make the log shorter as pysyncobj's journal does: clear it, then write it again."""

    def rewrite(self: Any) -> None:
        stub = self.entries[0]
        records = [
            wire.identity_record(self.node_id, self.directory_id),
            wire.base_record(stub[1], stub[2], self.base_voters),
            *map(wire.entry_record, self.entries[1:]),
            wire.vote_record(self.term, self.vote),
            wire.index_record(Record.COMMIT, min(self.commit_index, self.last_index)),
        ]
        if self._file is None:
            self._file = self._directory.open("raft.log", create=True)
        self._file.truncate(0)
        data, number, written = journal_format.encode_head(0), 1, 0
        for part in (records[:2], *([each] for each in records[2:])):
            frame = journal_format.encode_frame(len(data), number, part)
            data, number = data + frame, number + len(part)
            self._file.pwrite(data[written:], written)
            written = len(data)
        self._file.sync()
        self._directory.sync()
        self._end_position, self._record_next = len(data), number
        self._buffer = []

    return rewrite


def accept_torn_frames(original: Any) -> Any:
    """Check no sums: what stands in the page cache of an earlier life reads as entries."""

    def frame_at(data: bytes, position: int) -> Any:
        if len(data) - position >= journal_format._FRAME.size:
            magic, _, length, _, _ = journal_format._FRAME.unpack_from(data, position)
            end = position + journal_format._FRAME.size + length
            if magic == journal_format.FRAME_MAGIC and end <= len(data):
                crc = journal_format._frame_crc(position, memoryview(data)[position:end])
                fixed = bytearray(data)
                fixed[position + 4 : position + 8] = journal_format._LENGTH.pack(crc)
                return original(bytes(fixed), position)
        return original(data, position)

    return frame_at


def _store_without_sync(original: Any) -> Any:
    def store(self: Any, index: int, data: bytes) -> None:
        sync = MemoryFile.sync
        MemoryFile.sync = lambda _: None  # type: ignore[method-assign,assignment]
        try:
            original(self, index, data)
        finally:
            MemoryFile.sync = sync  # type: ignore[method-assign]

    return store


def _load_what_reads(original: Any) -> Any:
    def load(self: Any) -> Any:
        try:
            return original(self)
        except LogCorruptError:
            return None

    return load


def commit_by_chunks(original: Any) -> Any:
    def receive(self: Any, node_id: int, message: Any) -> Any:
        core = self._core
        peer = core.seat(node_id)
        if peer is not None and message["term"] >= core.term:
            core.follow(peer, message["term"])
            index = min(message["index"], core._log.last_index)
            core._SyncObj__raftCommitIndex = max(core.commit_index, index)
        return original(self, node_id, message)

    return receive


def count_replies_of_any_term(_: Any) -> Any:
    def heard(self: Any, peer: Any, message: Any) -> Any:
        core = self._core
        progress = self._progress.get(peer.id)
        if not core.is_leader or progress is None:
            return None
        core._SyncObj__lastResponseTime[peer] = progress.acked_s = core.now_s()
        return progress

    return heard


def take_small_ones(_: Any) -> Any:
    """Take of the entries only what fits into a message."""

    def take(self: Any, index: int) -> Any:
        place, found, size = index - self._log.base_index, [], 0
        for entry in self._log.entries[place:]:
            size += len(entry[0]) + 20
            if size > max(self._append_bytes_max, 1_000):
                break
            found.append(entry)
        return found or [(wire.NO_OP_ENTRY, index, self._log.term_at(index))]

    return take


def _clear_behind_a_snapshot(original: Any) -> Any:
    def rebase(self: Any, index: int, term: int, voters: Any) -> None:
        del self.entries[1:]
        self._changes.clear()
        original(self, index, term, voters)

    return rebase


def _lead_without_a_quorum(original: Any) -> Any:
    def settings(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **options | {"leaderFallbackTimeout": 30.0})

    return settings


class _HandlerTable:
    """The core's handlers by message type, as attributes."""

    def __getattr__(self, name: str) -> Any:
        return consensus._HANDLERS[name]

    def __setattr__(self, name: str, value: Any) -> None:
        consensus._HANDLERS[name] = value


def _ask_nobody(_: Any) -> Any:
    def connected(self: Any) -> bool:
        if not self.is_voter:
            self._push_deadline()
            return False
        self._votes = {self._log.node_id: None}
        return True

    return connected


def _count_what_was_sent(_: Any) -> Any:
    return lambda self, peer: self._core.now_s()


_RESENDS = (Replication, "on_connected", _begin_at_the_beginning)

# By section of the analysis. What needs two holes at once, because one hides the other, has both.
MUTANTS: dict[str, tuple[Patch, ...]] = {
    "1.2.1 the log is dropped when snapshot and log differ": (
        (boot, "_open_log", _open_log_at_snapshot),
    ),
    "1.3 a torn snapshot counts as none": (
        (SnapshotFiles, "store", _store_without_sync),
        (SnapshotFiles, "load", _load_what_reads),
    ),
    "1.5.4 a snapshot clears what follows it": ((RaftLog, "rebase", _clear_behind_a_snapshot),),
    "1.5.6 a leader leads without a quorum": (
        (pysyncobj_adapter, "SyncObjConf", _lead_without_a_quorum),
    ),
    "1.5.6 a leader believes in itself without an answer": (
        (Replication, "contact_s", _count_what_was_sent),
    ),
    "1.5.6 nobody is asked before an election": (
        (elections.Elections, "_SyncObj__connectedToAnyone", _ask_nobody),
    ),
    "1.3 a new log file is renamed without a flush": (
        (RaftLog, "_rewrite", _rewrite_without_sync),
    ),
    "1.3 the vote is forgotten": ((RaftLog, "setCurrentTerm", _vote_in_memory_only),),
    "1.3 the vote is sent before it is flushed": ((RaftLog, "setCurrentTerm", _vote_later),),
    "H15 the log is not flushed": ((RaftLog, "_write", _log_without_sync),),
    "H15 the log is flushed now and then": ((RaftLog, "flush", _never_flush),),
    "H15 cuts are not recorded": ((RaftLog, "deleteEntriesFrom", _forget_cuts),),
    "1.5.1 a follower cuts what matches": (
        _RESENDS,
        (appends, "normalise", _cut_whatever_follows),
    ),
    "1.5.2 more is committed than was proven": (
        _RESENDS,
        (appends, "normalise", _commit_unproven),
    ),
    "H8 a follower is credited with what it was sent": (
        (Replication, "_advance", _trust_on_connect),
    ),
    "votes for a shorter log": (
        (_HandlerTable(), "pre_vote", _vote_for_anybody),
        (_HandlerTable(), "request_vote", _vote_for_anybody),
    ),
    "H20 a wiped voter votes on": ((voters.Voter, "is_in", _any_directory_votes),),
    "a proposal is sent again too early": ((Outbox, "due", _send_again_at_once),),
}

SHOWS = {"H8 a follower is credited with what it was sent": ("StateMachineSafety",)}
"""How the violation begins by which a hole is known, which most seeds see for another one: the
nodes never agree again."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Open one hole for a while."""
    with patched(MUTANTS[name]):
        yield
