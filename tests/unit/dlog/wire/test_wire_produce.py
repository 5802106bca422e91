"""Produce by hand against the same messages by kio, for every version and both directions."""

import io
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from dlog.errors import ProtocolError
from dlog.wire import produce, produce_client
from dlog.wire.apis import ApiKey
from dlog.wire.frame import parse_request_header, parse_response_header
from dlog.wire.topics import TopicKey

VERSIONS = range(3, 14)
ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
ID_2 = UUID(int=77)

Topics = list[tuple[TopicKey, list[tuple[int, bytes]]]]


def key_of(version: int, name: str, topic_id: UUID = ID) -> TopicKey:
    """Return the topic as that version names it."""
    return topic_id if version >= 13 else name


def kio_request(
    version: int, topics: Topics, transactional_id: str | None = None, acks: int = -1
) -> bytes:
    """Return a request's body as kio writes it."""
    module: Any = load_payload_module(0, version, EntityType.request)
    topic_field = "topic_id" if version >= 13 else "name"
    request = module.ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout=timedelta(milliseconds=30_000),
        topic_data=tuple(
            module.TopicProduceData(
                **{topic_field: topic},
                partition_data=tuple(
                    module.PartitionProduceData(index=index, records=records)
                    for index, records in partitions
                ),
            )
            for topic, partitions in topics
        ),
    )
    output = io.BytesIO()
    entity_writer(module.ProduceRequest)(output, request)
    return output.getvalue()


def parse(version: int, body: bytes, before: int = 3, after: int = 40) -> tuple[Any, Topics]:
    """Parse a body that stands between other bytes; return the request and its record sets."""
    buffer = memoryview(b"\xee" * before + body + b"\xee" * after)
    request = produce.parse_request(buffer, before, before + len(body), version)
    topics = [
        (topic, [(index, bytes(buffer[start:end])) for index, start, end in partitions])
        for topic, partitions in request.topics
    ]
    return request, topics


SIZES = [0, 1, 125, 126, 127, 128, 300, 16_382, 16_383, 16_384, 70_000, 2_097_151, 2_097_152]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", SIZES)
def test_request_for_one_partition(version: int, size: int) -> None:
    topics: Topics = [(key_of(version, "flights"), [(7, b"r" * size)])]
    request, found = parse(version, kio_request(version, topics))
    assert found == topics
    assert (request.transactional_id, request.acks, request.timeout_ms) == (None, -1, 30_000)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name_bytes", [1, 125, 126, 127, 128, 249, 250, 1000])
