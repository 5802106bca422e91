"""Settings of a node in Raft: identity and bounds. Values only."""

import ssl
from dataclasses import dataclass, field

from dlogd.metadata.raft.replication import APPEND_BYTES_MAX, CHUNK_BYTES
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import Voters

LOG_BYTES_MAX = 4 << 20
"""A larger log is replaced by a snapshot."""

ENTRIES_KEPT = 1_000
"""How many entries stay behind a snapshot, for followers that lag a little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Who this node is in the cluster, and its bounds."""

    node_id: int
    cluster: str  # a name that all nodes share; part of the handshake
    secret: bytes
    controllers: Voters  # as configured: the first voters, and whom to dial
    host: str
    port: int
    timings: RaftTimings = field(default_factory=RaftTimings)
    log_bytes_max: int = LOG_BYTES_MAX
    entries_kept: int = ENTRIES_KEPT
    append_bytes_max: int = APPEND_BYTES_MAX
    chunk_bytes: int = CHUNK_BYTES
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None
