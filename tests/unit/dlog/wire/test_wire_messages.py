"""Messages of every type and version against kio's own reader and writer."""

import dataclasses
import io
import random
import types
import typing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from dlog.errors import ProtocolError
from dlog.wire import messages
from dlog.wire.apis import VERSIONS, ApiKey, is_flexible
from dlog.wire.encoders import piecewise_encoder
from dlog.wire.frame import FrameSplitter, parse_request_header, parse_response_header
from dlog.wire.primitives import uvarint
from dlog.wire.reader import ENTRIES_MAX
from dlogd.server.request_turns import at_once

EVERY = [(key, v) for key, (low, high) in VERSIONS.items() for v in range(low, high + 1)]
IDS = [f"{key.name.lower()}-{version}" for key, version in EVERY]

INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def random_entity(entity_type: Any, rng: random.Random) -> Any:
    """Return an entity with values that kio's writer can write."""
    return entity_type(
        **{
            f.name: random_value(f.type, f.metadata.get("kafka_type"), "tag" in f.metadata, rng)
            for f in dataclasses.fields(entity_type)
        }
    )


def random_value(annotation: Any, kafka_type: str | None, tagged: bool, rng: random.Random) -> Any:
    if isinstance(annotation, types.UnionType):
        if rng.random() < 0.3 and not tagged:
            return None
        (annotation,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
    if typing.get_origin(annotation) is tuple:
        item = typing.get_args(annotation)[0]
        return tuple(
            random_value(item, kafka_type, False, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))
        )
    if kafka_type is None:
        return random_entity(annotation, rng)
    return random_primitive(annotation, kafka_type, rng)


def random_primitive(annotation: Any, kafka_type: str, rng: random.Random) -> Any:
    if kafka_type in INTEGERS:
        bits = INTEGERS[kafka_type]
        return rng.choice((0, 1, -1, rng.randrange(-(2**bits), 2**bits), 2**bits - 1, -(2**bits)))
    choices: dict[str, Any] = {
        "uint16": lambda: rng.randrange(2**16),
        "bool": lambda: rng.random() < 0.5,
        "float64": lambda: rng.random(),
        "string": lambda: rng.choice(("", "a", "größe", "x" * 126, "y" * 127, "z" * 1000)),
        "bytes": lambda: rng.randbytes(rng.choice((0, 1, 200))),
        "records": lambda: rng.randbytes(rng.choice((0, 1, 200))),
        "uuid": lambda: UUID(int=rng.randrange(1, 2**128)),
        "error_code": lambda: rng.choice(list(annotation)),
        "timedelta_i32": lambda: timedelta(
            milliseconds=rng.choice((0, -1, 5, 2**31 - 1, -(2**31)))
        ),
        "datetime_i64": lambda: datetime.fromtimestamp(rng.randrange(2**31), UTC),
    }
    return choices[kafka_type]()


def parse_in_pieces(key: ApiKey, version: int, view: memoryview, position: int) -> Any:
    """Read a request as those of many entries are read."""
    pieces = messages.parse_request_in_pieces(key, version, view, position)
    return at_once(pieces)


@pytest.mark.parametrize(("key", "version"), EVERY, ids=IDS)
@pytest.mark.parametrize("part", ["request", "response"])
def test_agrees_with_kio(key: ApiKey, version: int, part: str) -> None:
    if (key, version) == (ApiKey.LIST_OFFSETS, 0):
        return  # Ours alone: tests/unit/dlog/wire/test_wire_list_offsets_v0.py.
    rng = random.Random(f"{key} {version} {part}")
    load = load_request_schema if part == "request" else load_response_schema
    entity_type: Any = load(key, version)
    typed = messages.request_type if part == "request" else messages.response_type
    assert typed(key, version) is entity_type
    for _ in range(30):
        entity = random_entity(entity_type, rng)
        output = io.BytesIO()
        entity_writer(entity_type)(output, entity)
        body = output.getvalue()
        if part == "request":
            frame = messages.encode_request(entity, 7, "me")
        else:
            frame = messages.encode_response(entity, 7)
        (view,) = FrameSplitter().feed(memoryview(frame))
        if part == "request":
            position = parse_request_header(view, 0, len(view)).body_position
            found = messages.parse_request(key, version, view, position)
            assert parse_in_pieces(key, version, view, position) == found
        else:
            correlation_id, position = parse_response_header(view, 0, len(view), key, version)
            assert correlation_id == 7
            found = messages.parse_response(key, version, view)
            assert messages.parse_response_body(key, version, view, position) == found
        assert bytes(view[position:]) == body
        theirs, _ = entity_reader(entity_type)(body, 0)
        assert found == theirs == entity
        in_pieces = bytearray()
        for _ in piecewise_encoder(entity_type)(in_pieces, entity):
            pass
        assert in_pieces == body


