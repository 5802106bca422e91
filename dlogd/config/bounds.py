"""Rules that hold between configuration keys.

Pure. `dlogd.config.load` adds line numbers to what `violations` finds.
"""

import os.path
from collections.abc import Iterator
from dataclasses import dataclass

from dlogd.config.schema import KEYS, Config

FRAME_OVERHEAD_BYTES = 64 << 10
"""Room that a frame needs beside one largest batch: headers, names, other fields."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the keys that it is about, the one to blame first, and what is wrong."""

    names: tuple[str, ...]
    message: str


def violations(config: Config) -> list[Violation]:
    """Return every rule between keys that `config` breaks."""
    return [*_size_violations(config), *_address_violations(config), *_other_violations(config)]


def _at_most(config: Config, smaller: str, larger: str, factor: int, extra: int) -> list[Violation]:
    """Check `factor * smaller + extra <= larger`."""
    small, large = KEYS[smaller], KEYS[larger]
    value, limit = small.value_in(config), large.value_in(config)
    if factor * value + extra <= limit:
        return []
    wanted = large.key.format(factor * value + extra)
    return [
        Violation(
            (smaller, larger),
            f"{small.key.format(value)} needs {larger} to be at least {wanted}, "
            f"it is {large.key.format(limit)}",
        )
    ]


def _size_violations(config: Config) -> Iterator[Violation]:
    yield from _at_most(
        config, "message.bytes.max", "frame.bytes.max", factor=1, extra=FRAME_OVERHEAD_BYTES
    )
    # A batch lies in append memory whole, beside the one that is being flushed.
    yield from _at_most(config, "message.bytes.max", "append.memory.bytes", factor=2, extra=0)
    yield from _at_most(config, "frame.bytes.max", "inflight.bytes.max", factor=1, extra=0)
    yield from _at_most(config, "index.interval.bytes", "segment.bytes", factor=1, extra=0)


def _address_violations(config: Config) -> Iterator[Violation]:
    seen = {}
    if config.http.address.port:
        seen[config.http.address] = "http.address"
    for address in config.listeners:
        if address.port and address in seen:
            yield Violation(
                ("listeners", seen[address]), f"{address} is also used by {seen[address]}"
            )
        seen[address] = "listeners"
    if config.advertised.address is None and config.listeners[0].is_wildcard:
        yield Violation(
            ("listeners", "advertised.address"),
            f"{config.listeners[0]} is no address that clients can connect to: "
            "set advertised.address",
        )


def _other_violations(config: Config) -> Iterator[Violation]:
    if config.ack.default.strength < config.ack.floor.strength:
        yield Violation(
            ("ack.default", "ack.floor"),
            f"{config.ack.default.value} is weaker than ack.floor, {config.ack.floor.value}",
        )
    paths = [os.path.normpath(path) for path in config.data.directories]
    for number, path in enumerate(paths):
        for other in paths[:number]:
            if path == other:
                yield Violation(("data.directories",), f"{path!r} is listed twice")
            elif f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
                yield Violation(("data.directories",), f"{path!r} and {other!r} lie in one another")
