"""Rules that hold between configuration keys.

Pure. `dlogd.config.load` adds line numbers to what `violations` finds.
"""

import os.path
from collections.abc import Iterator
from dataclasses import dataclass

from dlogd.config.schema import KEYS, Address, Config

FRAME_OVERHEAD_BYTES = 64 << 10
"""Room that a frame needs beside one largest batch: headers, names, other fields."""

CONTROLLER_COUNTS = (1, 3, 5)
"""An even number of voters bears no more failures than one less."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: the keys that it is about, the one to blame first, and what is wrong."""

    names: tuple[str, ...]
    message: str


def violations(config: Config) -> list[Violation]:
    """Return every rule between keys that `config` breaks."""
    return [
        *_size_violations(config),
        *_address_violations(config),
        *_other_violations(config),
        *_cluster_violations(config),
    ]


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


def _bound(config: Config) -> Iterator[tuple[str, Address]]:
    """Yield the addresses that a node listens on, with the keys that say so."""
    yield "http.address", config.http.address
    for address in config.listeners:
        yield "listeners", address
    if config.controllers is None:
        return
    yield "internal.listener", config.internal.listener
    if config.metadata.listener is not None:
        yield "metadata.listener", config.metadata.listener
        return
    for each in config.controllers:
        if each.node_id == config.node.id:
            yield "controllers", each.address


def _is_taken(address: Address, by: Address) -> bool:
    """Whether one address cannot be listened on beside the other. Of names only equal ones."""
    if address.port != by.port or not address.port:
        return False
    if address.host == by.host:
        return True
    kinds = {_kind_of(address.host), _kind_of(by.host)}
    if address.is_any_ipv6 or by.is_any_ipv6:
        return kinds <= {"IPv4", "IPv6"}
    return len(kinds) == 1 and (address.is_wildcard or by.is_wildcard)


def _cure(address: Address, seen: list[tuple[str, Address]]) -> str:
    """Return why an address of IPv4 is taken by one of IPv6, and what to do; else nothing."""
    for _, other in seen:
        pair = {_kind_of(address.host), _kind_of(other.host)}
        if _is_taken(address, other) and pair == {"IPv4", "IPv6"}:
            ipv4 = address if _kind_of(address.host) == "IPv4" else other
            return f": [::] takes IPv4, too. Remove {ipv4}, or give it another port"
    return ""


def _kind_of(host: str) -> str:
    if ":" in host:
        return "IPv6"
    return "IPv4" if host.replace(".", "").isdecimal() else host


def _address_violations(config: Config) -> Iterator[Violation]:
    seen: list[tuple[str, Address]] = []
    for name, address in _bound(config):
        by = next((other for other, each in seen if _is_taken(address, each)), None)
        if by is not None:
            yield Violation((name, by), f"{address} is also used by {by}{_cure(address, seen)}")
        seen.append((name, address))
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


def _cluster_violations(config: Config) -> Iterator[Violation]:
    controllers = config.controllers
    if controllers is None:
        return
    ids = [each.node_id for each in controllers]
    if len(ids) not in CONTROLLER_COUNTS:
        yield Violation(("controllers",), f"{len(ids)} nodes are listed, wanted are 1, 3 or 5")
    addresses = [str(each.address) for each in controllers]
    for part, what in (([str(each) for each in ids], "node"), (addresses, "address")):
        seen = sorted({each for each in part if part.count(each) > 1})
        if seen:
            yield Violation(("controllers",), f"{what} {', '.join(seen)} is listed twice")
    if config.cluster.id is None:
        yield Violation(("cluster.id", "controllers"), "must be set: all nodes have to agree on it")
    if config.cluster.secret_file is None:
        yield Violation(
            ("cluster.secret.file", "controllers"), "must be set: nodes prove themselves by it"
        )
    if config.metadata.listener is None and config.node.id not in ids:
        yield Violation(
            ("metadata.listener", "controllers"),
            f"must be set: node {config.node.id} is none of the controllers",
        )
    if config.internal.listener.is_wildcard and config.advertised.address is None:
        yield Violation(
            ("internal.listener", "advertised.address"),
            f"{config.internal.listener} is no address that nodes can connect to: "
            "set advertised.address",
        )
