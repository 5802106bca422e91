"""Fetch by hand against the same messages by kio, for every version and both directions."""

import io
import struct
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_payload_module, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from dlog.errors import ProtocolError
from dlog.wire import fetch, fetch_client
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import FetchedPartition, FetchPartition, FetchRequest
from dlog.wire.frame import parse_request_header, parse_response_header
from dlog.wire.primitives import uvarint
from dlog.wire.topics import TopicKey

VERSIONS = range(4, 19)

Topics = list[tuple[TopicKey, list[FetchPartition]]]
Forgotten = list[tuple[TopicKey, list[int]]]


def key_of(version: int, number: int) -> TopicKey:
    """Return a topic as that version names it."""
    return UUID(int=(number + 1) << 100) if version >= 13 else f"topic-{number}"


def kio_request(version: int, request: FetchRequest, **tagged: Any) -> bytes:
    """Return the request's body as kio writes it."""
    module: Any = load_payload_module(1, version, EntityType.request)
    topic_field = "topic_id" if version >= 13 else "topic"
    fields: dict[str, Any] = {
        "max_wait": timedelta(milliseconds=request.max_wait_ms),
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation_level,
        "topics": tuple(
            module.FetchTopic(
                **{topic_field: topic},
                partitions=tuple(kio_partition(module, version, p, tagged) for p in partitions),
            )
            for topic, partitions in request.topics
        ),
    }
    if version < 15:
        fields["replica_id"] = request.replica_id
    elif request.replica_id != -1:
        fields["replica_state"] = module.ReplicaState(
            replica_id=request.replica_id, replica_epoch=request.replica_epoch
        )
    if version >= 7:
        fields["session_id"] = request.session_id
        fields["session_epoch"] = request.session_epoch
        fields["forgotten_topics_data"] = tuple(
            module.ForgottenTopic(**{topic_field: topic}, partitions=tuple(partitions))
            for topic, partitions in request.forgotten
        )
    if version >= 11:
        fields["rack_id"] = request.rack_id
    if "cluster_id" in tagged:
        fields["cluster_id"] = tagged["cluster_id"]
    output = io.BytesIO()
    entity_writer(module.FetchRequest)(output, module.FetchRequest(**fields))
    return output.getvalue()


def kio_partition(module: Any, version: int, data: FetchPartition, tagged: dict[str, Any]) -> Any:
    partition, leader_epoch, offset, last_epoch, log_start, size = data
    fields: dict[str, Any] = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": size,
    }
    if version >= 5:
        fields["log_start_offset"] = log_start
    if version >= 9:
        fields["current_leader_epoch"] = leader_epoch
    if version >= 12:
        fields["last_fetched_epoch"] = last_epoch
    if version >= 17 and "directory" in tagged:
        fields["replica_directory_id"] = tagged["directory"]
    return module.FetchPartition(**fields)


def expect(version: int, request: FetchRequest) -> FetchRequest:
    """Return the request as a version carries it: what it does not have at its default."""

    def partition(p: FetchPartition) -> FetchPartition:
        return (
            p[0],
            p[1] if version >= 9 else -1,
            p[2],
            p[3] if version >= 12 else -1,
            p[4] if version >= 5 else -1,
            p[5],
        )

    return request._replace(
        topics=[(topic, [partition(p) for p in ps]) for topic, ps in request.topics],
        forgotten=request.forgotten if version >= 7 else [],
        rack_id=request.rack_id if version >= 11 else "",
        session_id=request.session_id if version >= 7 else 0,
        session_epoch=request.session_epoch if version >= 7 else -1,
        replica_epoch=request.replica_epoch if version >= 15 else -1,
    )


def make_request(version: int, shape: list[int], *, replica_id: int = -1) -> FetchRequest:
    """Return a request with as many partitions per topic as `shape` says."""
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=1,
        session_id=77,
        session_epoch=3,
        topics=[
            (key_of(version, t), [(p, 5, 1 << 40 | p, 4, 9, 1 << 20) for p in range(count)])
            for t, count in enumerate(shape)
        ],
        forgotten=[(key_of(version, 8), [1, 2, 3]), (key_of(version, 9), [])],
        rack_id="rack-ü",
        replica_epoch=12 if replica_id >= 0 else -1,
    )


