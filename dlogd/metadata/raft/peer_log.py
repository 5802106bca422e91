"""Log lines about peers, rate limited.

Peers dial each other many times in a second. What does not change is said once in a while; the rest
is for `log.level: debug`. Takes the loop's time, reads no clock.
"""

import logging

log = logging.getLogger(__name__)

AGAIN_S = 60.0
"""The same is said again after this time."""
BRIEF_S = 1.0
"""A connection that ended so soon came to nothing: the peer will try again at once."""
NEVER_REACHED = "not reached yet"
UNPROVEN = "reached, but it does not prove its identity"
LOST = "the connection was lost"
SENT_AWAY = (
    "reached, but it closes the connection at once: it may know another node with this node.id, or"
    " another directory of this one; its log says why"
)
"""Why there is no connection with a peer, where nothing more exact is known."""
PEERS_MAX = 64
"""Strangers may give any id."""


class PeerLog:
    """What was said of which peer. Owner: the transport."""

    def __init__(self) -> None:
        self._refused: dict[tuple[int, str], float] = {}
        self._connected: dict[int, float] = {}
        self._brief: dict[int, float] = {}

    def on_refused(self, peer: int, host: str, reason: str, now_s: float) -> None:
        """Say that a connection was closed, and why; who is not known yet, by address alone."""
        level = logging.WARNING if self._is_news(peer, reason, now_s) else logging.DEBUG
        log.log(level, "Closed Raft connection peer=%d host=%s reason=%s", peer, host, reason)

    def on_connected(self, peer: int, now_s: float) -> None:
        """Say that a peer is there, unless it comes and goes."""
        self._connected[peer] = now_s
        level = logging.DEBUG if peer in self._brief else logging.INFO
        log.log(level, "Raft peer connected peer=%d", peer)

    def on_disconnected(self, peer: int, now_s: float) -> str:
        """Say that a peer has gone, unless it comes and goes: that is said once in a while.

        Returns what that means for who waits for the peer.
        """
        begun_s = self._connected.pop(peer, now_s)
        if now_s - begun_s >= BRIEF_S:
            self._brief.pop(peer, None)
            log.info("Raft peer disconnected peer=%d", peer)
            return LOST
        said_s = self._brief.get(peer)
        if said_s is None or now_s - said_s >= AGAIN_S:
            self._brief[peer] = now_s
            log.info("Raft peer disconnected at once peer=%d", peer)
        else:
            log.debug("Raft peer disconnected peer=%d", peer)
        return SENT_AWAY

    def _is_news(self, peer: int, reason: str, now_s: float) -> bool:
        said_s = self._refused.get((peer, reason))
        if said_s is not None and now_s - said_s < AGAIN_S:
            return False
        if len(self._refused) >= PEERS_MAX:
            # Strangers choose what they are refused for: so many lines in this time are enough.
            kept = {key: at_s for key, at_s in self._refused.items() if now_s - at_s < AGAIN_S}
            self._refused = kept
            if len(kept) >= PEERS_MAX:
                return False
        self._refused[peer, reason] = now_s
        return True
