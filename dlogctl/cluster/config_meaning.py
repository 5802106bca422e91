"""Meaning of configs, and their values as people write them.

Pure, offline: reads the tables of this version (`dlogd.metadata.state.topic_configs` for what
topics and the cluster have, `dlogd.config.schema` for what stands in a node's file).
"""

import difflib
import re
from dataclasses import dataclass

from dlogd.config.kafka_names import KAFKA_NAMES
from dlogd.config.schema import KEYS
from dlogd.config.units import (
    format_bytes,
    format_duration_ms,
    parse_bytes,
    parse_duration_ms,
)
from dlogd.metadata.state.topic_configs import (
    CLUSTER_CONFIGS,
    NODE_CONFIGS,
    TOPIC_CONFIGS,
    TopicConfigKey,
)

_WITH_UNIT = re.compile(r"[0-9]+(\.[0-9]+)?\s*[A-Za-z]+")
_NUMBER = re.compile(r"[0-9]{1,19}")
INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One config explained. Its name may differ between a topic, the cluster and a node's file."""

    topic_name: str | None
    cluster_name: str | None
    file_name: str | None
    meaning: str
    type: str
    default: str
    bounds: str
    choices: tuple[str, ...] = ()
    applies: str

    @property
    def name(self) -> str:
        """The name nearest to the data: of a topic, else of the cluster, else in a file."""
        return self.topic_name or self.cluster_name or self.file_name or ""


def _of_topics(key: TopicConfigKey) -> Meaning:
    return Meaning(
        topic_name=None if key.name in NODE_CONFIGS else key.name,
        cluster_name=key.cluster_name,
        file_name=key.node_key,
        meaning=key.doc,
        type=key.type.name.lower(),
        default=key.default,
        bounds=key.kind.bounds,
        choices=key.kind.choices,
        applies="at once",
    )


def _of_files(name: str) -> Meaning:
    key = KEYS[name].key
    low, high = (None if each is None else key.kind.format(each) for each in (key.low, key.high))
    bounds = [f"at least {low}" if low is not None else "", f"at most {high}" if high else ""]
    default = key.default
    if default is None:
        shown = "not set"
    elif key.kind.is_list:
        shown = ", ".join(map(key.kind.format, default))
    else:
        shown = key.kind.format(default)
    return Meaning(
        topic_name=None,
        cluster_name=None,
        file_name=name,
        meaning=key.doc,
        type=key.kind.unit,
        default=shown,
        bounds=", ".join(filter(None, bounds)),
        applies="when the node reloads its file" if key.reloadable else "when the node restarts",
    )


FACTOR = Meaning(
    topic_name="replication.factor",
    cluster_name=None,
    file_name="topic.replication.default",
    meaning="How many replicas each partition has. Setting it for a topic moves replicas to nodes"
    " that the cluster chooses, or gives some up; it says what is so, and is not stored."
    " In a node's file: what new topics get.",
    type="int",
    default="as the topic was made",
    bounds="from 1 to 32",
    applies="when the new replicas are in sync: dlogctl partition reassignments",
)


def meaning_of(name: str) -> Meaning | None:
    """Return what a config means, by any of its names; None when this version has none such."""
    if name == FACTOR.topic_name:
        return FACTOR
    if name in TOPIC_CONFIGS:
        return _of_topics(TOPIC_CONFIGS[name])
    if name in CLUSTER_CONFIGS:
        return _of_topics(CLUSTER_CONFIGS[name])
    file_key = KAFKA_NAMES.get(name, name)
    return _of_files(file_key) if file_key in KEYS else None


def names(*, of_topics: bool) -> list[str]:
    """Return the configs that a topic, or else the cluster, can have."""
    return sorted(TOPIC_CONFIGS if of_topics else CLUSTER_CONFIGS)


def every_meaning() -> list[Meaning]:
    """Return all configs: those of topics and the cluster, then those only of files."""
    shown = [_of_topics(TOPIC_CONFIGS[name]) for name in sorted(TOPIC_CONFIGS)]
    shown += [_of_topics(key) for key in NODE_CONFIGS.values()]
    taken = {each.file_name for each in shown}
    return shown + [_of_files(name) for name in KEYS if name not in taken]


def nearest(name: str) -> str | None:
    """Return the known name that looks most like `name`."""
    known = [*TOPIC_CONFIGS, *CLUSTER_CONFIGS, *KEYS, *KAFKA_NAMES]
    return next(iter(difflib.get_close_matches(name[:100], known, n=1, cutoff=0.6)), None)


def is_of_nodes(name: str) -> bool:
    """Return whether single nodes can have the config at run time; no topic has it then."""
    return name in NODE_CONFIGS


def is_duration(name: str) -> bool:
    """Return whether the config counts milliseconds."""
    return name.endswith(".ms")


def is_size(name: str) -> bool:
    """Return whether the config counts bytes."""
    return name.endswith((".bytes", ".bytes.max", ".throttled.rate"))


def plain_value(name: str, text: str) -> str:
    """Return the number that `7d` or `1GiB` means for a config that counts ms or bytes.

    Anything else stays as it is: the cluster checks it. Raises ValueError for a unit that is none.
    """
    stripped = text.strip()
    if not _WITH_UNIT.fullmatch(stripped):
        return text
    if is_duration(name):
        return str(parse_duration_ms(stripped))
    if is_size(name):
        return str(parse_bytes(stripped))
    return text


def readable(name: str, value: str | None) -> str | None:
    """Return a value with its unit where that reads better, such as `604800000 (7d)`."""
    if value is None or not _NUMBER.fullmatch(value):
        return value
    if int(value) == INT64_MAX and (is_duration(name) or is_size(name)):
        return f"{value} (no limit)"
    if is_duration(name):
        shown = format_duration_ms(int(value))
    elif is_size(name):
        shown = format_bytes(int(value))
    else:
        return value
    return value if shown in (value, f"{value}ms") else f"{value} ({shown})"
