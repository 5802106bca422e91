"""Service of every node on the internal listener: probes, and heartbeats on the controller.

No transport here: a listener hands over requests with whatever object stands for the connection,
and tells when that has ended. While this node is controller, it has a `LeaseTable`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from dlog.errors import ProtocolError
from dlog.types import NodeId
from dlog.wire.frame import RequestHeader
from dlogd.controller.leases import LeaseTable, NoLease
from dlogd.controller.own_lease import OwnLease
from dlogd.internal import messages
from dlogd.internal.messages import Heartbeat, HeartbeatAnswer, ProbeAnswer
from dlogd.runtime.clock import Clock

log = logging.getLogger(__name__)

_CODES = {
    NoLease.NOT_CONTROLLER: messages.NOT_CONTROLLER,
    NoLease.UNKNOWN: messages.STALE_BROKER_EPOCH,
    NoLease.REPLACED: messages.STALE_BROKER_EPOCH,
}
# The answer ends a lease that the node may still have.
_ENDS_LEASE = frozenset({NoLease.REPLACED, NoLease.FENCED, NoLease.CONDEMNED})


@dataclass(slots=True)
class LivenessCounters:
    """What was answered since the start; plain values that metrics read."""

    heartbeats_total: int = 0
    grants_total: int = 0
    refusals_total: int = 0
    probes_total: int = 0
    foreign_total: int = 0  # of another cluster


class LivenessService:
    """Answers heartbeats and probes. Owner: the event loop's thread."""

    def __init__(
        self,
        node_id: NodeId,
        lease: OwnLease,
        *,
        clock: Clock,
        cluster_id: Callable[[], str],
        image_version: Callable[[], int],
    ) -> None:
        self.counters = LivenessCounters()
        self.on_event: Callable[[], None] | None = None
        """Called after what may matter to the controller: a heartbeat's news, a lost connection."""
        self.on_failed_directories: Callable[[Heartbeat], None] | None = None
        self.may_shut_down: Callable[[NodeId], bool] = lambda _: False
        """Whether a node that wants to shut down leads nothing any more."""
        self._node_id = node_id
        self._lease = lease
        self._clock = clock
        self._cluster_id = cluster_id
        self._image_version = image_version
        self._table: LeaseTable | None = None
        # By connection, whose heartbeats came; by node, on which connection the last one did.
        self._nodes: dict[object, tuple[NodeId, int]] = {}
        self._connections: dict[NodeId, object] = {}

    def lead(self, table: LeaseTable) -> None:
        """Grant leases by `table` from now on."""
        self._table = table
        self._nodes.clear()
        self._connections.clear()

    def resign(self) -> None:
        """Grant nothing any more."""
        self._table = None
        self._nodes.clear()
        self._connections.clear()

    def handle(
        self, connection: object, header: RequestHeader, buffer: memoryview, end: int
    ) -> bytes:
        """Answer the request with a whole frame; raise ProtocolError to close the connection."""
        if header.api_version != messages.VERSION:
            raise ProtocolError(f"request {header.api_key} of version {header.api_version}")
        if header.api_key == messages.HEARTBEAT:
            request = messages.decode_heartbeat(buffer, header.body_position, end)
            answer = self._on_heartbeat(connection, request)
            return messages.encode_heartbeat_answer(answer, header.correlation_id)
        if header.api_key == messages.PROBE:
            probe = messages.decode_probe(buffer, header.body_position, end)
            code = self._check_cluster(probe.cluster_id)
            self.counters.probes_total += 1
            found = ProbeAnswer(
                error_code=code, node_id=self._node_id, node_epoch=self._lease.node_epoch
            )
            return messages.encode_probe_answer(found, header.correlation_id)
        raise ProtocolError(f"request type {header.api_key} on the internal listener")

    def on_closed(self, connection: object) -> None:
        """Suspect the node whose last heartbeat came on this connection."""
        known = self._nodes.pop(connection, None)
        if known is None or self._table is None:
            return
        node_id, node_epoch = known
        if self._connections.get(node_id) is not connection:
            return  # it has connected anew and been heard of since
        del self._connections[node_id]
        self._table.on_disconnect(node_id, node_epoch, self._clock.now_ms())
        self._tell()

    def _check_cluster(self, cluster_id: str) -> int:
        own = self._cluster_id()
        if own and cluster_id == own:
            return messages.NONE
        self.counters.foreign_total += 1
        return messages.INCONSISTENT_CLUSTER_ID

    def _on_heartbeat(self, connection: object, request: Heartbeat) -> HeartbeatAnswer:
        beat, table = request.beat, self._table
        self.counters.heartbeats_total += 1
        code = self._check_cluster(request.cluster_id)
        if code == messages.NONE and table is None:
            code = messages.NOT_CONTROLLER
        if code != messages.NONE or table is None:
            self.counters.refusals_total += 1
            return HeartbeatAnswer(
                error_code=code, node_epoch=beat.node_epoch, sequence=request.sequence
            )
        now_ms = self._clock.now_ms()
        found = table.on_beat(beat, now_ms)
        refusal = found if isinstance(found, NoLease) else None
        if refusal is None:
            self.counters.grants_total += 1
        else:
            self.counters.refusals_total += 1
        if refusal not in _CODES:
            self._nodes[connection] = (beat.node_id, beat.node_epoch)
            self._connections[beat.node_id] = connection
            if request.failed_directories and self.on_failed_directories is not None:
                self.on_failed_directories(request)
            if refusal is not None or beat.wants_shutdown:
                self._tell()
        return HeartbeatAnswer(
            error_code=messages.NONE if refusal is None else _CODES.get(refusal, 0),
            controller_epoch=table.controller_epoch,
            node_epoch=beat.node_epoch,
            sequence=request.sequence,
            lease_ms=0 if isinstance(found, NoLease) else found,
            image_version=self._image_version(),
            fenced=refusal in _ENDS_LEASE,
            should_shut_down=beat.wants_shutdown and self.may_shut_down(beat.node_id),
        )

    def _tell(self) -> None:
        if self.on_event is not None:
            self.on_event()
