"""Messages between nodes: heartbeats and probes, in frames of Kafka's protocol.

Pure. docs/formats/heartbeat.md describes each byte. Both are requests of the internal listener and
of no other: their keys are not in `dlog.wire.apis`, so no client is told of them or served. The
frame has a request header of version 1; the body begins with the cluster id, so that a node that
was given a wrong address does no harm.
"""

import struct
from dataclasses import dataclass
from uuid import UUID

from dlog.errors import ProtocolError
from dlog.types import NodeId
from dlog.wire import frame
from dlogd.internal.beat import Beat

HELLO = 20_000
HEARTBEAT = 20_001
PROBE = 20_002
REPLICATE = 20_003
NODE_REQUESTS = 20_004
VERSION = 0
CLUSTER_ID_BYTES_MAX = 256
DIRECTORIES_MAX = 256
NONCE_BYTES = 32
CLIENT_ID = "dlogd"

# Error codes in answers, Kafka's.
NONE = 0
UNSUPPORTED_VERSION = 35
NOT_CONTROLLER = 41
NOT_LEADER_OR_FOLLOWER = 6
STALE_BROKER_EPOCH = 77
INCONSISTENT_CLUSTER_ID = 104

_SURRENDERS, _WANTS_SHUTDOWN = 1, 2
_FENCED, _SHOULD_SHUT_DOWN = 1, 2

_LENGTH = struct.Struct(">H")
_HEARTBEAT = struct.Struct(">iqqqBH")  # node, node epoch, sequence, image version, flags, count
_ANSWER = struct.Struct(">hqqqiqB")
_PROBE = struct.Struct(">iq")  # who asks, its controller epoch
_PROBE_ANSWER = struct.Struct(">hiq")
_REPLICATE = struct.Struct(">iqi")  # who follows, its node epoch, whom
_ERROR_CODE = struct.Struct(">h")
_CORRELATION_ID = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a node tells the controller."""

    cluster_id: str
    sequence: int  # comes back in the answer
    beat: Beat
    failed_directories: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """What the controller answers; `lease_ms` is 0 when it grants nothing."""

    error_code: int
    controller_epoch: int = -1
    node_epoch: int = -1  # of the heartbeat
    sequence: int = 0  # of the heartbeat
    lease_ms: int = 0
    image_version: int = -1  # of the controller: how far this node is behind
    fenced: bool = False
    should_shut_down: bool = False  # its leaders have moved away


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Asks a process which life of a node it is."""

    cluster_id: str
    node_id: NodeId  # who asks
    controller_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """Says which life of a node answers; -1: not registered yet."""

    error_code: int
    node_id: NodeId
    node_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Asks a leader to turn the connection into a replication stream.

    By NODE_REQUESTS the same fields ask for a connection on which Kafka's requests are served.
    """

    cluster_id: str
    node_id: NodeId  # who follows
    node_epoch: int
    leader_id: NodeId  # who is wanted: the leader, or the node that is asked


def encode_hello(cluster_id: str, nonce: bytes, correlation_id: int) -> bytes:
    """Return the whole frame by which a connection begins."""
    return _request(HELLO, correlation_id, cluster_id, nonce)


def decode_hello(buffer: memoryview, position: int, end: int) -> str:
    """Return the cluster's id; raise ProtocolError."""
    cluster_id, position = _cluster_id(buffer, position, end)
    if end - position < NONCE_BYTES:
        raise ProtocolError("a hello without a nonce")
    return cluster_id


def encode_hello_answer(nonce: bytes, correlation_id: int) -> bytes:
    """Return the whole frame for a peer of this cluster."""
    body = _ERROR_CODE.pack(NONE) + nonce
    return frame.encode_response(HELLO, VERSION, correlation_id, body)


def encode_hello_refusal(error_code: int, correlation_id: int) -> bytes:
    """Return the whole frame for any other peer: without a nonce."""
    return frame.encode_response(HELLO, VERSION, correlation_id, _ERROR_CODE.pack(error_code))


def decode_hello_answer(payload: memoryview) -> int:
    """Return the error code; raise ProtocolError."""
    (error_code,) = _unpack(_ERROR_CODE, payload, _CORRELATION_ID.size, len(payload))
    whole = _CORRELATION_ID.size + _ERROR_CODE.size + NONCE_BYTES
    if error_code == NONE and len(payload) < whole:
        raise ProtocolError("an answer to a hello without a nonce")
    return error_code


def encode_heartbeat(request: Heartbeat, correlation_id: int) -> bytes:
    """Return the whole frame."""
    beat = request.beat
    directories = request.failed_directories[:DIRECTORIES_MAX]
    fixed = _HEARTBEAT.pack(
        beat.node_id,
        beat.node_epoch,
        request.sequence,
        beat.image_version,
        _SURRENDERS * beat.surrenders | _WANTS_SHUTDOWN * beat.wants_shutdown,
        len(directories),
    )
    tail = b"".join(each.bytes for each in directories)
    return _request(HEARTBEAT, correlation_id, request.cluster_id, fixed + tail)


def decode_heartbeat(buffer: memoryview, position: int, end: int) -> Heartbeat:
    """Read the body in [position, end); raise ProtocolError. More behind it is passed over."""
    cluster_id, position = _cluster_id(buffer, position, end)
    node_id, node_epoch, sequence, version, flags, count = _unpack(
        _HEARTBEAT, buffer, position, end
    )
    position += _HEARTBEAT.size
    if node_id < 0 or count > DIRECTORIES_MAX or end - position < 16 * count:
        raise ProtocolError("a malformed heartbeat")
    directories = tuple(
        UUID(bytes=bytes(buffer[each : each + 16]))
        for each in range(position, position + 16 * count, 16)
    )
    beat = Beat(
        node_id=NodeId(node_id),
        node_epoch=node_epoch,
        image_version=version,
        surrenders=bool(flags & _SURRENDERS),
        wants_shutdown=bool(flags & _WANTS_SHUTDOWN),
    )
    return Heartbeat(
        cluster_id=cluster_id, sequence=sequence, beat=beat, failed_directories=directories
    )


