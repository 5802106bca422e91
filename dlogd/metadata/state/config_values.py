"""Kinds of config values: reading, checking, writing.

Pure. Numbers of types and sources are those of the DescribeConfigs response.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,19}(\.[0-9]{0,19})?|\.[0-9]{1,19})([eE][+-]?[0-9]{1,3})?\Z")


class ConfigType(IntEnum):
    """Type of a config, as DescribeConfigs reports it since version 3."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs reports it; the smaller wins."""

    TOPIC = 1
    NODE = 2
    CLUSTER = 3
    NODE_FILE = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A type with its bounds: `parse` raises ValueError with the reason."""

    type: ConfigType
    parse: Callable[[str], Any]
    format: Callable[[Any], str] = str
    bounds: str = ""
    """What is accepted, for people."""
    choices: tuple[str, ...] = ()
    """All values, where there are only some."""

    def canonical(self, text: str) -> str:
        """Return the one text of the value that `text` means."""
        return self.format(self.parse(text))


def _number(text: str, low: int, high: int) -> int:
    stripped = text.strip()
    if not _NUMBER.match(stripped):
        raise ValueError("Not a number")
    value = int(stripped)
    if value < low:
        raise ValueError(f"Value must be at least {low}")
    if value > high:
        raise ValueError(f"Value must be no more than {high}")
    return value


def _bounds(low: int, high: int, type_max: int) -> str:
    least = "" if low < -type_max else f"at least {low}"
    most = "" if high >= type_max else f"at most {high}"
    return ", ".join(filter(None, (least, most)))


def integer(low: int = -INT32_MAX - 1, high: int = INT32_MAX) -> ValueKind:
    """Return the kind of 32-bit numbers within bounds."""
    return ValueKind(
        ConfigType.INT,
        lambda text: _number(text, low, high),
        bounds=_bounds(low, high, INT32_MAX),
    )


def long(low: int = -INT64_MAX - 1, high: int = INT64_MAX) -> ValueKind:
    """Return the kind of 64-bit numbers within bounds."""
    return ValueKind(
        ConfigType.LONG,
        lambda text: _number(text, low, high),
        bounds=_bounds(low, high, INT64_MAX),
    )


def double(low: float, high: float) -> ValueKind:
    """Return the kind of decimal fractions within bounds."""

    def parse(text: str) -> float:
        if not _DECIMAL.match(text.strip()):
            raise ValueError("Not a number")
        value = float(text)
        if not (math.isfinite(value) and low <= value <= high):
            raise ValueError(f"Value must be from {low} to {high}")
        return value

    return ValueKind(ConfigType.DOUBLE, parse, repr, bounds=f"from {low} to {high}")


def _parse_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("Expected value to be either true or false")
    return word == "true"


BOOLEAN = ValueKind(
    ConfigType.BOOLEAN,
    _parse_boolean,
    lambda value: "true" if value else "false",
    bounds="true, false",
    choices=("true", "false"),
)


def choice(*words: str) -> ValueKind:
    """Return the kind of texts that are one of some words."""

    def parse(text: str) -> str:
        stripped = text.strip()
        if stripped not in words:
            raise ValueError(f"String must be one of: {', '.join(words)}")
        return stripped

    return ValueKind(ConfigType.STRING, parse, bounds=", ".join(words), choices=words)


def split_list(text: str) -> tuple[str, ...]:
    """Split a LIST at its commas."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def word_list(accept: Callable[[tuple[str, ...]], None]) -> ValueKind:
    """Return the kind of comma-separated words that `accept` does not raise ValueError for."""

    def parse(text: str) -> tuple[str, ...]:
        words = split_list(text)
        accept(words)
        return words

    return ValueKind(ConfigType.LIST, parse, ",".join)


def only(kind: ValueKind, text: str, reason: str) -> ValueKind:
    """Return a kind with a single value: what this software does in any case."""
    wanted = kind.parse(text)

    def parse(given: str) -> Any:
        value = kind.parse(given)
        if value != wanted:
            raise ValueError(f"Only {kind.format(wanted) or 'an empty list'} is possible: {reason}")
        return value

    return ValueKind(
        kind.type, parse, kind.format, bounds=f"only {text or 'empty'}", choices=(text,)
    )
