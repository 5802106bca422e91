"""The times of Raft and of leases by the configuration, and whether they go together. Pure."""

import re

from dlogd.config.schema import Config
from dlogd.controller.timings import LeaseTimings
from dlogd.metadata.raft.timings import RaftTimings

_KEYS = {
    "heartbeat_ms": "lease.heartbeat",
    "lease_ms": "lease.duration",
    "authority_ms": "lease.authority",
    "probe_timeout_ms": "lease.probe.timeout",
    "image_lag_ms_max": "lease.image_lag.max",
    "clock_drift_ppm": "lease.clock_drift.ppm",
    "election_ms_max": "raft.election.max",
}
_NAME = re.compile(r"\b[a-z_]+_(?:ms|ms_max|ppm)\b")


def raft_timings(config: Config) -> RaftTimings:
    """Return the times of Raft."""
    raft = config.raft
    return RaftTimings(
        heartbeat_s=raft.heartbeat_ms / 1000,
        election_min_s=raft.election_min_ms / 1000,
        election_max_s=raft.election_max_ms / 1000,
        check_quorum_s=raft.check_quorum_ms / 1000,
        silence_s=raft.silence_ms / 1000,
        tick_s=min(0.02, raft.heartbeat_ms / 4000),
        ping_s=min(0.5, raft.silence_ms / 4000),
    )


def lease_timings(config: Config) -> LeaseTimings:
    """Return the times of leases."""
    lease = config.lease
    return LeaseTimings(
        heartbeat_ms=lease.heartbeat_ms,
        lease_ms=lease.duration_ms,
        authority_ms=lease.authority_ms,
        probe_timeout_ms=lease.probe_timeout_ms,
        image_lag_ms_max=lease.image_lag_ms_max,
        clock_drift_ppm=lease.clock_drift_ppm,
        # A follower waits for one time-out, and a vote may split once.
        election_ms_max=config.raft.election_max_ms,
    )


def problems(config: Config) -> list[str]:
    """Return which timings do not go together, in sentences."""
    if config.controllers is None:
        return []
    found = [f"raft: {each}" for each in raft_timings(config).problems()]
    return found + [_in_keys(each) for each in lease_timings(config).problems()]


def _in_keys(problem: str) -> str:
    """Return a sentence about times with the names that they have in the configuration."""
    return _NAME.sub(lambda name: _KEYS.get(name[0], name[0]), problem)
