"""Configuration key: name, kind of value, default, bounds, whether reloadable, reason.

Pure. `dlogd.config.schema` declares its fields with `key(...)`; `load` and `sample` read them back
through `keys_of`.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from typing import Any

from dlogd.config import units


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How values of one sort are read and written."""

    unit: str  # what the sample file says in brackets
    parse: Callable[[str], Any]  # raises ValueError with a message for people
    format: Callable[[Any], str] = str
    is_list: bool = False  # a YAML sequence; in the environment separated by commas


BYTES = Kind(unit="bytes", parse=units.parse_bytes, format=units.format_bytes)
BYTES_OR_UNLIMITED = Kind(
    unit="bytes, or -1 for no limit",
    parse=units.parse_bytes_or_unlimited,
    format=units.format_bytes,
)
DURATION = Kind(unit="duration", parse=units.parse_duration_ms, format=units.format_duration_ms)
DURATION_OR_UNLIMITED = Kind(
    unit="duration, or -1 for no limit",
    parse=units.parse_duration_ms_or_unlimited,
    format=units.format_duration_ms,
)
MILLISECONDS = Kind(
    unit="duration; a bare number is ms",
    parse=units.parse_milliseconds,
    format=units.format_duration_ms,
)
INTEGER = Kind(unit="number", parse=units.parse_integer)
BOOLEAN = Kind(unit="true or false", parse=units.parse_boolean, format=units.format_boolean)
TEXT = Kind(unit="text", parse=units.parse_text)
PATH = Kind(unit="path", parse=units.parse_text)
PATHS = Kind(unit="list of paths", parse=units.parse_text, is_list=True)
ADDRESS = Kind(unit="host:port", parse=units.parse_address)
ADDRESSES = Kind(unit="list of host:port", parse=units.parse_address, is_list=True)
HOSTS = Kind(unit="list of host names", parse=units.parse_host, is_list=True)
NODES_AT = Kind(unit="list of id@host:port", parse=units.parse_node_at, is_list=True)
ADVERTISED_ADDRESS = Kind(
    unit="host or host:port",
    parse=units.parse_advertised_address,
    format=units.format_advertised_address,
)
DISK_RESERVE = Kind(
    unit="auto, bytes, or a share such as 5%",
    parse=units.parse_disk_reserve,
    format=units.format_disk_reserve,
)


def choice(choices: type[StrEnum]) -> Kind:
    """Return the kind of a value that is one of an enum's."""
    names = " | ".join(member.value for member in choices)

    def parse(text: str) -> StrEnum:
        try:
            return choices(text.strip())
        except ValueError:
            raise ValueError(f"{text!r} is not one of {names}") from None

    return Kind(unit=names, parse=parse, format=lambda value: str(value.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One configuration key as the schema declares it."""

    name: str  # dotted, as in the file
    kind: Kind
    default: Any  # None: not set
    low: int | None  # inclusive
    high: int | None  # inclusive
    reloadable: bool  # taken over on SIGHUP; all others need a restart
    doc: str

    @property
    def environment_name(self) -> str:
        """Name of the environment variable that overrides the file."""
        return environment_name(self.name)

    def parse(self, texts: list[str]) -> Any:
        """Parse one text (or several, for a list) within the bounds; raise ValueError."""
        if self.kind.is_list:
            if not texts:
                raise ValueError("must not be empty")
            return tuple(self._parse_one(text) for text in texts)
        if len(texts) != 1:
            raise ValueError(f"wants one value ({self.kind.unit}), not a list")
        return self._parse_one(texts[0])

    def _parse_one(self, text: str) -> Any:
        value = self.kind.parse(text)
        # "No limit" is -1 and stands outside the bounds.
        if not isinstance(value, int) or (value == units.UNLIMITED and self._may_be_unlimited):
            return value
        if self.low is not None and value < self.low:
            raise ValueError(f"{text!r} is below the least value {self.kind.format(self.low)}")
        if self.high is not None and value > self.high:
            raise ValueError(f"{text!r} is above the largest value {self.kind.format(self.high)}")
        return value

    @property
    def _may_be_unlimited(self) -> bool:
        return self.kind in (BYTES_OR_UNLIMITED, DURATION_OR_UNLIMITED)

    def format(self, value: Any) -> str:
        """Format a value as the file writes it."""
        if value is None:
            return "null"
        if self.kind.is_list:
            return "[" + ", ".join(f'"{self.kind.format(each)}"' for each in value) + "]"
        return self.kind.format(value)


def environment_name(name: str) -> str:
    """Return `DLOG_` and the key in capitals, all else than letters and digits as `_`."""
    return "DLOG_" + "".join(char.upper() if char.isalnum() else "_" for char in name)


def key(
    name: str,
    kind: Kind,
    default: str | None,
    doc: str,
    *,
    low: int | None = None,
    high: int | None = None,
    reloadable: bool = False,
) -> Any:
    """Declare a dataclass field that is the key `name`; `default` is text, lists by commas."""
    bare = Key(
        name=name, kind=kind, default=None, low=low, high=high, reloadable=reloadable, doc=doc
    )
    value = (
        None if default is None else bare.parse(default.split(",") if kind.is_list else [default])
    )
    declared = Key(
        name=name, kind=kind, default=value, low=low, high=high, reloadable=reloadable, doc=doc
    )
    return field(default=value, metadata={"key": declared})


def section(section_type: type[Any]) -> Any:
    """Declare a field that holds a section, at its defaults unless given."""
    return field(default_factory=section_type, metadata={"section": section_type})


def section_of(declared: Field[Any]) -> type[Any] | None:
    """Return the section type of a field, None when it is a key itself."""
    found: type[Any] | None = declared.metadata.get("section")
    return found


@dataclass(frozen=True, slots=True)
class BoundKey:
    """A key and where the configuration object keeps its value."""

    key: Key
    section: str | None  # attribute of the configuration; None for keys at its top
    attribute: str

    def value_in(self, config: Any) -> Any:
        """Return this key's value in a configuration."""
        holder = config if self.section is None else getattr(config, self.section)
        return getattr(holder, self.attribute)


def keys_of(config_type: type[Any]) -> dict[str, BoundKey]:
    """Return all keys of a configuration type by name, in the order of the schema."""
    found: dict[str, BoundKey] = {}
    for outer in fields(config_type):
        section_type = section_of(outer)
        if section_type is None:
            bound = BoundKey(outer.metadata["key"], None, outer.name)
            found[bound.key.name] = bound
            continue
        for inner in fields(section_type):
            bound = BoundKey(inner.metadata["key"], outer.name, inner.name)
            found[bound.key.name] = bound
    return found
