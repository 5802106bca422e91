"""Timings of Raft, and bounds that keep it safe and calm. Pure."""

from dataclasses import dataclass

NEVER_S = -1e9
"""A time long past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimings:
    """All in seconds."""

    election_min_s: float = 0.4
    election_max_s: float = 0.9
    heartbeat_s: float = 0.1
    check_quorum_s: float = 1.0  # a leader that hears no majority for so long steps down
    tick_s: float = 0.02
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 0.5
    handshake_s: float = 2.0
    ping_s: float = 0.5
    silence_s: float = 2.0  # a connection that brings nothing for so long is closed

    def problems(self) -> list[str]:
        """Return what cannot work, one sentence each."""
        found = []
        if not 0 < self.tick_s < self.heartbeat_s:
            found.append("The tick must be shorter than the heartbeat")
        if self.election_min_s <= 3 * self.heartbeat_s:
            found.append("The shortest election time-out must exceed three heartbeats")
        if self.election_max_s <= self.election_min_s:
            found.append("The longest election time-out must exceed the shortest")
        if self.check_quorum_s < self.election_min_s:
            found.append("A leader must not give up before its followers do")
        if self.silence_s <= 2 * self.ping_s:
            found.append("A silent connection must be given time for two pings")
        return found
