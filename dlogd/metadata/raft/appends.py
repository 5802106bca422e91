"""Append rules of a follower: new entries, conflicts, proven entries.

Pure. pysyncobj cuts a follower's log behind `prevLogIdx` whatever stands there, and so loses what
was acknowledged when an older message comes late (hole 1.5.1); and it commits up to the leader's
index whether or not the message proved that the entries are the leader's (1.5.2). So each append is
rewritten into one with which it does the right thing.
"""

from dataclasses import dataclass

from dlog.errors import DlogError
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.messages import Message


class RaftHaltedError(DlogError):
    """A peer's message contradicts what is committed here; the node must stop."""


@dataclass(frozen=True, slots=True)
class Append:
    """An append as pysyncobj may have it."""

    message: Message
    # All up to this is here and is the leader's, although more stands behind it; None: up to the
    # last entry of the message.
    verified: int | None = None
    # Where the leader should try next, when what it built upon is not here.
    backoff: int | None = None


def normalise(message: Message, log: RaftLog, commit_index: int) -> Append:
    """Rewrite an append; raise RaftHaltedError when it contradicts what is committed."""
    first, last = log.base_index, log.last_index
    previous, entries = message["prevLogIdx"], message["entries"]
    if entries and entries[0][1] != previous + 1:
        raise RaftHaltedError(f"Entry {entries[0][1]} was sent to follow {previous}")
    if previous > last:
        return Append(message)
    sent_last = previous + len(entries)
    if previous < first:
        # All up to `first` is committed, and a leader holds what is committed.
        entries = entries[first - previous :]
        previous = first
    elif log.term_at(previous) != message["prevLogTerm"]:
        _expect_uncommitted(previous, commit_index)
        return Append(message, backoff=_start_of_term(log, previous, commit_index))
    known = 0
    while known < len(entries) and log.term_at(entries[known][1]) == entries[known][2]:
        known += 1
    if known < len(entries):
        if entries[known][1] <= last:
            _expect_uncommitted(entries[known][1], commit_index)
        previous, entries = previous + known, entries[known:]
        fields = {"prevLogIdx": previous, "prevLogTerm": log.term_at(previous), "entries": entries}
        return Append(message | fields)
    verified = max(sent_last, first)
    fields = {
        "prevLogIdx": last,
        "prevLogTerm": log.last_term,
        "entries": [],
        "commit_index": min(message["commit_index"], verified),
    }
    return Append(message | fields, verified=verified)


def _expect_uncommitted(index: int, commit_index: int) -> None:
    if index <= commit_index:
        raise RaftHaltedError(
            f"The leader's log differs at {index}, but {commit_index} is committed here: two "
            "histories met. Find out which nodes lost their disks before starting again"
        )


def _start_of_term(log: RaftLog, index: int, commit_index: int) -> int:
    """Return the first entry of the term at `index` that is not committed."""
    term = log.term_at(index)
    while index - 1 > max(log.base_index, commit_index) and log.term_at(index - 1) == term:
        index -= 1
    return index