def parse(version: int, body: bytes) -> FetchRequest:
    """Parse a body that stands between other bytes."""
    buffer = memoryview(b"\xee" * 3 + body + b"\xee" * 40)
    return fetch.parse_request(buffer, 3, 3 + len(body), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", [[], [0], [1], [3, 0, 2], [300]])
@pytest.mark.parametrize("replica_id", [-1, 2])
def test_request_round_trip(version: int, shape: list[int], replica_id: int) -> None:
    request = make_request(version, shape, replica_id=replica_id)
    body = kio_request(version, request)
    assert parse(version, body) == expect(version, request)
    frame = fetch_client.encode_request(version, 12, "me", request)
    view = memoryview(frame)[4:]
    header = parse_request_header(view, 0, len(view))
    assert header[:4] == (1, version, 12, "me")
    assert bytes(view[header.body_position :]) == body


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_of_a_request_is_refused(version: int) -> None:
    body = kio_request(version, make_request(version, [2, 1], replica_id=1))
    buffer = memoryview(body)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            parse(version, body[:cut])
        with pytest.raises(ProtocolError):
            fetch.parse_request(buffer, 0, cut, version)
    with pytest.raises(ProtocolError):
        parse(version, body + b"\x00")


@pytest.mark.parametrize("version", [17, 18])
def test_request_with_tagged_fields_of_partitions(version: int) -> None:
    request = make_request(version, [2, 1], replica_id=1)
    body = kio_request(version, request, directory=UUID(int=5), cluster_id="cluster")
    assert len(body) > len(kio_request(version, request))
    assert parse(version, body) == request


def test_request_where_only_one_partition_has_a_tagged_field() -> None:
    plain = kio_request(12, make_request(12, [3]))
    row = struct.calcsize(">iiqiqi")
    first_tags = plain.index(struct.pack(">i", 1 << 20)) + 4
    second_tags = first_tags + 1 + row
    body = plain[:second_tags] + b"\x01\x09\x02zz" + plain[second_tags + 1 :]
    assert parse(12, body) == expect(12, make_request(12, [3]))


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (11, struct.pack(">iiiibiii", -1, 1, 1, 1, 0, 0, -1, 2**31 - 1)),
        (11, struct.pack(">iiiibiii", -1, 1, 1, 1, 0, 0, -1, -5)),
        (11, struct.pack(">iiiibiiihi", -1, 1, 1, 1, 0, 0, -1, 1, 0, 100_000)),
        (11, struct.pack(">iiiibiiih", -1, 1, 1, 1, 0, 0, -1, 1, -1)),
        (12, struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, -1) + b"\xff\xff\xff\xff\x0f"),
        (12, struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, -1) + b"\x02\x02\xff" + uvarint(9999)),
        (18, b"\xff" * 500),
        (4, b"\xff" * 500),
    ],
)
def test_malformed(version: int, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(version, body)


def test_null_arrays_are_empty() -> None:
    head = struct.pack(">iiiibii", -1, 1, 1, 1, 0, 0, -1)
    assert parse(7, head + b"\xff\xff\xff\xff" * 2).topics == []
    assert parse(12, head + b"\x00\x00\x01\x00").topics == []


Fetched = list[tuple[TopicKey, list[FetchedPartition]]]


def assemble(pieces: list[bytes | int]) -> tuple[bytes, list[bytes]]:
    """Put records of the asked sizes between the pieces; return the frame and the records."""
    frame = b""
    records: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, int):
            records.append(bytes([len(records) + 1]) * piece)
            piece = records[-1]
        frame += piece
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    return frame, records


def kio_view(version: int, entity: Any) -> list[Any]:
    """Return the partitions of kio's entity in the words of `FetchedPartition`, with records."""
    topics = []
    for topic in entity.responses:
        partitions = []
        for p in topic.partitions:
            diverging = getattr(p, "diverging_epoch", None)
            leader = getattr(p, "current_leader", None)
            fetched = FetchedPartition(
                p.partition_index,
                p.error_code,
                p.high_watermark,
                p.last_stable_offset,
                getattr(p, "log_start_offset", -1),
                len(p.records),
                None
                if diverging is None or diverging.end_offset == -1
                else (diverging.epoch, diverging.end_offset),
                None
                if leader is None or leader.leader_id == -1
                else (leader.leader_id, leader.leader_epoch),
                getattr(p, "preferred_read_replica", -1),
                None
                if p.aborted_transactions is None
                else [(a.producer_id, a.first_offset) for a in p.aborted_transactions],
            )
            partitions.append((fetched, bytes(p.records)))
        topics.append((topic.topic_id if version >= 13 else topic.topic, partitions))
    return topics


