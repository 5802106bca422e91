"""Configuration of a cluster: addresses between nodes, and timings.

Pure declarations; `dlogd.config.schema` puts them together. How the timings bound each other is
checked with the rest (`dlogd.node.cluster_timings`): those rules belong to what they keep safe.
"""

from dataclasses import dataclass

from dlogd.config import keys
from dlogd.config.choices import MembershipKind
from dlogd.config.keys import key
from dlogd.config.units import Address, NodeAt

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalConfig:
    """Where nodes talk to each other about who lives."""

    listener: Address = key(
        "internal.listener",
        keys.ADDRESS,
        "127.0.0.1:9192",
        "Where other nodes reach this node with heartbeats and probes, once `controllers` is set. "
        "Clients never use it. With port 0 the system chooses the port.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimingsConfig:
    """How fast the metadata gets another leader."""

    heartbeat_ms: int = key(
        "raft.heartbeat",
        keys.DURATION,
        "100ms",
        "How often the leader of the metadata sends a heartbeat to the other nodes.",
        low=10,
        high=MINUTE_MS,
    )
    election_min_ms: int = key(
        "raft.election.min",
        keys.DURATION,
        "400ms",
        "Shortest time without a leader after which a voter asks for an election; more than three "
        "heartbeats.",
        low=40,
        high=MINUTE_MS,
    )
    election_max_ms: int = key(
        "raft.election.max",
        keys.DURATION,
        "900ms",
        "Longest time without a leader after which a voter asks for an election. Each time is "
        "random between the two, so that voters do not all ask at once.",
        low=50,
        high=MINUTE_MS,
    )
    check_quorum_ms: int = key(
        "raft.check_quorum",
        keys.DURATION,
        "1s",
        "A leader that hears no majority for this time steps down.",
        low=40,
        high=MINUTE_MS,
    )
    silence_ms: int = key(
        "raft.silence",
        keys.DURATION,
        "2s",
        "A metadata connection without data for this time is closed and opened again.",
        low=100,
        high=MINUTE_MS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    """How soon a silent node is given up."""

    heartbeat_ms: int = key(
        "lease.heartbeat",
        keys.DURATION,
        "300ms",
        "How often a node renews its lease with the controller.",
        low=10,
        high=MINUTE_MS,
    )
    duration_ms: int = key(
        "lease.duration",
        keys.DURATION,
        "3s",
        "How long a node may lead without an answer of the controller, and how long a silent host "
        "keeps its leaders. A process that dies is noticed at once.",
        low=100,
        high=10 * MINUTE_MS,
    )
    authority_ms: int = key(
        "lease.authority",
        keys.DURATION,
        "1500ms",
        "How long a controller grants leases after the last proof that it leads. The leases end "
        "one `lease.duration` after that proof, so a new controller waits no longer.",
        low=30,
        high=10 * MINUTE_MS,
    )
    probe_timeout_ms: int = key(
        "lease.probe.timeout",
        keys.DURATION,
        "500ms",
        "How long a suspected process has to answer.",
        low=10,
        high=MINUTE_MS,
    )
    image_lag_ms_max: int = key(
        "lease.image_lag.max",
        keys.DURATION,
        "3s",
        "A node with older metadata gets no lease, because it may not know the present leaders.",
        low=20,
        high=10 * MINUTE_MS,
    )
    clock_drift_ppm: int = key(
        "lease.clock_drift.ppm",
        keys.INTEGER,
        "1000",
        "Largest error of the rate of a host's clock, in millionths. The wait for the end of a "
        "lease is longer by this error.",
        low=0,
        high=100_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionConfig:
    """When other replicas lead; those of leaders that went are elected at once."""

    preferred_after_ms: int = key(
        "election.preferred.after",
        keys.DURATION,
        "30s",
        "How long a node must be up before it leads again the partitions whose first replica it "
        "is. At least one lease.",
        low=100,
        high=DAY_MS,
    )
    unclean_after_ms: int = key(
        "election.unclean.after",
        keys.DURATION,
        "30s",
        "How long a partition has no leader before a replica that may lack records leads. Only "
        "for topics with `unclean.leader.election.enable`. Must be longer than a new controller "
        "needs to learn which nodes are up.",
        low=100,
        high=DAY_MS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RefillConfig:
    """When the replicas of a node that is gone are made anew on others."""

    after_ms: int = key(
        "refill.after",
        keys.DURATION_OR_UNLIMITED,
        "30min",
        "How long a node must be down before its replicas are recreated on other nodes. Must be "
        "longer than a restart of a host, or data is copied without need. A node that is added "
        "meanwhile gets the replicas sooner; with -1 only such a node gets them. A new controller "
        "restarts the count.",
        low=1_000,
        high=30 * DAY_MS,
    )
    reassignments_max: int = key(
        "refill.reassignments.max",
        keys.INTEGER,
        "20",
        "Partitions that are copied at the same time for refill and for drained nodes. "
        "Reassignments by operators count too.",
        low=1,
        high=100_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipConfig:
    """Who says which nodes are there; it decides nothing."""

    kind: MembershipKind = key(
        "membership.kind",
        keys.choice(MembershipKind),
        "static",
        "Source of hints about which nodes are up: `serf`, the agent of this host, or `static`, "
        "the list of peers.",
    )
    peers: tuple[NodeAt, ...] | None = key(
        "membership.peers",
        keys.NODES_AT,
        None,
        "With `static`: other nodes and their internal listeners.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SerfConfig:
    """The Serf agent of this host."""

    address: Address = key(
        "serf.address",
        keys.ADDRESS,
        "127.0.0.1:7373",
        "Address of the agent's RPC.",
    )
    key_file: str | None = key(
        "serf.key.file",
        keys.PATH,
        None,
        "File with the agent's `rpc_auth` key, if it has one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """What is expected of replicas."""

    lag_time_max_ms: int = key(
        "replica.lag.time.max",
        keys.DURATION,
        "10s",
        "A follower that has not caught up with its leader for this time leaves the ISR, and "
        "producers no longer wait for it. A node that is down leaves sooner, when its lease ends. "
        "Default of the topic config `replica.lag.time.max.ms`.",
        low=100,
        reloadable=True,
    )
