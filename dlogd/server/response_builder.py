"""Builder of kio's response entities from plain fields, the same for all versions of an API.

A handler returns a mapping of field names to values, nested mappings and sequences of them; the
entity of the version asked for takes what it has and drops the rest. Error codes are plain
integers, durations are integer milliseconds, UUIDs and strings are themselves. Fields that are
left out get what the protocol calls their default: no error, zero, false, null or nothing.

Deliberately no I/O and no knowledge of any API. Called by `dlogd.server.dispatch`.
"""

import dataclasses
import datetime
import enum
import types
import typing
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from dlog.wire import messages
from dlog.wire.apis import ApiKey
from dlog.wire.encoders import encoder, piecewise_encoder
from dlog.wire.primitives import append_count

Fields = Mapping[str, Any]
"""What a handler answers: names of fields to values, for all versions at once."""

Entity = Any
"""One of kio's dataclasses; another class in each version of each API."""

Convert = Callable[[Any], Any]


class ResponseBuilder:
    """How one entity class is filled from `Fields`.

    Invariant: made once per class and kept, because it reads the class's type hints.
    """

    __slots__ = ("_arrays", "_defaults", "_takes", "entity_type", "nested")

    def __init__(self, entity_type: Any) -> None:
        hints = typing.get_type_hints(entity_type)
        self.entity_type: Any = entity_type
        self._takes: list[tuple[str, Convert | None]] = []
        self._defaults: dict[str, Any] = {}
        self.nested: dict[str, ResponseBuilder] = {}
        """Builders of the entities inside this one, by field name."""
        self._arrays: set[str] = set()
        for field in dataclasses.fields(entity_type):
            hint = hints[field.name]
            inner = _inner_entity(hint)
            if inner is not None:
                self.nested[field.name] = ResponseBuilder(inner)
                if typing.get_origin(_without_none(hint)[0]) is tuple:
                    self._arrays.add(field.name)
            convert = _converter(hint, self.nested.get(field.name))
            self._takes.append((field.name, convert))
            if field.default is dataclasses.MISSING:
                known, value = _implied_default(hint, convert)
                if known:
                    self._defaults[field.name] = value

    @property
    def names(self) -> frozenset[str]:
        """Names of the fields that this version has."""
        return frozenset(name for name, _ in self._takes)

    def build(self, fields: Fields) -> Entity:
        """Return the entity; raise TypeError when a field without any default is missing."""
        arguments = self._defaults.copy()
        for name, convert in self._takes:
            if name in fields:
                value = fields[name]
                arguments[name] = value if convert is None else convert(value)
        return self.entity_type(**arguments)

    def encode(self, fields: Fields) -> bytes:
        """Return the bytes of the entity, without anything around it."""
        entity = self.build(fields)
        encoded = bytearray()
        encoder(self.entity_type)(encoded, entity)
        return bytes(encoded)

    def build_lazily(self, fields: Fields) -> Entity:
        """Do as `build`, but make the entities of arrays only when they are taken, one by one."""
        if not self._arrays:
            return self.build(fields)
        arguments = self._defaults.copy()
        for name, convert in self._takes:
            if name in fields:
                value = fields[name]
                if name in self._arrays and value is not None:
                    arguments[name] = _Later(value, self.nested[name])
                else:
                    arguments[name] = value if convert is None else convert(value)
        return self.entity_type(**arguments)

    def encode_in_pieces(self, fields: Fields) -> Generator[None, None, bytearray]:
        """Do as `encode`, as a generator that yields behind each entity of its arrays."""
        encoded = bytearray()
        yield from piecewise_encoder(self.entity_type)(encoded, self.build_lazily(fields))
        return encoded


class _Later:
    """An array of entities, each of which is made when it is taken."""

    __slots__ = ("_builder", "_values")

    def __init__(self, values: Collection[Fields], builder: ResponseBuilder) -> None:
        self._values = values
        self._builder = builder

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Entity]:
        return map(self._builder.build_lazily, self._values)


@cache
def response_builder(api_key: ApiKey, version: int) -> ResponseBuilder:
    """Return the builder of the response of one version."""
    return ResponseBuilder(messages.response_type(api_key, version))


@cache
def request_builder(api_key: ApiKey, version: int) -> ResponseBuilder:
    """Return the builder of the request of one version."""
    return ResponseBuilder(messages.request_type(api_key, version))


def build_response(api_key: ApiKey, version: int, fields: Fields) -> Entity:
    """Build the response entity of one version out of fields for all versions."""
    return response_builder(api_key, version).build(fields)


def build_request(api_key: ApiKey, version: int, fields: Fields) -> Entity:
    """Build the request entity of one version out of fields for all versions."""
    return request_builder(api_key, version).build(fields)


def splice(encoded: bytes, tail_bytes: int, items: Sequence[bytes], *, flexible: bool) -> bytes:
    """Put encoded items into the empty array that ends `tail_bytes` before the end of an entity.

    So that entries which are asked for again and again need not be encoded each time.
    """
    array = bytearray()
    append_count(array, 0, flexible)
    start = len(encoded) - tail_bytes
    if encoded[start - len(array) : start] != array:
        raise ValueError("there is no empty array at this place")
    head = encoded[: start - len(array)]
    array.clear()
    append_count(array, len(items), flexible)
    return b"".join((head, array, *items, encoded[start:]))


def milliseconds(duration: datetime.timedelta) -> int:
    """Return a duration of the wire in whole milliseconds."""
    return duration // datetime.timedelta(milliseconds=1)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """Return the hint without `None`, and whether it had it."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    kept = [each for each in typing.get_args(hint) if each is not types.NoneType]
    return kept[0], len(kept) < len(typing.get_args(hint))


def _inner_entity(hint: Any) -> type[Entity] | None:
    """Return the entity class that a field holds, alone or in a tuple."""
    hint, _ = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        hint, _ = _without_none(typing.get_args(hint)[0])
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _converter(hint: Any, nested: ResponseBuilder | None) -> Convert | None:
    """Return what turns a plain value into what the field holds; None when it is the same."""
    hint, optional = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        convert: Convert | None = tuple if nested is None else _tuple_of(nested.build)
    elif nested is not None:
        convert = nested.build
    elif isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        convert = {int(member): member for member in hint}.__getitem__
    elif isinstance(hint, type) and issubclass(hint, datetime.timedelta):
        convert = _duration
    else:
        convert = None
    return _optional(convert) if optional and convert is not None else convert


def _implied_default(hint: Any, convert: Convert | None) -> tuple[bool, Any]:
    """Return whether a field may be left out although its class wants it, and what it is then."""
    hint, optional = _without_none(hint)
    if optional:
        return True, None
    if typing.get_origin(hint) is tuple:
        return True, ()
    if hint is bool:
        return True, False
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum | datetime.timedelta):
        return True, convert(0) if convert is not None else 0
    return False, None


def _duration(duration_ms: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=duration_ms)


def _tuple_of(build: Convert) -> Convert:
    def convert(values: Iterable[Any]) -> tuple[Any, ...]:
        return tuple([build(value) for value in values])

    return convert


def _optional(convert: Convert) -> Convert:
    def convert_unless_none(value: Any) -> Any:
        return None if value is None else convert(value)

    return convert_unless_none
