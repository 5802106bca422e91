"""Configuration of the service: identity, addresses, limits, acknowledgement, logs.

Pure declarations; `dlogd.config.schema` puts them together.
"""

from dataclasses import dataclass

from dlogd.config import keys
from dlogd.config.choices import AckMode, LogFormat, LogLevel
from dlogd.config.keys import key
from dlogd.config.units import Address

INT32_MAX = (1 << 31) - 1
KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Who this node is."""

    id: int = key(
        "node.id",
        keys.INTEGER,
        "1",
        "Identity of this node in its cluster; never shared and never changed. The data "
        "directories remember the id and refuse another one.",
        low=0,
        high=INT32_MAX,
    )
    rack: str | None = key(
        "node.rack",
        keys.TEXT,
        None,
        "Failure domain. The cluster spreads the replicas of a partition over racks. Instances on "
        "one host use the host as their rack.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Which cluster this node belongs to."""

    id: str | None = key(
        "cluster.id",
        keys.TEXT,
        None,
        "Identity of the cluster; without it, the first start creates one. A data directory of "
        "another cluster is refused. Needed when `controllers` is set.",
    )
    secret_file: str | None = key(
        "cluster.secret.file",
        keys.PATH,
        None,
        "File with the secret that all nodes of the cluster share: at least 16 random bytes in "
        "base64 or hexadecimal. Nodes prove with the secret that they belong to the cluster. Only "
        "the daemon may read the file. Needed when `controllers` is set.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedConfig:
    """What clients are told."""

    address: Address | None = key(
        "advertised.address",
        keys.ADVERTISED_ADDRESS,
        None,
        "Where clients reach this node, if that is not the address of the first listener. Needed "
        "when a listener binds every interface. Without a port: the port of the listener.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """The operators' HTTP endpoint."""

    address: Address = key(
        "http.address",
        keys.ADDRESS,
        "127.0.0.1:9644",
        "Address of /metrics, /livez, /readyz and /status. HTTP is unencrypted: use loopback or "
        "an operators' network. With port 0 the system chooses the port.",
    )
    hosts: tuple[str, ...] = key(
        "http.hosts",
        keys.HOSTS,
        "localhost",
        "Names by which HTTP requests may call this node, in addition to its IP addresses, its "
        "host name and the hosts in `http.address`, `listeners` and `advertised.address`. "
        "Requests for other names are refused.",
        reloadable=True,
    )
    connections_per_ip_max: int = key(
        "http.connections.per_ip.max",
        keys.INTEGER,
        "8",
        "HTTP connections of each client address, out of 64 for all addresses. A new connection "
        "closes the connection that has been silent longest.",
        low=1,
        high=64,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AckConfig:
    """What a producer's acknowledgement means."""

    default: AckMode = key(
        "ack.default",
        keys.choice(AckMode),
        "all",
        "Acknowledgement that dlog's own clients and tools request if the caller does not choose. "
        "Cluster and topic configs `ack.default` override it.",
        reloadable=True,
    )
    floor: AckMode = key(
        "ack.floor",
        keys.choice(AckMode),
        "none",
        "Weakest acknowledgement. The node raises weaker produce requests to it. The client still "
        "gets the protocol's answer, but later. Cluster and topic configs `ack.floor` override "
        "it.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageConfig:
    """Bounds of record batches."""

    bytes_max: int = key(
        "message.bytes.max",
        keys.BYTES,
        "1048588",
        "Largest record batch, as compressed by the producer: 1 MiB and Kafka's 12 bytes of "
        "framing. Default of the topic config `max.message.bytes`.",
        low=1 * KIB,
        high=INT32_MAX,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """What a topic gets when its creator does not say."""

    partitions_default: int = key(
        "topic.partitions.default",
        keys.INTEGER,
        "1",
        "Partitions of a topic that is created without a number (-1).",
        low=1,
        high=100_000,
        reloadable=True,
    )
    replication_default: int = key(
        "topic.replication.default",
        keys.INTEGER,
        "1",
        "Replicas of a topic that is created without a number (-1). With three nodes or more, use "
        "3.",
        low=1,
        high=32,
        reloadable=True,
    )
    auto_create: bool = key(
        "topic.auto_create",
        keys.BOOLEAN,
        "false",
        "Whether a metadata request for an unknown topic creates the topic, if the client allows "
        "that. Off by default: a misspelt name should fail.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameConfig:
    """Bounds of protocol frames."""

    bytes_max: int = key(
        "frame.bytes.max",
        keys.BYTES,
        "100MiB",
        "Largest request. The node closes the connection of a larger request before it reads the "
        "request.",
        low=16 * KIB,
        high=INT32_MAX,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionsConfig:
    """Bounds of client connections."""

    max: int = key(
        "connections.max",
        keys.INTEGER,
        "10000",
        "Connections of a listener. A full listener closes the newest connection of the address "
        "with the most connections, if the newcomer's address has at least two fewer. Otherwise "
        "it refuses the newcomer. The limit of open files must be higher.",
        low=1,
        high=1_000_000,
        reloadable=True,
    )
    rate: int = key(
        "connections.rate",
        keys.INTEGER,
        "1000",
        "New connections per second over all addresses. After a pause, twice `connections.max` "
        "may arrive at once. An address that has opened few connections is not refused by this "
        "limit.",
        low=1,
        high=1_000_000,
        reloadable=True,
    )
    per_ip_max: int = key(
        "connections.per_ip.max",
        keys.INTEGER,
        "1000",
        "Connections of one client address. An IPv6 address counts as its /64 network. If many "
        "clients share an address (NAT), raise it.",
        low=1,
        high=1_000_000,
        reloadable=True,
    )
    per_ip_rate: int = key(
        "connections.per_ip.rate",
        keys.INTEGER,
        "100",
        "New connections per second of one client address; the node closes further ones at once. "
        "After a pause, twice `connections.per_ip.max` may arrive at once.",
        low=1,
        high=1_000_000,
        reloadable=True,
    )
    idle_timeout_ms: int = key(
        "connections.idle.timeout",
        keys.DURATION,
        "10min",
        "The node closes a connection without requests for this time.",
        low=100,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InflightConfig:
    """Bounds of requests under way."""

    bytes_max: int = key(
        "inflight.bytes.max",
        keys.BYTES,
        "256MiB",
        "Bytes of requests that are read but not yet answered, over all connections. Beyond this "
        "limit the node stops reading from sockets.",
        low=16 * KIB,
    )
    requests_max: int = key(
        "inflight.requests.max",
        keys.INTEGER,
        "1024",
        "Requests that are read but not yet answered, for each connection.",
        low=1,
        high=100_000,
    )
    entries_max: int = key(
        "inflight.entries.max",
        keys.INTEGER,
        "200000",
        "Array entries (names, partitions, configs) of requests that are read but not yet "
        "answered, over all connections. Beyond this limit requests wait, and addresses take "
        "turns.",
        low=1_000,
        high=10_000_000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdConfig:
    """Memory of idempotent producers."""

    expiry_ms: int = key(
        "producer_id.expiry",
        keys.DURATION,
        "1d",
        "The node forgets a producer id that has not written for this time, counted while the "
        "node runs. Its producer then starts again.",
        low=1_000,
        reloadable=True,
    )
    per_partition_max: int = key(
        "producer_id.per_partition.max",
        keys.INTEGER,
        "10000",
        "Producer ids remembered for each partition. Beyond this limit the node forgets the id "
        "that has been silent longest. Each id needs about 1 KiB.",
        low=1,
        high=1_000_000,
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLinesConfig:
    """The daemon's own log lines."""

    format: LogFormat = key(
        "log.format",
        keys.choice(LogFormat),
        "text",
        "`text` and `json` write one line per event to standard error. `journal` writes to "
        "journald with fields, or text if there is no journal.",
    )
    level: LogLevel = key(
        "log.level",
        keys.choice(LogLevel),
        "info",
        "Lowest severity that is logged.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownConfig:
    """The way down."""

    timeout_ms: int = key(
        "shutdown.timeout",
        keys.DURATION,
        "30s",
        "How long the whole stop after SIGTERM may take. After half of this time, the node cuts "
        "connections with pending answers. The next start recovers what is not flushed and closed "
        "by the end. systemd's TimeoutStopSec must be longer.",
        low=100,
        reloadable=True,
    )
