"""Replication to each peer: entries in a bounded pipeline, or a snapshot in chunks.

Takes the place of pysyncobj's sending, which has no bounds, sends again what is on its way when an
old reply arrives, and counts replies of other terms (holes 1.5.1, 1.5.3, 1.5.7, 1.5.8). Indexes of
the peers stay in pysyncobj, whose commit rule reads them. Owner: the Raft loop.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlogd.metadata.raft import snapshots
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.entries import Entry
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.snapshots import SnapshotFiles
from dlogd.metadata.raft.timings import NEVER_S

log = logging.getLogger(__name__)

MESSAGES_IN_FLIGHT_MAX = 16
APPEND_BYTES_MAX = 1 << 20
CHUNK_BYTES = 256 << 10


@dataclass(slots=True)
class _Progress:
    """What is under way to one peer on this connection."""

    # Numbers of appends without a reply, and when they were sent.
    outstanding: deque[tuple[int, float]] = field(default_factory=deque)
    # When the newest append was sent that was replied to, in this term.
    contact_s: float = NEVER_S
    # Rewinds asked for in replies to what was sent up to here are old news.
    rewound_at: int = 0
    commit_sent: int = -1
    snapshot_index: int = 0
    snapshot: bytes = b""
    position_acked: int = 0
    position_sent: int = 0
    acked_s: float = 0.0
    caught_up_s: float = 0.0

    def forget(self) -> None:
        """Begin anew: nothing is under way."""
        self.outstanding.clear()
        self.contact_s = NEVER_S
        self.commit_sent = -1
        self.snapshot_index, self.snapshot = 0, b""


class Replication:
    """The leader's half of replication. Life: with one core."""

    def __init__(
        self,
        raft_log: RaftLog,
        files: SnapshotFiles,
        *,
        renew: Callable[[], tuple[int, bytes]],
        append_bytes_max: int = APPEND_BYTES_MAX,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """`renew()` replaces the newest snapshot, which cannot be read, and returns its like."""
        self._log = raft_log
        self._files = files
        self._renew = renew
        self._append_bytes_max = append_bytes_max
        self._chunk_bytes = chunk_bytes
        self._progress: dict[int, _Progress] = {}
        self._sequence = 0
        self._newest: tuple[int, bytes] = (0, b"")
        self._core: Any = None

    def attach(self, core: Any) -> None:
        """Take the core whose indexes are to be moved."""
        self._core = core

    # -- connections and roles

    def on_connected(self, peer: Any) -> None:
        """Begin with a peer: what was under way on the last connection is lost."""
        self._progress[peer.id] = _Progress(caught_up_s=self._core.now_s())
        match = self._match(peer)
        self._set_next(peer, match + 1 if match else self._log.last_index + 1)

    def on_disconnected(self, peer: Any) -> None:
        """Forget a peer."""
        self._progress.pop(peer.id, None)

    def on_leadership(self) -> None:
        """Begin as leader: replies to an earlier leadership do not count."""
        for progress in self._progress.values():
            progress.forget()

    # -- indexes

    def _match(self, peer: Any) -> int:
        return int(self._core._SyncObj__raftMatchIndex.get(peer, 0))

    def _next(self, peer: Any) -> int:
        index = self._core._SyncObj__raftNextIndex.get(peer, 1)
        return min(int(index), self._log.last_index + 1)

    def _set_next(self, peer: Any, index: int) -> None:
        self._core._SyncObj__raftNextIndex[peer] = max(index, self._match(peer) + 1)

    def _advance(self, peer: Any, index: int) -> None:
        """Note that a peer durably holds the log up to `index`."""
        if peer.id >= 0 and not self._core.counts(peer.node_id):
            return
        if index > self._match(peer):
            self._core._SyncObj__raftMatchIndex[peer] = index

    # -- sending

    def send_all(self, *, heartbeat: bool) -> None:
        """Send to each peer what it lacks; with `heartbeat` at least something."""
        for node_id in self._core.connected:
            peer = self._core.seat(node_id)
            progress = self._progress[peer.id]
            if self._next(peer) <= self._log.base_index:
                self._send_snapshot(peer, progress, heartbeat=heartbeat)
            else:
                self._send_entries(peer, progress, heartbeat=heartbeat)

    def _send_entries(self, peer: Any, progress: _Progress, *, heartbeat: bool) -> None:
        next_index = self._next(peer)
        sent = False
        while (
            next_index <= self._log.last_index
            and len(progress.outstanding) < MESSAGES_IN_FLIGHT_MAX
        ):
            entries = self._take(next_index)
            self._send_append(peer, progress, next_index - 1, entries)
            next_index = entries[-1][1] + 1
            self._set_next(peer, next_index)
            sent = True
        if not sent and (heartbeat or progress.commit_sent < self._core.commit_index):
            self._send_append(peer, progress, next_index - 1, [])

    def _take(self, index: int) -> list[Entry]:
        """Return entries from `index` on: at least one, else at most so many bytes."""
        place = index - self._log.base_index
        entries: list[Entry] = []
        size = 0
        for entry in self._log.entries[place : place + 1000]:
            size += len(entry[0]) + 20
            if entries and size > self._append_bytes_max:
                break
            entries.append(entry)
        return entries

    def _send_append(
        self, peer: Any, progress: _Progress, previous: int, entries: list[Entry]
    ) -> None:
        self._sequence += 1
        progress.outstanding.append((self._sequence, self._core.now_s()))
        progress.commit_sent = self._core.commit_index
        self._core._send(
            peer.node_id,
            {
                "type": "append_entries",
                "term": self._core.term,
                "seq": self._sequence,
                "commit_index": self._core.commit_index,
                "prevLogIdx": previous,
                "prevLogTerm": self._log.term_at(previous),
                "entries": entries,
            },
        )

    def _send_snapshot(self, peer: Any, progress: _Progress, *, heartbeat: bool) -> None:
        if not progress.snapshot_index:
            progress.snapshot_index, progress.snapshot = self._newest_snapshot()
            progress.position_acked = progress.position_sent = 0
        data = b""
        position = progress.position_acked
        if progress.position_sent == position:
            data = progress.snapshot[position : position + self._chunk_bytes]
            progress.position_sent += len(data)
        elif not heartbeat:
            return
        self._core._send(
            peer.node_id,
            {
                "type": "snapshot",
                "term": self._core.term,
                "index": progress.snapshot_index,
                "total": len(progress.snapshot),
                "position": position,
                "data": data,
            },
        )

    def _newest_snapshot(self) -> tuple[int, bytes]:
        """Return index and bytes of what followers get; what has rotted on disk is made anew."""
        if self._newest[0] != self._files.index:
            data = self._files.newest()
            whole = snapshots.is_whole(data)
            self._newest = (self._files.index, data) if whole else self._renew()
        return self._newest

    # -- replies

    def _heard(self, peer: Any, message: Message) -> _Progress | None:
        """Take note of a reply; None when it does not count."""
        core = self._core
        if message["term"] > core.term:
            core.step_down(message["term"])
        progress = self._progress.get(peer.id)
        if not core.is_leader or message["term"] != core.term or progress is None:
            return None
        core._SyncObj__lastResponseTime[peer] = progress.acked_s = core.now_s()
        return progress

    def on_ack(self, peer: Any, message: Message) -> None:
        """Take the reply to an append."""
        progress = self._heard(peer, message)
        if progress is None:
            return
        outstanding = progress.outstanding
        while outstanding and outstanding[0][0] <= message["seq"]:
            progress.contact_s = outstanding.popleft()[1]
        index = message["next_node_idx"]
        if message["success"]:
            self._advance(peer, min(index - 1, self._log.last_index))
            if self._match(peer) >= self._next(peer):
                self._set_next(peer, self._match(peer) + 1)
            if index > self._core.commit_index:
                progress.caught_up_s = self._core.now_s()
        elif message["reset"] and message["seq"] > progress.rewound_at:
            progress.rewound_at = self._sequence
            if index <= self._match(peer):
                self._take_back(peer, max(index, 1) - 1)
            self._set_next(peer, max(index, 1))

    def _take_back(self, peer: Any, index: int) -> None:
        """Note that a peer holds the log up to `index` only, and had confirmed more.

        In one term its log cannot get shorter: its disk has lost something. What it confirmed must
        commit nothing any more, and it is sent again.
        """
        log.error(
            "Node lost metadata entries that it had confirmed; its raft.log was damaged, or an"
            " older copy was restored. The entries are sent again; check the disk of the node"
            " node=%d confirmed=%d holds=%d",
            peer.node_id,
            self._match(peer),
            index,
        )
        self._core._SyncObj__raftMatchIndex[peer] = index

    def on_snapshot_ack(self, peer: Any, message: Message) -> None:
        """Take the reply to a chunk."""
        progress = self._heard(peer, message)
        if progress is None or message["index"] != progress.snapshot_index:
            return
        position = message["position"]
        if progress.position_acked < position <= len(progress.snapshot):
            progress.position_acked = progress.position_sent = position
        if position == len(progress.snapshot):
            index = progress.snapshot_index
            progress.forget()
            self._advance(peer, index)
            self._set_next(peer, index + 1)

    def contact_s(self, peer: Any) -> float:
        """Return when the newest append was sent that a peer replied to in this term."""
        progress = self._progress.get(peer.id)
        return NEVER_S if progress is None else progress.contact_s

    # -- for operators

    def state_of(self, peer: Any) -> tuple[int, float, float]:
        """Return what a peer holds, when it last replied and when it last held everything."""
        progress = self._progress.get(peer.id, _Progress())
        return self._match(peer), progress.acked_s, progress.caught_up_s
