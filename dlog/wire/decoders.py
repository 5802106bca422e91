"""Bytes to the dataclasses that kio generated from Kafka's message schemas.

Takes the place of kio's own reader, which reserves memory for whatever an array's length claims:
ten bytes from anybody end the process ("memory allocation of 272747141112 bytes failed", an abort,
no exception). Here a count must fit into the bytes that follow it and into a budget of entries per
message (`Reader.entries`), and everything that is wrong with the bytes is a ProtocolError.

Values are kio's: durations are `timedelta`, error codes `ErrorCode` (an unknown one becomes
unknown_server_error), a zero uuid is None where the field is optional.
"""

import struct
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from dlog.errors import UNKNOWN_SERVER_ERROR, ProtocolError
from dlog.wire.primitives import iter_tags
from dlog.wire.reader import Reader
from dlog.wire.shapes import FIXED_CODES, Run, Shape, plan_of

Decode = Callable[[Reader], Any]
DecodePieces = Callable[[Reader], Generator[None, None, Any]]

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UUID = struct.Struct(">16s")
_ZERO_UUID = bytes(16)
_EPOCH = datetime.fromtimestamp(0, UTC)


@cache
def decoder(entity_type: Any) -> Decode:
    """Return the function that reads an entity of this class; it raises ProtocolError."""
    plan = plan_of(entity_type)
    steps: list[tuple[Any, struct.Struct | None, Decode | None]] = [
        (step.names, step.layout, None)
        if isinstance(step, Run)
        else (step.name, None, _decoder_of(step))
        for step in plan.steps
    ]
    tagged = {s.tag: (s.name, _decoder_of(s)) for s in plan.tagged}
    defaults = {s.name: s.default for s in plan.tagged}

    def decode_entity(reader: Reader) -> Any:
        values = defaults.copy()
        for names, layout, decode in steps:
            if layout is not None:
                values.update(zip(names, reader.numbers(layout), strict=True))
            elif decode is not None:
                values[names] = decode(reader)
        if tagged:
            _decode_tagged(reader, tagged, values)
        else:
            reader.tags()
        return entity_type(**values)

    return decode_entity


@cache
def piecewise_decoder(entity_type: Any) -> DecodePieces:
    """Return what does as `decoder`, as a generator that yields behind each item of its arrays.

    So that who reads a message of a hundred thousand entries can rest on the way.
    """
    plan = plan_of(entity_type)
    steps = [
        step if isinstance(step, Run) else (step.name, *_pieces_of(step)) for step in plan.steps
    ]
    tagged = {s.tag: (s.name, _decoder_of(s)) for s in plan.tagged}
    defaults = {s.name: s.default for s in plan.tagged}

    def decode_entity(reader: Reader) -> Generator[None, None, Any]:
        values = defaults.copy()
        for step in steps:
            if isinstance(step, Run):
                values.update(zip(step.names, reader.numbers(step.layout), strict=True))
                continue
            name, decode, decode_pieces = step
            values[name] = (
                decode(reader) if decode_pieces is None else (yield from decode_pieces(reader))
            )
        if tagged:
            _decode_tagged(reader, tagged, values)
        else:
            reader.tags()
        return entity_type(**values)

    return decode_entity


def _pieces_of(shape: Shape) -> tuple[Decode, DecodePieces | None]:
    """Return how a field is read, and how it is read in pieces where it has any."""
    if not shape.is_array or shape.kafka_type in FIXED_CODES:
        return _decoder_of(shape), None
    decode_item = None if shape.kafka_type is None else _primitive_decoder(shape, False)
    decode_pieces = piecewise_decoder(shape.item) if decode_item is None else None

    def decode_array(reader: Reader) -> Generator[None, None, tuple[Any, ...] | None]:
        count = _entries(reader, shape)
        if count < 0:
            return None
        items = []
        for _ in range(count):
            if decode_item is not None:
                items.append(decode_item(reader))
            elif decode_pieces is not None:
                items.append((yield from decode_pieces(reader)))
            yield
        return tuple(items)

    return _decoder_of(shape), decode_array


def _entries(reader: Reader, shape: Shape) -> int:
    """Read how many items an array has, -1 when it is null; raise when it must not be."""
    count = reader.entries()
    if count < 0 and not shape.is_nullable:
        raise ProtocolError(f"the array {shape.name} is null")
    return count