def expect_fetched(version: int, p: FetchedPartition) -> FetchedPartition:
    return p._replace(
        log_start_offset=p.log_start_offset if version >= 5 else -1,
        preferred_read_replica=p.preferred_read_replica if version >= 11 else -1,
        diverging_epoch=p.diverging_epoch if version >= 12 else None,
        current_leader=p.current_leader if version >= 12 else None,
        aborted=None if p.aborted is None else list(p.aborted),
    )


FULL = FetchedPartition(1, 0, 100, 90, 5, 300, (3, 44), (2, 9), 7, ((1, 2), (3, 4)))
RESPONSES: list[list[list[FetchedPartition]]] = [
    [],
    [[]],
    [[FetchedPartition(0, 0, 10, 10, 0, 0)]],
    [[FetchedPartition(0, 0, 10, 10, 0, 1)]],
    [[FetchedPartition(0, 0, 10, 10, 0, 126)]],
    [[FetchedPartition(0, 0, 10, 10, 0, 20_000, aborted=())]],
    [[FULL]],
    [[FetchedPartition(0, 74, -1, -1, -1, 0, current_leader=(3, 8))]],
    [
        [FetchedPartition(0, 0, 10, 10, 0, 5), FetchedPartition(1, 1, -1, -1, -1, 0), FULL],
        [],
        [FetchedPartition(0, 0, 10, 10, 0, 0), FetchedPartition(1, 0, 1, 1, 1, 9)],
    ],
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("shape", RESPONSES)
def test_response_round_trip(version: int, shape: list[list[FetchedPartition]]) -> None:
    topics: Fetched = [(key_of(version, t), ps) for t, ps in enumerate(shape)]
    pieces = fetch.encode_response_parts(version, 9, 30, 0, 55, topics)
    frame, records = assemble(pieces)
    assert [p for p in pieces if isinstance(p, int)] == [
        p.records_bytes for ps in shape for p in ps if p.records_bytes
    ]
    view = memoryview(frame)
    correlation_id, position = parse_response_header(view, 4, len(view), ApiKey.FETCH, version)
    assert correlation_id == 9
    entity: Any
    entity, size = entity_reader(load_response_schema(1, version))(bytes(view[position:]), 0)
    assert size == len(view) - position
    assert entity.throttle_time == timedelta(milliseconds=30)
    if version >= 7:
        assert (entity.error_code, entity.session_id) == (0, 55)
    waiting = iter(records)
    expected = [
        (
            topic,
            [
                (expect_fetched(version, p), next(waiting) if p.records_bytes else b"")
                for p in partitions
            ],
        )
        for topic, partitions in topics
    ]
    assert kio_view(version, entity) == expected
    ours = fetch_client.parse_response(view, position, len(view), version)
    assert ours.throttle_ms == 30
    assert ours.session_id == (55 if version >= 7 else 0)
    for (topic, partitions), (ours_topic, ours_partitions) in zip(
        expected, ours.topics, strict=True
    ):
        assert topic == ours_topic
        for (wanted, wanted_records), (found, start) in zip(
            partitions, ours_partitions, strict=True
        ):
            assert found == wanted._replace(aborted=wanted.aborted or None)
            assert view[start : start + found.records_bytes] == wanted_records
    for cut in {*range(position, min(len(view), 400)), *range(max(len(view) - 20, 0), len(view))}:
        if cut >= position:
            with pytest.raises(ProtocolError):
                fetch_client.parse_response(view[:cut], position, cut, version)


@pytest.mark.parametrize("version", [15, 16, 18])
def test_response_with_endpoints(version: int) -> None:
    endpoints = [(2, "node-2", 9092, None)]
    topics: Fetched = [(key_of(version, 0), [FULL])]
    frame, _ = assemble(fetch.encode_response_parts(version, 9, 0, 0, 0, topics, endpoints))
    view = memoryview(frame)
    _, position = parse_response_header(view, 4, len(view), ApiKey.FETCH, version)
    entity: Any
    entity, _ = entity_reader(load_response_schema(1, version))(bytes(view[position:]), 0)
    ours = fetch_client.parse_response(view, position, len(view), version)
    if version < 16:
        assert ours.endpoints == []
    else:
        assert ours.endpoints == endpoints
        assert [(e.node_id, e.host, e.port, e.rack) for e in entity.node_endpoints] == endpoints


def test_response_with_an_error_alone() -> None:
    assert fetch.encode_response_parts(11, 7, 0, 70, 0, []) == [
        struct.pack(">iiihii", 18, 7, 0, 70, 0, 0)
    ]
