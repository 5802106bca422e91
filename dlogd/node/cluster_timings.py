"""Timings of a cluster from the configuration, and their relations. Pure.

Those of Raft, of leases, and of what the controller does without haste.
"""

import re

from dlogd.config.schema import KEYS, Config
from dlogd.config.units import UNLIMITED
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.planner import PlannerSettings
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
_NEVER_MS = 1 << 60
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


def planner_settings(config: Config) -> PlannerSettings:
    """Return how gently the controller goes about what is not urgent."""
    after_ms = config.refill.after_ms
    return PlannerSettings(
        settled_ms=config.election.preferred_after_ms,
        unclean_after_ms=config.election.unclean_after_ms,
        refill_after_ms=_NEVER_MS if after_ms == UNLIMITED else after_ms,
        reassignments_max=config.refill.reassignments_max,
    )


def problems(config: Config) -> list[str]:
    """Return which timings do not go together, in sentences."""
    if config.controllers is None:
        return []
    found = [f"raft: {each}" for each in raft_timings(config).problems()]
    found += [_in_keys(each) for each in lease_timings(config).problems()]
    return found or _planner_problems(config)


def _planner_problems(config: Config) -> list[str]:
    lease, election, refill = config.lease, config.election, config.refill
    rules = [
        (
            "election.preferred.after",
            election.preferred_after_ms,
            lease.duration_ms,
            "lease.duration",
            "a node that comes and goes would get its leaders back each time",
        ),
        (
            "election.unclean.after",
            election.unclean_after_ms,
            lease.duration_ms,
            "lease.duration",
            "a new controller knows no sooner who is there, and records would be lost for nothing",
        ),
        (
            "refill.after",
            _NEVER_MS if refill.after_ms == UNLIMITED else refill.after_ms,
            election.preferred_after_ms,
            "election.preferred.after",
            "a node that is only restarted would lose its replicas",
        ),
    ]
    return [
        f"{name}: {KEYS[name].key.format(value)} must be at least {KEYS[name].key.format(least)},"
        f" as long as {than}: {why}; raise {name}"
        for name, value, least, than, why in rules
        if value < least
    ]


def _in_keys(problem: str) -> str:
    """Return a sentence about times with the names that they have in the configuration."""
    return _NAME.sub(lambda name: _KEYS.get(name[0], name[0]), problem)