@pytest.mark.parametrize(("key", "version"), EVERY, ids=IDS)
def test_every_cut_of_a_request_is_refused(key: ApiKey, version: int) -> None:
    rng = random.Random(f"cut {key} {version}")
    entity = random_entity(messages.request_type(key, version), rng)
    view = memoryview(messages.encode_request(entity, 1, None))[4:]
    position = parse_request_header(view, 0, len(view)).body_position
    for cut in range(position, len(view)):
        with pytest.raises(ProtocolError):
            messages.parse_request(key, version, view[:cut], position)
        with pytest.raises(ProtocolError):
            messages.parse_request(key, version, view, position, cut)
        with pytest.raises(ProtocolError):
            parse_in_pieces(key, version, view[:cut], position)
    longer = memoryview(bytes(view) + b"\x00")
    assert messages.parse_request(key, version, longer, position) == messages.parse_request(
        key, version, view, position
    )


def test_librdkafka_leaves_bytes_behind_its_request_for_all_topics() -> None:
    """As librdkafka 2.16 sends it (confluentinc/librdkafka#5049)."""
    sent = memoryview(bytes.fromhex("0003000d00000003000772646b61666b610000000000010000"))
    position = parse_request_header(sent, 0, len(sent)).body_position
    request = messages.parse_request(ApiKey.METADATA, 13, sent, position)
    assert request.topics is None
    assert not request.allow_auto_topic_creation


@pytest.mark.parametrize(("key", "version"), EVERY, ids=IDS)
@pytest.mark.parametrize("part", ["request", "response"])
def test_no_bytes_do_harm(key: ApiKey, version: int, part: str) -> None:
    rng = random.Random(f"fuzz {key} {version} {part}")
    likely = (0, 0, 0, 1, 2, 3, 127, 128, 255)
    for _ in range(60):
        size = rng.randrange(120)
        raw = bytes(
            rng.choice(likely) if rng.random() < 0.8 else rng.randrange(256) for _ in range(size)
        )
        try:
            if part == "request":
                parse_in_pieces(key, version, memoryview(raw), 0)
                messages.parse_request(key, version, memoryview(raw), 0)
            else:
                messages.parse_response(key, version, memoryview(raw))
        except ProtocolError:
            pass


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, b"\x7f\xff\xff\xff" + bytes(50)),
        (1, b"\xff\xff\xff\xfe"),
        (9, b"\xff\xff\xff\xff\x0f" + bytes(50)),
        (9, uvarint(60) + bytes(50)),
    ],
)
def test_an_array_that_claims_more_than_follows(version: int, body: bytes) -> None:
    with pytest.raises(ProtocolError):
        messages.parse_request(ApiKey.METADATA, version, memoryview(body), 0)


def test_the_number_of_entries_is_bounded_in_all_arrays_together() -> None:
    count = ENTRIES_MAX
    body = uvarint(count + 1) + b"\x02t\x00" * count + bytes(4)
    assert is_flexible(ApiKey.METADATA, 9)
    request = messages.parse_request(ApiKey.METADATA, 9, memoryview(body), 0)
    assert len(request.topics) == count
    body = uvarint(count + 2) + b"\x02t\x00" * (count + 1) + bytes(4)
    with pytest.raises(ProtocolError):
        messages.parse_request(ApiKey.METADATA, 9, memoryview(body), 0)


def test_unknown_messages_and_versions() -> None:
    for key, version in ((ApiKey.METADATA, 99), (999, 0), (ApiKey.METADATA, -1)):
        with pytest.raises(ProtocolError):
            messages.parse_request(key, version, memoryview(b""), 0)
        with pytest.raises(ProtocolError):
            messages.parse_response(key, version, memoryview(bytes(5)))


def test_unknown_error_codes_and_tags_of_a_newer_peer() -> None:
    entity_type = messages.response_type(ApiKey.INIT_PRODUCER_ID, 4)
    module = messages.module_of(ApiKey.INIT_PRODUCER_ID, 4, "response")
    entity = entity_type(
        throttle_time=timedelta(0),
        error_code=module.ErrorCode.none,
        producer_id=5,
        producer_epoch=1,
    )
    raw = bytearray(messages.encode_response(entity, 1)[4:])
    raw[9:11] = b"\x7f\x7f"
    raw[-1:] = b"\x02\x05\x01x\x06\x00"
    found = messages.parse_response(ApiKey.INIT_PRODUCER_ID, 4, memoryview(raw))
    assert found.error_code == -1
    assert found.producer_id == 5


def test_none_where_the_schema_has_no_null_is_a_bug_of_ours() -> None:
    module = messages.module_of(ApiKey.METADATA, 0, "request")
    with pytest.raises(TypeError):
        messages.encode_request(module.MetadataRequest(topics=None), 1, None)
    topic = module.MetadataRequestTopic(name=None)
    with pytest.raises(TypeError):
        messages.encode_request(module.MetadataRequest(topics=(topic,)), 1, None)