def test_request_with_a_name_of_any_length(version: int, name_bytes: int) -> None:
    topics: Topics = [(key_of(version, "n" * name_bytes), [(0, b"records")])]
    assert parse(version, kio_request(version, topics))[1] == topics


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "shape", [[], [[]], [[1, 2]], [[1], [2]], [[], [3], []], [list(range(40))] * 3]
)
@pytest.mark.parametrize("transactional_id", [None, "", "payments", "x" * 200])
def test_request_of_any_shape(
    version: int, shape: list[list[int]], transactional_id: str | None
) -> None:
    topics: Topics = [
        (
            key_of(version, f"topic-{number}", UUID(int=number + 1)),
            [(index, b"%d" % index * 50) for index in indexes],
        )
        for number, indexes in enumerate(shape)
    ]
    request, found = parse(version, kio_request(version, topics, transactional_id, acks=1))
    assert found == topics
    assert (request.transactional_id, request.acks) == (transactional_id, 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_request_with_a_transactional_id_and_one_partition(version: int) -> None:
    topics: Topics = [(key_of(version, "größe"), [(0, b"\xff" * 90)])]
    request, found = parse(version, kio_request(version, topics, "öäü"))
    assert found == topics
    assert request.transactional_id == "öäü"


@pytest.mark.parametrize("version", VERSIONS)
def test_null_records_are_an_empty_set(version: int) -> None:
    body = kio_request(version, [(key_of(version, "t"), [(3, None)])])  # type: ignore[list-item]
    assert parse(version, body)[1] == [(key_of(version, "t"), [(3, b"")])]


@pytest.mark.parametrize("version", VERSIONS)
def test_clients_request_is_what_kio_reads(version: int) -> None:
    topics: Topics = [
        (key_of(version, "a"), [(0, b"one"), (1, b"")]),
        (key_of(version, "b", ID_2), [(5, b"x" * 400)]),
    ]
    frame = produce_client.encode_request(version, 5, "me", 1, 30_000, topics, "tx")
    view = memoryview(frame)[4:]
    header = parse_request_header(view, 0, len(view))
    assert header[:4] == (0, version, 5, "me")
    body = bytes(view[header.body_position :])
    assert body == kio_request(version, topics, "tx", acks=1)
    _, size = entity_reader(load_request_schema(0, version))(body, 0)
    assert size == len(body)
    assert parse(version, body)[1] == topics


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "topics", [[("t", [(0, b"abc" * 30)])], [("t", [(0, b"a"), (1, b"b")]), ("u", [(2, b"c")])]]
)
def test_every_cut_of_a_request_is_refused(version: int, topics: Topics) -> None:
    named: Topics = [
        (key_of(version, str(t), UUID(int=i + 1)), p) for i, (t, p) in enumerate(topics)
    ]
    body = kio_request(version, named)
    for cut in range(len(body)):
        with pytest.raises(ProtocolError):
            parse(version, body[:cut])
        buffer = memoryview(body)
        with pytest.raises(ProtocolError):
            produce.parse_request(buffer, 0, cut, version)
    with pytest.raises(ProtocolError):
        parse(version, body + b"\x00")


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (8, b"\xff\xff\x00\x01\x00\x00\x00\x00\x7f\xff\xff\xff"),  # many topics
        (8, b"\xff\xff\x00\x01\x00\x00\x00\x00\xff\xff\xff\xfe"),  # a negative number of them
        (8, b"\xff\xfe\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"),  # transactional id of -2 bytes
        (8, b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x02\xff\xfe\x00\x00\x00\x00"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\xff\x0f"),
        (9, b"\x00\x00\x01\x00\x00\x00\x00\x00\x00"),  # null topics
        (9, b"\x00\x00\x01\x00\x00\x00\x00\x02\x00\x01\x00\x00"),  # null name
        (9, b"\x00\x00\x01\x00\x00\x00\x00\x02\x03\xff\xfe\x01\x00\x00"),  # name not UTF-8
        (9, b"\xff" * 300),
    ],
)
def test_malformed(version: int, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(version, body)


def test_more_partitions_than_a_request_may_have() -> None:
    count = produce.REQUEST_ENTRIES_MAX
    body = (
        b"\xff\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01t"
        + count.to_bytes(4, "big")
        + b"\x00\x00\x00\x01\xff\xff\xff\xff" * count
    )
    with pytest.raises(ProtocolError):
        parse(8, body)


Produced = list[tuple[TopicKey, list[produce.ProducedPartition]]]


def read_with_kio(version: int, frame: bytes) -> tuple[int, Any]:
    """Return (correlation id, kio's response entity) of a whole frame."""
    view = memoryview(frame)
    assert int.from_bytes(view[:4], "big") == len(view) - 4
    correlation_id, position = parse_response_header(view, 4, len(view), ApiKey.PRODUCE, version)
    body = bytes(view[position:])
    entity, size = entity_reader(load_response_schema(0, version))(body, 0)
    assert size == len(body)
    return correlation_id, entity


def expect(version: int, topics: Produced) -> list[Any]:
    """Return the topics as a version carries them: fields it does not have at their default."""
    return [
        (
            topic,
            [
                (i, e, b, t, s if version >= 5 else -1, m if version >= 8 else None)
                for i, e, b, t, s, m in partitions
            ],
        )
        for topic, partitions in topics
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("message", [None, "", "no"])
@pytest.mark.parametrize("throttle_ms", [0, 250])
def test_response_round_trip(version: int, message: str | None, throttle_ms: int) -> None:
    one: Produced = [(key_of(version, "t"), [(4, 0, 1 << 40, -1, 9, message)])]
    two: Produced = [
        (key_of(version, "t"), [(4, 3, -1, -1, -1, message), (5, 0, 7, 1_000, 0, None)]),
        (key_of(version, "u", ID_2), [(0, 0, 0, -1, 0, None)]),
    ]
    shapes: list[Produced] = [one, two, [], [(key_of(version, "t"), [])]]
    for topics in shapes:
        frame = produce.encode_response(version, 31, topics, throttle_ms)
        correlation_id, entity = read_with_kio(version, frame)
        assert correlation_id == 31
        assert entity.throttle_time == timedelta(milliseconds=throttle_ms)
        kio_topics = [
            (
                t.topic_id if version >= 13 else t.name,
                [
                    (
                        p.index,
                        p.error_code,
                        p.base_offset,
                        -1 if p.log_append_time is None else p.log_append_time.timestamp() * 1000,
                        getattr(p, "log_start_offset", -1),
                        getattr(p, "error_message", None),
                    )
                    for p in t.partition_responses
                ],
            )
            for t in entity.responses
        ]
        assert kio_topics == expect(version, topics)
        view = memoryview(frame)
        _, position = parse_response_header(view, 4, len(view), ApiKey.PRODUCE, version)
        ours = produce_client.parse_response(view, position, len(view), version)
        assert ours == (expect(version, topics), throttle_ms, {}, [])
        for cut in range(position, len(view)):
            with pytest.raises(ProtocolError):
                produce_client.parse_response(view[:cut], position, cut, version)


@pytest.mark.parametrize("version", range(8, 14))
def test_response_with_a_leader_and_endpoints(version: int) -> None:
    topic = key_of(version, "t")
    endpoints = [(2, "node-2.example", 9092, "rack-b"), (3, "::1", 9093, None)]
    frame = produce.encode_response(
        version, 1, [(topic, [(4, 6, -1, -1, -1, None)])], 0, {(topic, 4): (2, 17)}, endpoints
    )
    _, entity = read_with_kio(version, frame)
    view = memoryview(frame)
    _, position = parse_response_header(view, 4, len(view), ApiKey.PRODUCE, version)
    ours = produce_client.parse_response(view, position, len(view), version)
    if version < 10:
        assert (ours.leaders, ours.endpoints) == ({}, [])
        return
    leader = entity.responses[0].partition_responses[0].current_leader
    assert (leader.leader_id, leader.leader_epoch) == (2, 17)
    assert [(e.node_id, e.host, e.port, e.rack) for e in entity.node_endpoints] == endpoints
    assert (ours.leaders, ours.endpoints) == ({(topic, 4): (2, 17)}, endpoints)


def test_a_message_is_cut_to_what_fits() -> None:
    frame = produce.encode_response(8, 1, [("t", [(0, 87, -1, -1, -1, "ä" * 100_000)])])
    _, entity = read_with_kio(8, frame)
    assert entity.responses[0].partition_responses[0].error_message == "ä" * 1000
