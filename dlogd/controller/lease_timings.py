"""Timings of leases, and their relations.

Pure. Clocks of hosts run at slightly different rates; `clock_drift_ppm` bounds how far each may be
off true time. A duration that one host must outwait while another counts it is stretched by both
errors, and by the rounding to whole milliseconds.
"""

from dataclasses import dataclass

_MILLION = 1_000_000
_ROUNDING_MS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimings:
    """All durations of the exchange between nodes and controller; check `problems` at start."""

    heartbeat_ms: int = 300
    """How often a node renews its lease."""
    lease_ms: int = 3_000
    """How long a node may lead after the moment at which its controller surely led Raft last."""
    authority_ms: int = 1_500
    """How long a controller grants leases after the latest moment at which it surely led Raft."""
    probe_timeout_ms: int = 500
    """How long a suspected process has to answer a probe."""
    probe_pause_ms: int = 50
    """Pause between two probes of one process."""
    refusals_min: int = 2
    """Refused connections in a row that prove a process dead."""
    image_lag_ms_max: int = 3_000
    """A node whose image is older than this gets no lease: it may not know that it was deposed."""
    election_ms_max: int = 1_200
    """The longest time after which a Raft voter calls an election (raft's own setting)."""
    clock_drift_ppm: int = 1_000
    """How far a host's monotonic clock may be off true time, in millionths."""

    @property
    def held_ms(self) -> int:
        """How long after a moment all leases that were granted until then are taken for held."""
        return self.outwait_ms(self.lease_ms)

    @property
    def overdue_ms(self) -> int:
        """How long after its last heartbeat a node is suspected."""
        return 3 * self.heartbeat_ms

    @property
    def proof_pause_ms(self) -> int:
        """How long a controller that has proof of its leadership waits before it asks for more."""
        return self.heartbeat_ms

    def outwait_ms(self, duration_ms: int) -> int:
        """Return how long by any clock takes what lasts `duration_ms` by another one."""
        fast, slow = _MILLION + self.clock_drift_ppm, _MILLION - self.clock_drift_ppm
        return -(-duration_ms * fast // slow) + _ROUNDING_MS

    def problems(self) -> list[str]:
        """Return why these times do not go together, in sentences; empty when they do."""
        found = [
            f"{name} must be positive"
            for name in (
                *("heartbeat_ms", "lease_ms", "authority_ms", "probe_timeout_ms"),
                *("probe_pause_ms", "refusals_min", "image_lag_ms_max", "election_ms_max"),
            )
            if getattr(self, name) < 1
        ]
        if not 0 <= self.clock_drift_ppm <= 100_000:
            found.append("clock_drift_ppm must be between 0 and 100000")
        if found:
            return found
        checks = [
            (
                self.lease_ms >= 5 * self.heartbeat_ms,
                "lease_ms must be at least 5 times heartbeat_ms: lost heartbeats are no reason",
            ),
            (
                self.lease_ms >= 2 * (self.election_ms_max + self.heartbeat_ms),
                "lease_ms must be at least twice election_ms_max and heartbeat_ms together: else a"
                " change of controller takes the leases of all nodes",
            ),
            (
                self.probe_timeout_ms < self.lease_ms,
                "probe_timeout_ms must be below lease_ms",
            ),
            (
                self.authority_ms >= 3 * self.heartbeat_ms,
                "authority_ms must be at least 3 times heartbeat_ms: a controller that often must"
                " not grant takes the leases of all nodes",
            ),
            (
                self.authority_ms + 3 * self.heartbeat_ms <= self.lease_ms,
                "authority_ms must be at least 3 times heartbeat_ms below lease_ms: only what is"
                " left of it then is granted",
            ),
            (
                self.image_lag_ms_max >= 2 * self.heartbeat_ms,
                "image_lag_ms_max must be at least twice heartbeat_ms",
            ),
        ]
        return [problem for good, problem in checks if not good]
