"""What the configuration of a node means for its cluster: timings, secret, who keeps the metadata.

Part of the composition: `dlogd.clustering` and `dlogd.__main__` call it.
"""

import os.path
from collections.abc import Callable

from dlog.errors import ConfigError
from dlogd.config.schema import Config
from dlogd.controller.timings import LeaseTimings
from dlogd.metadata.raft.handshake import SECRET_BYTES_MIN
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.storage.files import Directory

SECRET_BYTES_MAX = 4096


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
    return found + [f"lease: {each}" for each in lease_timings(config).problems()]


def read_key(path: str, open_directory: Callable[[str], Directory], key: str) -> bytes:
    """Return the content of a small file that the configuration names; raise ConfigError."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        file = open_directory(folder).open(name, read_only=True)
        try:
            return file.pread(min(file.size(), SECRET_BYTES_MAX), 0).strip()
        finally:
            file.close()
    except OSError as error:
        raise ConfigError(f"{key} {path} cannot be read: {error}") from error


def read_secret(path: str, open_directory: Callable[[str], Directory]) -> bytes:
    """Return the cluster's secret; raise ConfigError. Blocking."""
    secret = read_key(path, open_directory, "cluster.secret.file")
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"cluster.secret.file {path} has less than {SECRET_BYTES_MIN} bytes")
    return secret


def raft_config(config: Config, secret: bytes) -> RaftConfig:
    """Return who this node is among those that keep the metadata; raise ConfigError."""
    assert config.controllers is not None and config.cluster.id is not None
    wrong = problems(config)
    if wrong:
        raise ConfigError(wrong)
    own = config.metadata.listener
    if own is None:
        own = next(e.address for e in config.controllers if e.node_id == config.node.id)
    voters = Voters.of(
        Voter(node_id=each.node_id, host=each.address.host, port=each.address.port)
        for each in config.controllers
    )
    return RaftConfig(
        node_id=config.node.id,
        cluster=config.cluster.id,
        secret=secret,
        controllers=voters,
        host=own.host,
        port=own.port,
        timings=raft_timings(config),
    )
