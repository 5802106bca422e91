"""Durable Raft log of one node: entries, term, vote, commit index (hole H15).

One file, `raft.log`, in the frames of `dlogd.metadata.journal_format`: what was recorded since the
last flush is written as one frame and flushed, so that at most the last frame of a file can be
torn, and what does not read before a later frame is damage, not a torn end. Nothing that was not
flushed was ever promised: `flush` comes before every message that depends on the log. An error of
the disk ends the log (`LogFailedError`): what the disk holds then is only known after a restart.

Implements the journal of pysyncobj. Blocking; owner: the thread of the Raft loop.
"""

import logging
from contextlib import suppress
from uuid import UUID

from dlog.errors import DlogError, StartRefusedError
from dlogd.metadata import journal_format
from dlogd.metadata.journal_format import Journal
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft.entries import Entry, Record
from dlogd.metadata.raft.replay import LogContent, replay
from dlogd.metadata.raft.voters import Voters
from dlogd.metadata.state.encoding import MalformedError
from dlogd.storage.io.files import Directory, File

log = logging.getLogger(__name__)

NAME = "raft.log"
TEMPORARY = "raft.log.tmp"


class LogCorruptError(StartRefusedError):
    """The log on disk is damaged, of another node, or has a gap: starting would break promises."""


class LogFailedError(DlogError):
    """The disk refused; the node must stop."""