def encode_heartbeat_answer(answer: HeartbeatAnswer, correlation_id: int) -> bytes:
    """Return the whole frame."""
    body = _ANSWER.pack(
        answer.error_code,
        answer.controller_epoch,
        answer.node_epoch,
        answer.sequence,
        answer.lease_ms,
        answer.image_version,
        _FENCED * answer.fenced | _SHOULD_SHUT_DOWN * answer.should_shut_down,
    )
    return frame.encode_response(HEARTBEAT, VERSION, correlation_id, body)


def decode_heartbeat_answer(payload: memoryview) -> HeartbeatAnswer:
    """Read a response frame without its length; raise ProtocolError."""
    fields = _unpack(_ANSWER, payload, _CORRELATION_ID.size, len(payload))
    error_code, controller_epoch, node_epoch, sequence, lease_ms, version, flags = fields
    if lease_ms < 0:
        raise ProtocolError("a lease of less than nothing")
    return HeartbeatAnswer(
        error_code=error_code,
        controller_epoch=controller_epoch,
        node_epoch=node_epoch,
        sequence=sequence,
        lease_ms=lease_ms,
        image_version=version,
        fenced=bool(flags & _FENCED),
        should_shut_down=bool(flags & _SHOULD_SHUT_DOWN),
    )


def encode_probe(request: Probe, correlation_id: int) -> bytes:
    """Return the whole frame."""
    fixed = _PROBE.pack(request.node_id, request.controller_epoch)
    return _request(PROBE, correlation_id, request.cluster_id, fixed)


def decode_probe(buffer: memoryview, position: int, end: int) -> Probe:
    """Read the body in [position, end); raise ProtocolError."""
    cluster_id, position = _cluster_id(buffer, position, end)
    node_id, controller_epoch = _unpack(_PROBE, buffer, position, end)
    return Probe(cluster_id=cluster_id, node_id=NodeId(node_id), controller_epoch=controller_epoch)


def encode_probe_answer(answer: ProbeAnswer, correlation_id: int) -> bytes:
    """Return the whole frame."""
    body = _PROBE_ANSWER.pack(answer.error_code, answer.node_id, answer.node_epoch)
    return frame.encode_response(PROBE, VERSION, correlation_id, body)


def decode_probe_answer(payload: memoryview) -> ProbeAnswer:
    """Read a response frame without its length; raise ProtocolError."""
    error_code, node_id, node_epoch = _unpack(
        _PROBE_ANSWER, payload, _CORRELATION_ID.size, len(payload)
    )
    return ProbeAnswer(error_code=error_code, node_id=NodeId(node_id), node_epoch=node_epoch)


def encode_replicate(request: Replicate, correlation_id: int, api_key: int = REPLICATE) -> bytes:
    """Return the whole frame, of REPLICATE or NODE_REQUESTS."""
    fixed = _REPLICATE.pack(request.node_id, request.node_epoch, request.leader_id)
    return _request(api_key, correlation_id, request.cluster_id, fixed)


def decode_replicate(buffer: memoryview, position: int, end: int) -> Replicate:
    """Read the body in [position, end); raise ProtocolError."""
    cluster_id, position = _cluster_id(buffer, position, end)
    node_id, node_epoch, leader_id = _unpack(_REPLICATE, buffer, position, end)
    return Replicate(
        cluster_id=cluster_id,
        node_id=NodeId(node_id),
        node_epoch=node_epoch,
        leader_id=NodeId(leader_id),
    )


def encode_replicate_answer(
    error_code: int, correlation_id: int, api_key: int = REPLICATE
) -> bytes:
    """Return the whole frame; without an error the next bytes are of what was asked for."""
    body = _ERROR_CODE.pack(error_code)
    return frame.encode_response(api_key, VERSION, correlation_id, body)


def decode_replicate_answer(payload: memoryview) -> int:
    """Return the error code; raise ProtocolError."""
    (error_code,) = _unpack(_ERROR_CODE, payload, _CORRELATION_ID.size, len(payload))
    return int(error_code)


def _request(api_key: int, correlation_id: int, cluster_id: str, fixed: bytes) -> bytes:
    header = frame.encode_request_header(api_key, VERSION, correlation_id, CLIENT_ID)
    raw = cluster_id.encode()
    return frame.encode_frame(header, _LENGTH.pack(len(raw)), raw, fixed)


def _cluster_id(buffer: memoryview, position: int, end: int) -> tuple[str, int]:
    (size,) = _unpack(_LENGTH, buffer, position, end)
    position += _LENGTH.size
    if size > CLUSTER_ID_BYTES_MAX or end - position < size:
        raise ProtocolError("a malformed cluster id")
    try:
        text = bytes(buffer[position : position + size]).decode()
    except UnicodeDecodeError:
        raise ProtocolError("a cluster id that is not UTF-8") from None
    return text, position + size


def _unpack(fields: struct.Struct, buffer: memoryview, position: int, end: int) -> tuple[int, ...]:
    if end - position < fields.size:
        raise ProtocolError("a message shorter than its fields")
    return fields.unpack_from(buffer, position)
