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
        "Where other nodes reach this one with heartbeats and probes, once `controllers` is set; "
        "clients never do. Port 0 lets the system choose.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimingsConfig:
    """How fast the metadata gets another leader."""

    heartbeat_ms: int = key(
        "raft.heartbeat",
        keys.DURATION,
        "100ms",
        "How often the leader of the metadata tells the others that it leads.",
        low=10,
        high=MINUTE_MS,
    )
    election_min_ms: int = key(
        "raft.election.min",
        keys.DURATION,
        "400ms",
        "How long a voter hears of no leader before it asks to become one, at least; more than "
        "three heartbeats.",
        low=40,
        high=MINUTE_MS,
    )
    election_max_ms: int = key(
        "raft.election.max",
        keys.DURATION,
        "900ms",
        "The same at most; each time is drawn between the two, so that not all ask at once.",
        low=50,
        high=MINUTE_MS,
    )
    check_quorum_ms: int = key(
        "raft.check_quorum",
        keys.DURATION,
        "1s",
        "A leader that hears no majority for so long steps down.",
        low=40,
        high=MINUTE_MS,
    )
    silence_ms: int = key(
        "raft.silence",
        keys.DURATION,
        "2s",
        "A connection of the metadata that brings nothing for so long is closed and made anew.",
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
        "How long a node may lead without an answer of the controller, and how long the silence of "
        "a host stays without consequence. A process that dies is noticed at once.",
        low=100,
        high=10 * MINUTE_MS,
    )
    authority_ms: int = key(
        "lease.authority",
        keys.DURATION,
        "1500ms",
        "How long a controller grants leases after it last surely was one. They end a "
        "`lease.duration` after that, so a new controller waits no longer than that.",
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
        "A node whose metadata is older gets no lease: it may not know who leads now.",
        low=20,
        high=10 * MINUTE_MS,
    )
    clock_drift_ppm: int = key(
        "lease.clock_drift.ppm",
        keys.INTEGER,
        "1000",
        "How wrong the rate of a host's clock may be, in millionths; leases are outwaited by as "
        "much more.",
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
        "How long a node has been up when it leads again what it is the first replica of. Not less "
        "than a lease.",
        low=100,
        high=DAY_MS,
    )
    unclean_after_ms: int = key(
        "election.unclean.after",
        keys.DURATION,
        "30s",
        "How long a partition has had no leader when its topic's `unclean.leader.election.enable` "
        "lets a replica lead that may lack records; longer than a new controller takes to know who "
        "is there.",
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
        "How long a node has been down when its replicas are made anew on others; longer than a "
        "restart of a host, whose data would be copied for nothing. A node that is added meanwhile "
        "takes them sooner, and without a limit only that. A new controller counts anew.",
        low=1_000,
        high=30 * DAY_MS,
    )
    reassignments_max: int = key(
        "refill.reassignments.max",
        keys.INTEGER,
        "20",
        "Partitions that are copied at a time for that and for drained nodes; those that operators "
        "reassign count too.",
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
        "Where hints come from about who is there: `serf`, the agent of this host; `static`, the "
        "list of peers.",
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
        "Where the agent takes RPC.",
    )
    key_file: str | None = key(
        "serf.key.file",
        keys.PATH,
        None,
        "File with the agent's `rpc_auth` key, when it has one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaConfig:
    """What is expected of replicas."""

    lag_time_max_ms: int = key(
        "replica.lag.time.max",
        keys.DURATION,
        "10s",
        "A follower that has not had all that its leader has for so long leaves the ISR, and is "
        "not waited for any more. A node that is down is given up sooner, when its lease ends. "
        "Default of the topic config `replica.lag.time.max.ms`.",
        low=100,
        reloadable=True,
    )
