"""Replay of a log file: its records carried out one after the other.

Pure. Raises MalformedError for records that contradict each other; what cannot happen by a crash is
never repaired.
"""

from collections.abc import Callable
from uuid import UUID

from dlogd.metadata.journal_format import Journal
from dlogd.metadata.raft import voters as voter_sets
from dlogd.metadata.raft.entries import NO_OP_ENTRY, VOTERS, Entry, Record, decode_voters
from dlogd.metadata.raft.voters import UNBOUND, Voters
from dlogd.metadata.state.encoding import MalformedError, Reader


class LogContent:
    """The state that a log file describes."""

    def __init__(
        self,
        *,
        node_id: int = -1,
        directory_id: UUID = UNBOUND,
        base_voters: Voters = Voters(),  # noqa: B008 (immutable)
        stub: Entry | None = None,
    ) -> None:
        self.node_id = node_id
        self.directory_id = directory_id
        self.base_voters = base_voters
        self.entries: list[Entry] = [] if stub is None else [stub]
        self.voter_changes: list[tuple[int, Voters]] = []
        self.term = 0
        self.vote: int | None = None
        self.commit_index = 1 if stub is None else stub[1]

    def on_identity(self, reader: Reader) -> None:
        """Take note of whose log it is."""
        self.node_id, self.directory_id = reader.i32(), reader.uuid()

    def on_base(self, reader: Reader) -> None:
        """Begin."""
        if self.entries:
            raise MalformedError("it begins twice")
        index, term = reader.i64(), reader.i64()
        self.base_voters = voter_sets.read(reader)
        self.entries = [(NO_OP_ENTRY, index, term)]
        self.commit_index = index

    def on_entry(self, reader: Reader) -> None:
        """Append."""
        index, term = reader.i64(), reader.i64()
        command = reader.raw(reader.left)
        last = self._last()
        if index != last[1] + 1 or term < last[2] or not command:
            raise MalformedError(f"entry {index} of term {term} follows {last[1]} of {last[2]}")
        self.entries.append((command, index, term))
        if command[0] == VOTERS:
            self.voter_changes.append((index, decode_voters(command)[1]))

    def on_cut(self, reader: Reader) -> None:
        """Cut the end off."""
        index = reader.i64()
        place = index - self._first()[1]
        if not 0 < place < len(self.entries):
            raise MalformedError(f"it is cut at {index}, which it does not hold")
        del self.entries[place:]
        self.voter_changes = [each for each in self.voter_changes if each[0] < index]

    def on_vote(self, reader: Reader) -> None:
        """Set term and vote."""
        term, has_vote, vote = reader.i64(), reader.boolean(), reader.i64()
        if term < self.term:
            raise MalformedError(f"term {term} follows {self.term}")
        self.term, self.vote = term, vote if has_vote else None

    def on_commit(self, reader: Reader) -> None:
        """Move the commit index."""
        self.commit_index = max(self.commit_index, reader.i64())

    def _last(self) -> Entry:
        if not self.entries:
            raise MalformedError("it has no beginning")
        return self.entries[-1]

    def _first(self) -> Entry:
        if not self.entries:
            raise MalformedError("it has no beginning")
        return self.entries[0]


_STEPS: dict[int, Callable[[LogContent, Reader], None]] = {
    Record.IDENTITY: LogContent.on_identity,
    Record.BASE: LogContent.on_base,
    Record.ENTRY: LogContent.on_entry,
    Record.CUT: LogContent.on_cut,
    Record.VOTE: LogContent.on_vote,
    Record.COMMIT: LogContent.on_commit,
}


def replay(found: Journal) -> LogContent:
    """Carry out all records; raise MalformedError."""
    content = LogContent()
    for frame in found.frames:
        for record in frame.commands:
            reader = Reader(record)
            step = _STEPS.get(reader.u8())
            if step is None:
                raise MalformedError(f"unknown record {record[:1]!r}")
            step(content, reader)
            reader.expect_end()
    if not content.entries or content.node_id < 0:
        raise MalformedError("it has no beginning")
    last = content.entries[-1]
    if content.commit_index > last[1]:
        raise MalformedError(f"{content.commit_index} is committed, but it ends at {last[1]}")
    content.term = max(content.term, last[2])
    return content