def _decode_tagged(
    reader: Reader, tagged: dict[int | None, tuple[str, Decode]], values: dict[str, Any]
) -> None:
    """Read the tagged fields that are known and skip the others."""
    end = reader.end
    for tag, start, after in iter_tags(reader.buffer, reader.position, end):
        if tag in tagged:
            name, decode = tagged[tag]
            reader.position, reader.end = start, after
            values[name] = decode(reader)
            reader.finish()
            reader.end = end
        reader.position = after


def _decoder_of(shape: Shape) -> Decode:
    # A tagged field says null by not being there, except for strings and bytes.
    nullable = shape.is_nullable
    if shape.is_array and shape.kafka_type in FIXED_CODES:
        return _numbers_decoder(shape, FIXED_CODES[shape.kafka_type])
    if shape.kafka_type is None:
        decode_item = decoder(shape.item)
        if nullable and not shape.is_array and shape.tag is None:
            decode_item = _nullable_entity_decoder(decode_item)
    else:
        decode_item = _primitive_decoder(shape, nullable and not shape.is_array)
    if not shape.is_array:
        return decode_item

    def decode_array(reader: Reader) -> tuple[Any, ...] | None:
        count = _entries(reader, shape)
        if count < 0:
            return None
        return tuple([decode_item(reader) for _ in range(count)])

    return decode_array


def _numbers_decoder(shape: Shape, code: str) -> Decode:
    def decode_numbers(reader: Reader) -> tuple[Any, ...] | None:
        count = _entries(reader, shape)
        if count < 0:
            return None
        return reader.numbers(struct.Struct(f">{count}{code}"))

    return decode_numbers


def _nullable_entity_decoder(decode: Decode) -> Decode:
    """Read an entity that may be null: a byte tells (KIP-893)."""

    def decode_nullable(reader: Reader) -> Any:
        (marker,) = reader.numbers(_INT8)
        return None if marker < 0 else decode(reader)

    return decode_nullable


def _primitive_decoder(shape: Shape, nullable: bool) -> Decode:
    kafka_type = shape.kafka_type or ""
    if kafka_type in FIXED_CODES:
        layout = struct.Struct(">" + FIXED_CODES[kafka_type])
        return lambda reader: reader.numbers(layout)[0]
    if kafka_type == "error_code":
        return _error_code_decoder(shape.item)
    decoders: dict[tuple[str, bool], Decode] = {
        ("string", False): Reader.string,
        ("string", True): Reader.nullable_string,
        ("bytes", False): Reader.whole_bytes,
        ("bytes", True): Reader.nullable_bytes,
        ("records", False): Reader.whole_bytes,
        ("records", True): Reader.nullable_bytes,
        ("uuid", False): _decode_uuid,
        ("uuid", True): _decode_uuid_or_none,
        ("timedelta_i32", False): _decode_timedelta_32,
        ("timedelta_i64", False): _decode_timedelta_64,
        ("datetime_i64", False): _decode_datetime,
        ("datetime_i64", True): _decode_datetime_or_none,
    }
    return decoders[kafka_type, nullable]


def _error_code_decoder(error_code: Any) -> Decode:
    known = {int(code): code for code in error_code}
    unknown = known[UNKNOWN_SERVER_ERROR]

    def decode_error_code(reader: Reader) -> Any:
        return known.get(reader.numbers(_INT16)[0], unknown)

    return decode_error_code


def _decode_uuid(reader: Reader) -> UUID:
    return UUID(bytes=reader.numbers(_UUID)[0])


def _decode_uuid_or_none(reader: Reader) -> UUID | None:
    (raw,) = reader.numbers(_UUID)
    return None if raw == _ZERO_UUID else UUID(bytes=raw)


def _decode_timedelta_32(reader: Reader) -> timedelta:
    return timedelta(milliseconds=reader.numbers(_INT32)[0])


def _decode_timedelta_64(reader: Reader) -> timedelta:
    (milliseconds,) = reader.numbers(_INT64)
    try:
        return timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise ProtocolError(f"a duration of {milliseconds} ms") from None


def _decode_datetime(reader: Reader) -> datetime:
    return _datetime_of(reader.numbers(_INT64)[0])


def _decode_datetime_or_none(reader: Reader) -> datetime | None:
    (milliseconds,) = reader.numbers(_INT64)
    return None if milliseconds == -1 else _datetime_of(milliseconds)


def _datetime_of(milliseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise ProtocolError(f"a time of {milliseconds} ms") from None
