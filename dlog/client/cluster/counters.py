"""Counters of a client, as plain ints that a program may read at any time.

Pure: the owner adds, nobody resets. `dlog.client.cluster.cluster` counts connections, lookups and
retries; producers and consumers keep their own counters beside these.
"""

from dataclasses import dataclass, field, fields

from dlog.transport import TransportCounters


@dataclass(slots=True)
class ClientCounters:
    """Counters of one `Cluster`; each only grows."""

    connections_opened: int = 0
    """Connections that were made and negotiated."""
    connections_failed: int = 0
    """Attempts to connect or to negotiate that failed."""
    connections_lost: int = 0
    """Open connections that were dropped because they broke or stopped answering."""
    metadata_requests: int = 0
    """Metadata requests that were sent."""
    metadata_failures: int = 0
    """Metadata requests that got no usable answer."""
    rediscoveries: int = 0
    """Look-ups of nodes and leaders that succeeded after an error had made them stale."""
    leader_errors: int = 0
    """Errors that said that the leader is another one."""
    leader_changes: int = 0
    """Times that a partition was found to be led by another node, or in another epoch."""
    leader_hints: int = 0
    """Leaders taken from the answer of a node that refused (KIP-951), without a look-up."""
    transport_errors: int = 0
    """Calls that ended by a broken or refused connection."""
    timeouts: int = 0
    """Calls that nobody answered in time."""
    silences: int = 0
    """Connections dropped because their node was silent and had been deposed."""
    retries: int = 0
    """Calls repeated after an error."""
    give_ups: int = 0
    """Calls that failed for good: a final error, or no time left."""
    transport: TransportCounters = field(default_factory=TransportCounters)
    """Requests and bytes of all connections."""

    def as_dict(self) -> dict[str, int]:
        """Return all counters by name, those of the transport too."""
        own = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "transport"
        }
        return {**own, **self.transport.as_dict()}
