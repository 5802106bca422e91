"""Well-formed requests that make no sense, for every API and version."""

import dataclasses
import datetime
import random
import types
import typing
from collections.abc import Iterable
from typing import Any
from uuid import UUID

TEXTS = (
    *("t", "u", "a.b", "a_b", "new", "", " ", ".", "größe", "x" * 300, "1", "2", "-1", "\x00"),
    *("retention.ms", "cleanup.policy", "log.retention.ms", "node.id", "min.insync.replicas"),
    *("delete", "compact", "delete,delete", "60000", "soon", "true"),
)
NUMBERS = {
    "int8": (0, 1, 2, 3, 4, 8, -1, 127, -128),
    "int16": (0, 1, 2, -1, 32767, -32768),
    "uint16": (0, 1, 9093, 65535),
    "int32": (0, 1, 2, 3, -1, -2, 2**31 - 1, -(2**31)),
    "int64": (0, 1, 5, -1, -2, -3, -4, -5, -6, -7, 2**63 - 1, -(2**63)),
}
IDS = (UUID(int=0), UUID(int=1), UUID(int=99))


class Requests:
    """Random requests that ask for what there is more often than chance would."""

    def __init__(self, rng: random.Random, topic_ids: Iterable[UUID] = ()) -> None:
        self._rng = rng
        self._ids = (*IDS, *topic_ids)

    def entity(self, entity_type: Any) -> Any:
        """Return an entity with random fields."""
        hints = typing.get_type_hints(entity_type)
        return entity_type(
            **{
                field.name: self._value(hints[field.name], field.metadata.get("kafka_type"))
                for field in dataclasses.fields(entity_type)
            }
        )

    def _value(self, hint: Any, kafka_type: str | None) -> Any:
        rng = self._rng
        if isinstance(hint, types.UnionType):
            if rng.random() < 0.3:
                return None
            hint = next(h for h in typing.get_args(hint) if h is not types.NoneType)
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            return tuple(self._value(item, kafka_type) for _ in range(rng.choice((0, 1, 1, 2, 4))))
        if kafka_type is None:
            return self.entity(hint)
        if kafka_type == "string":
            return rng.choice(TEXTS)
        if kafka_type == "bool":
            return rng.random() < 0.5
        if kafka_type == "uuid":
            return rng.choice(self._ids)
        if kafka_type == "timedelta_i32":
            return datetime.timedelta(milliseconds=rng.choice((0, -1, 1000, 2**31 - 1, -(2**31))))
        return rng.choice(NUMBERS[kafka_type])
