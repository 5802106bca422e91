"""Shapes of messages: field layouts of kio's dataclasses, computed once per class.

kio describes each version of each message of Kafka's as a frozen dataclass: the order of its fields
is the order on the wire, annotations tell arrays, nullability and nested entities, metadata the
primitive type and the tag. `dlog.wire.decoders` and `dlog.wire.encoders` compile these shapes.
Nothing here imports kio; classes come from the caller.
"""

import struct
import types
import typing
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

FIXED_CODES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "bool": "?",
    "float64": "d",
}
"""Types that one struct code reads and writes as they are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one field says; `item` is the class of the entity, of the value, or of array items."""

    name: str
    kafka_type: str | None  # None: an entity
    item: Any
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any  # of tagged fields that are not there


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring fields of fixed size, which one struct reads and writes."""

    names: tuple[str, ...]
    layout: struct.Struct


@dataclass(frozen=True, slots=True)
class Plan:
    """An entity in the order of the wire, and its tagged fields in the order of their tags."""

    flexible: bool
    steps: tuple[Run | Shape, ...]
    tagged: tuple[Shape, ...]


def plan_of(entity_type: type[Any]) -> Plan:
    """Take an entity class apart."""
    steps: list[Run | Shape] = []
    tagged: list[Shape] = []
    names: list[str] = []
    codes = ""
    for shape in map(_shape_of, fields(entity_type)):
        if shape.tag is not None:
            tagged.append(shape)
            continue
        if shape.kafka_type in FIXED_CODES and not shape.is_array:
            names.append(shape.name)
            codes += FIXED_CODES[shape.kafka_type]
            continue
        if names:
            steps.append(Run(tuple(names), struct.Struct(">" + codes)))
            names, codes = [], ""
        steps.append(shape)
    if names:
        steps.append(Run(tuple(names), struct.Struct(">" + codes)))
    tagged.sort(key=lambda shape: shape.tag or 0)
    return Plan(bool(entity_type.__flexible__), tuple(steps), tuple(tagged))


def _shape_of(field: "Field[Any]") -> Shape:
    annotation, is_nullable = _without_none(field.type)
    is_array = typing.get_origin(annotation) is tuple
    item = typing.get_args(annotation)[0] if is_array else annotation
    if is_array:
        item, _ = _without_none(item)  # only uuids, of which the zero one is kio's None
    kafka_type = field.metadata.get("kafka_type")
    tag = field.metadata.get("tag")
    default = None
    if tag is not None:
        default = field.default
        if default is MISSING:
            default = _implicit_default(kafka_type, item, is_array)
    return Shape(field.name, kafka_type, item, is_array, is_nullable, tag, default)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return (T, True) for `T | None`, else (T, False)."""
    if not isinstance(annotation, types.UnionType):
        return annotation, False
    (inner,) = (a for a in typing.get_args(annotation) if a is not types.NoneType)
    return inner, True


def _implicit_default(kafka_type: str | None, item: Any, is_array: bool) -> Any:
    """Return Kafka's default of a field whose schema names none: zero, empty, all such fields."""
    if is_array:
        return ()
    if kafka_type is None:
        return item(**{f.name: _shape_default(f) for f in fields(item)})
    return {"string": "", "bytes": b"", "bool": False, "float64": 0.0}.get(kafka_type, 0)


def _shape_default(field: "Field[Any]") -> Any:
    if field.default is not MISSING:
        return field.default
    annotation, _ = _without_none(field.type)
    is_array = typing.get_origin(annotation) is tuple
    return _implicit_default(field.metadata.get("kafka_type"), annotation, is_array)