class RaftLog:
    """All entries behind `base_index`, in memory and in the file.

    Invariant: `entries[0]` is a stub for the last entry that a snapshot covers, or for none.
    Invariant: indexes follow each other; terms never fall.
    """

    def __init__(self, directory: Directory, content: LogContent) -> None:
        self._directory = directory
        self._file: File | None = None
        self._end_position = 0
        self._record_next = 1
        self._buffer: list[bytes] = []
        self._commit_recorded = content.commit_index
        self.node_id = content.node_id
        self.directory_id = content.directory_id
        self.entries = content.entries
        self.base_voters = content.base_voters
        self.term = content.term
        self.vote = content.vote
        self.commit_index = content.commit_index
        self.flush_count = 0
        self.failed = False
        self._changes = content.voter_changes

    @classmethod
    def create(
        cls,
        directory: Directory,
        node_id: int,
        directory_id: UUID,
        voters: Voters,
        *,
        base_index: int = 1,
        base_term: int = 0,
    ) -> "RaftLog":
        """Begin an empty log, behind an entry that a snapshot covers, or behind nothing."""
        stub: Entry = (wire.NO_OP_ENTRY, base_index, base_term)
        content = LogContent(
            node_id=node_id, directory_id=directory_id, base_voters=voters, stub=stub
        )
        content.term = base_term
        made = cls(directory, content)
        made._rewrite()
        return made

    @classmethod
    def open(cls, directory: Directory, node_id: int) -> "RaftLog | None":
        """Read the log; None when there is none. Raises LogCorruptError, OSError."""
        if directory.exists(TEMPORARY):
            directory.unlink(TEMPORARY)
        if not directory.exists(NAME):
            return None
        file = directory.open(NAME)
        try:
            data = file.pread(file.size(), 0)
            found = journal_format.decode(data)
            content = replay(found)
        except MalformedError as error:
            file.close()
            raise LogCorruptError(
                f"{directory.path}/{NAME} cannot be used: {error}. Remove this node from the "
                "voters, wipe its metadata directory and add it again"
            ) from error
        if content.node_id != node_id:
            file.close()
            raise LogCorruptError(
                f"{directory.path}/{NAME} is the log of node {content.node_id}, this is {node_id}"
            )
        opened = cls(directory, content)
        opened._adopt(file, data, found)
        return opened

    def _adopt(self, file: File, data: bytes, found: Journal) -> None:
        """Cut a torn end, and write again what was read: a flush may have failed before.

        That is flushed before the frame that seals it is written: if the power fails, that one
        must not be found behind one that is torn.
        """
        self._file = file
        self._end_position = found.end_position
        self._record_next = found.end_version + 1
        if found.torn_bytes:
            log.warning("Cut torn end of Raft log path=%s bytes=%d", file.path, found.torn_bytes)
            file.truncate(found.end_position)
        file.pwrite(data[: found.end_position], 0)
        file.sync()
        self._write(())

    # -- what pysyncobj calls

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry; durable after the next `flush`."""
        entry = (bytes(command), idx, term)
        self.entries.append(entry)
        self._buffer.append(wire.entry_record(entry))
        if command[0] == wire.VOTERS:
            self._changes.append((idx, wire.decode_voters(entry[0])[1]))

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802 (pysyncobj's name)
        """Cut the end off, from this place in `entries` on."""
        if position < len(self.entries):
            index = self.entries[position][1]
            del self.entries[position:]
            self._buffer.append(wire.index_record(Record.CUT, index))
            while self._changes and self._changes[-1][0] >= index:
                self._changes.pop()

    def __getitem__(self, place: int | slice) -> Entry | list[Entry]:
        return self.entries[place]

    def __len__(self) -> int:
        return len(self.entries)

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802
        """Move the commit index; all that it covers is durable on return."""
        self.flush()
        self.commit_index = index

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return the commit index."""
        return self.commit_index

    def setCurrentTerm(self, term: int, vote: int | None) -> None:  # noqa: N802
        """Set term and vote; durable on return."""
        self._expect_usable()
        if (term, vote) != (self.term, self.vote):
            self.term, self.vote = term, vote
            self._buffer.append(wire.vote_record(term, vote))
            self.flush()

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the term."""
        return self.term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        """Return the vote of this term."""
        return self.vote

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Record how far the log is committed, so that a restart need not wait for a leader."""
        if self.commit_index > self._commit_recorded:
            self._commit_recorded = self.commit_index
            self._buffer.append(wire.index_record(Record.COMMIT, self.commit_index))

    def _destroy(self) -> None:
        self.close()

    # -- the rest

    @property
    def base_index(self) -> int:
        """The index of the stub: entries up to it are only in a snapshot."""
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        """The index of the last entry."""
        return self.entries[-1][1]

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self.entries[-1][2]

    @property
    def size_bytes(self) -> int:
        """The size of the file."""
        return self._end_position

    @property
    def voters(self) -> Voters:
        """The voters by the last entry that names them, committed or not."""
        return self._changes[-1][1] if self._changes else self.base_voters

    @property
    def voters_index(self) -> int:
        """The index of the entry that made `voters`."""
        return self._changes[-1][0] if self._changes else self.base_index

    def voters_at(self, index: int) -> Voters:
        """Return the voters by the entries up to `index`."""
        found = self.base_voters
        for changed_at, voters in self._changes:
            if changed_at <= index:
                found = voters
        return found

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, None when it is not here."""
        place = index - self.base_index
        return self.entries[place][2] if 0 <= place < len(self.entries) else None

    def flush(self) -> None:
        """Return when all that was recorded is on stable storage; raise LogFailedError."""
        # What could not be written is in memory only, for good: it was promised to nobody.
        self._expect_usable()
        if self._buffer:
            records, self._buffer = self._buffer, []
            self._write(records)

    def _expect_usable(self) -> None:
        if self.failed or self._file is None:
            raise LogFailedError("the Raft log is closed")

    def _write(self, records: list[bytes] | tuple[()]) -> None:
        self._expect_usable()
        assert self._file is not None
        frame = journal_format.encode_frame(self._end_position, self._record_next, records)
        try:
            self._file.pwrite(frame, self._end_position)
            self._file.sync()
        except OSError as error:
            self.failed = True
            path = f"{self._directory.path}/{NAME}"  # the file's own may be from before a renaming
            raise LogFailedError(f"{path} cannot be written: {error}") from error
        self._end_position += len(frame)
        self._record_next += len(records)
        self.flush_count += 1

    def rebase(self, index: int, term: int, voters: Voters) -> None:
        """Begin behind an entry that a durable snapshot covers.

        What follows that entry stays if the log holds the very entry (hole 1.5.4). LogFailedError
        ends the log; a full disk raises OSError and changes nothing.
        """
        is_known = self.term_at(index) == term
        tail = self.entries[index - self.base_index + 1 :] if is_known else []
        changes = [change for change in self._changes if change[0] > index and tail]
        before = (self.entries, self.base_voters, self._changes, self.commit_index)
        self.entries = [(wire.NO_OP_ENTRY, index, term), *tail]
        self.base_voters, self._changes = voters, changes
        self.commit_index = max(self.commit_index, index)
        try:
            self._rewrite()
        except OSError:
            self.entries, self.base_voters, self._changes, self.commit_index = before
            raise

    def _rewrite(self) -> None:
        """Replace the file by one that holds what memory holds, atomically."""
        if self.failed:
            raise LogFailedError("the Raft log is closed")
        stub = self.entries[0]
        records = [
            wire.identity_record(self.node_id, self.directory_id),
            wire.base_record(stub[1], stub[2], self.base_voters),
            *map(wire.entry_record, self.entries[1:]),
            wire.vote_record(self.term, self.vote),
            wire.index_record(Record.COMMIT, min(self.commit_index, self.last_index)),
        ]
        head = journal_format.encode_head(0)
        data = head + journal_format.encode_frame(len(head), 1, records)
        if self._directory.exists(TEMPORARY):
            self._directory.unlink(TEMPORARY)
        file = self._directory.open(TEMPORARY, create=True)
        try:
            file.pwrite(data, 0)
            file.sync()
        except OSError:
            file.close()
            raise
        try:
            self._directory.rename(TEMPORARY, NAME)
            self._directory.sync()
        except OSError as error:
            file.close()
            self.failed = True
            raise LogFailedError(f"{self._directory.path}: {error}") from error
        if self._file is not None:
            self._file.close()
        self._file, self._end_position = file, len(data)
        self._record_next = 1 + len(records)
        self._buffer = []
        self._commit_recorded = self.commit_index
        self.flush_count += 1

    def close(self) -> None:
        """Seal the last frame by an empty one, and close the file. Idempotent.

        Without, one that rots while the node is down would be taken for torn, and cut: a voter
        would forget what it has confirmed.
        """
        if self._file is not None:
            with suppress(LogFailedError):
                self._write(())
            self._file.close()
            self._file = None
