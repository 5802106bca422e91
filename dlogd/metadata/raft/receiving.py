"""Receiving of a snapshot by a follower: chunks, then installation.

A transfer lives as long as its connection and its leader; a new one begins at the beginning.
Owner: the Raft loop.
"""

from typing import Any

from dlogd.metadata.raft.machine_state import MachineState
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.snapshots import SNAPSHOT_BYTES_MAX


class SnapshotReceiver:
    """At most one transfer at a time."""

    def __init__(self, core: Any, state: MachineState) -> None:
        self._core = core
        self._state = state
        self._source = (-1, -1, -1, -1)
        self._data = bytearray()

    def forget(self, node_id: int) -> None:
        """A connection is new or over: its transfer is void."""
        if self._source[0] == node_id:
            self._source, self._data = (-1, -1, -1, -1), bytearray()

    def receive(self, node_id: int, message: Message) -> bool:
        """Take a chunk and reply; return whether a snapshot was installed."""
        core, state = self._core, self._state
        peer = core.seat(node_id)
        if peer is None or not core.hear_leader(peer, message["term"]):
            return False
        core.follow(peer, message["term"])
        index, total = message["index"], message["total"]
        if index <= core.commit_index:
            # What is committed here is a part of the leader's log.
            self._reply(node_id, index, total)
            return False
        source = (node_id, message["term"], index, total)
        if source != self._source:
            self._source, self._data = source, bytearray()
        fits = len(self._data) + len(message["data"]) <= min(total, SNAPSHOT_BYTES_MAX)
        if message["position"] == len(self._data) and fits:
            self._data += message["data"]
        if len(self._data) < total:
            self._reply(node_id, index, len(self._data))
            return False
        data = bytes(self._data)
        self.forget(node_id)
        taken = state.install(data)
        core.jump_to(taken.index)
        self._reply(node_id, index, total)
        return True

    def _reply(self, node_id: int, index: int, position: int) -> None:
        self._core._send(
            node_id,
            {
                "type": "snapshot_ack",
                "term": self._core.term,
                "index": index,
                "position": position,
            },
        )
