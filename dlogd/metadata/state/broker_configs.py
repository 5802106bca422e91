"""Configs of a node under Kafka's names, read only: what tools ask a broker for.

Pure. The values are those of the node's file and of the address that clients are told. Defaults of
topics, which the cluster can change, are in `dlogd.metadata.state.effective_configs`.
"""

from collections.abc import Mapping
from typing import Any

from dlogd.config.kafka_names import KAFKA_NAMES
from dlogd.config.schema import KEYS, Config
from dlogd.metadata.state import effective_configs
from dlogd.metadata.state.config_values import ConfigSource, ConfigType
from dlogd.metadata.state.effective_configs import ConfigEntry, ConfigSynonym

PROTOCOL = "PLAINTEXT"
_HOUR_MS = 3_600_000
_HOURS = {"log.retention.hours": "log.retention.ms", "log.roll.hours": "log.roll.ms"}
_TYPES = {
    "auto.create.topics.enable": ConfigType.BOOLEAN,
    "advertised.listeners": ConfigType.LIST,
    "listeners": ConfigType.LIST,
    "log.dirs": ConfigType.LIST,
    "log.dir": ConfigType.LIST,
    "broker.rack": ConfigType.STRING,
    "metadata.log.dir": ConfigType.STRING,
    "queued.max.request.bytes": ConfigType.LONG,
    "connections.max.idle.ms": ConfigType.LONG,
}
"""Types that are not INT."""
_FIXED = {
    "delete.topic.enable": (
        ConfigType.BOOLEAN,
        "true",
        "Topics can be deleted.",
    ),
    "auto.leader.rebalance.enable": (
        ConfigType.BOOLEAN,
        "true",
        "The first replica of a partition leads again after its node was away:"
        " `election.preferred.after`.",
    ),
    "controlled.shutdown.enable": (
        ConfigType.BOOLEAN,
        "true",
        "A node hands over its leaders before it stops.",
    ),
    "security.inter.broker.protocol": (
        ConfigType.STRING,
        PROTOCOL,
        "Nodes talk to each other without encryption.",
    ),
    "listener.security.protocol.map": (
        ConfigType.STRING,
        f"{PROTOCOL}:{PROTOCOL}",
        "Listeners are not encrypted.",
    ),
    "authorizer.class.name": (
        ConfigType.STRING,
        "",
        "No authorizer restricts access.",
    ),
}
"""What is so on every node: type, value, documentation."""


def describe_node(
    cluster: Mapping[str, str], node: Config, advertised: tuple[str, int] | None
) -> list[ConfigEntry]:
    """Return a node's configs, ordered by name: what `effective` has, and Kafka's names.

    `advertised` is the host and port that clients are told, None before they are known.
    """
    entries = {entry.name: entry for entry in effective_configs.describe_node(cluster, node)}
    for name, of in _HOURS.items():
        if (hours := _in_hours(name, entries[of])) is not None:
            entries[name] = hours
    for name in KAFKA_NAMES:
        entries[name] = _from_file(name, node)
    if advertised is not None:
        entries["advertised.listeners"] = _advertised(node, advertised)
    for name, (type_, value, doc) in _FIXED.items():
        synonyms = (ConfigSynonym(name=name, value=value, source=ConfigSource.DEFAULT),)
        entries[name] = _entry(name, type_, value, ConfigSource.DEFAULT, doc, synonyms)
    return [entries[name] for name in sorted(entries)]


def _entry(
    name: str,
    type_: ConfigType,
    value: str | None,
    source: ConfigSource,
    doc: str,
    synonyms: tuple[ConfigSynonym, ...],
) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=value,
        source=source,
        type=type_,
        read_only=True,
        doc=doc,
        synonyms=synonyms,
    )


def _from_file(name: str, node: Config) -> ConfigEntry:
    key = KEYS[KAFKA_NAMES[name]].key
    value = _text(name, KEYS[key.name].value_in(node))
    default = _text(name, key.default)
    synonyms = []
    source = ConfigSource.DEFAULT
    if value != default:
        source = ConfigSource.NODE_FILE
        if value is not None:
            synonyms.append(ConfigSynonym(name=key.name, value=value, source=source))
    if default is not None:
        synonyms.append(ConfigSynonym(name=name, value=default, source=ConfigSource.DEFAULT))
    return _entry(name, _TYPES.get(name, ConfigType.INT), value, source, key.doc, tuple(synonyms))


def _text(name: str, value: Any) -> str | None:
    """Return a value of the file as Kafka writes it: plain numbers, listeners with a scheme."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(_text(name, each)) for each in value)
    return f"{PROTOCOL}://{value}" if name.endswith("listeners") else str(value)


def _advertised(node: Config, address: tuple[str, int]) -> ConfigEntry:
    """Return what clients are told. Without `advertised.address` it follows from `listeners`."""
    host, port = address
    host = f"[{host}]" if ":" in host else host
    value = f"{PROTOCOL}://{host}:{port}"
    name = "advertised.listeners"
    key_name = KAFKA_NAMES["listeners" if node.advertised.address is None else name]
    bound = KEYS[key_name]
    is_default = bound.value_in(node) == bound.key.default
    source = ConfigSource.DEFAULT if is_default else ConfigSource.NODE_FILE
    synonyms = (ConfigSynonym(name=key_name, value=value, source=source),)
    doc = KEYS[KAFKA_NAMES[name]].key.doc
    return _entry(name, ConfigType.LIST, value, source, doc, synonyms)


def _in_hours(name: str, of: ConfigEntry) -> ConfigEntry | None:
    """Return a time in hours; None when the hours are not whole, so no true value exists."""
    value_ms = int(of.value or 0)
    if value_ms != -1 and value_ms % _HOUR_MS:
        return None
    hours = -1 if value_ms == -1 else value_ms // _HOUR_MS
    return _entry(name, ConfigType.INT, str(hours), of.source, of.doc, of.synonyms)
