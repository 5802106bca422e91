"""Names of partitions on a command line: `events-0`, or `events` for all of a topic.

Topics may have dashes and numbers in their names, so what is meant is looked up in the cluster.
"""

import re
from collections.abc import Iterable, Sequence

import click

from dlog.client.views import ClusterView
from dlog.errors import NONE
from dlog.types import INT32_MAX
from dlogctl.session import no_topic

Partition = tuple[str, int]
_DIGITS_MAX = 20
_NODE_ID = re.compile(r"[0-9]{1,20}")


def name_of(partition: Partition) -> str:
    """Return a partition as people write it."""
    return f"{partition[0]}-{partition[1]}"


def named(view: ClusterView, names: Iterable[str]) -> list[Partition]:
    """Return the partitions that are meant; raise for what is not there."""
    found: dict[Partition, None] = {}
    for name in names:
        topic = view.topics.get(name)
        if topic is not None and topic.error_code == NONE:
            found.update(((name, each.partition), None) for each in topic.partitions)
        else:
            found[one(view, name)] = None
    return list(found)


def one(view: ClusterView, name: str) -> Partition:
    """Return the one partition that is meant; raise for what is not there."""
    stem, dash, number = name.rpartition("-")
    topic = view.topics.get(stem)
    if topic is None and name in view.topics:
        last = len(view.topics[name].partitions) - 1
        raise click.ClickException(
            f"{name} is a topic: name one of its partitions, {name}-0"
            + (f" to {name}-{last}" if last > 0 else "")
        )
    if not dash or not number.isdecimal() or topic is None:
        raise no_topic(name if not number.isdecimal() or not dash else stem)
    # Compared as text first: Python refuses to read numbers of thousands of digits.
    digits = number.lstrip("0") or "0"
    if len(digits) > _DIGITS_MAX or int(digits) >= len(topic.partitions):
        shown = number if len(number) <= _DIGITS_MAX else f"{number[:_DIGITS_MAX]}..."
        raise click.ClickException(
            f"topic {stem} has no partition {shown}; see: dlogctl topic describe {stem}"
        )
    return stem, int(digits)


def parse_nodes(text: str) -> Sequence[int]:
    """Parse `1,2,3`; raise ValueError with a message for people."""
    words = [word.strip() for word in text.split(",")]
    if not all(_NODE_ID.fullmatch(word) for word in words):
        raise ValueError(f"{text!r} is not a list of node ids, such as 1,2,3")
    nodes = [int(word) for word in words]
    if max(nodes) > INT32_MAX:
        raise ValueError(f"{max(nodes)} is not a node id; the largest is {INT32_MAX}")
    return nodes


def some(names: Sequence[str], shown: int = 5) -> str:
    """Return the first of many names, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
