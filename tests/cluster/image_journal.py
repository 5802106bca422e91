"""What each node's image said of every partition, change by change, as the nodes wrote it down.

Written by the processes themselves (`tests.cluster.odd_dlogd`): the metadata's own log is soon
replaced by a snapshot, and what clients are told is a sample. One JSON array in a line, in the
order of `PartitionSeen`; the time is that of the monotonic clock, which all processes of a host
share. A life of a node begins with all that its image holds.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from dlogd.metadata.machine import apply
from dlogd.metadata.machine.election import rules_of
from dlogd.metadata.raft import machine_state
from dlogd.metadata.state import delta
from dlogd.metadata.state.image import EMPTY_IMAGE, ClusterImage, TopicImage


class PartitionSeen(NamedTuple):
    """One partition as one node's image had it from this version on."""

    at_ns: int
    node_id: int
    version: int
    topic: str
    topic_id: str
    partition: int
    leader: int  # -1: none
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    adding: tuple[int, ...]
    min_isr: int
    """`min.insync.replicas`, as configured."""


class ImageJournal:
    """Writes what is new in one image after the other. Owner: the thread of the Raft loop."""

    def __init__(self, path: Path) -> None:
        # Unbuffered: what a node has seen is there when it is killed the moment after.
        self._file = path.open("ab", buffering=0)
        self._file.write(b"\n")  # the life before may have ended within a line

    def note(self, node_id: int, old: ClusterImage, new: ClusterImage) -> None:
        """Write down the partitions that are new or other than before."""
        found = delta.between(old, new)
        lines = []
        for topic in found.topics_created:
            lines += [_line(node_id, new, topic, n) for n in range(len(topic.partitions))]
        for each in found.topics_changed:
            numbers: set[int] = {*each.partitions_created, *each.partitions_changed}
            if each.configs_changed:
                numbers = set(range(len(each.new.partitions)))
            lines += [_line(node_id, new, each.new, n) for n in sorted(numbers)]
        if lines:
            self._file.write("".join(lines).encode())


def _line(node_id: int, image: ClusterImage, topic: TopicImage, number: int) -> str:
    each = topic.partitions[number]
    seen = PartitionSeen(
        time.monotonic_ns(),
        node_id,
        image.version,
        topic.name,
        topic.topic_id.hex,
        number,
        each.leader,
        each.leader_epoch,
        each.partition_epoch,
        each.replicas,
        each.isr,
        each.elr,
        each.adding,
        rules_of(image, topic).min_isr,
    )
    return json.dumps(seen, separators=(",", ":")) + "\n"


def write_images(path: Path) -> None:
    """Let this process write down what becomes of its image, command by command."""
    journal = ImageJournal(path)
    state = machine_state.MachineState
    begin, apply_items, install = state.__init__, state._apply_items, state.install
    applying: list[int] = []  # the node's id, while an entry is applied

    def noted(node: Any, old: ClusterImage) -> None:
        journal.note(node._log.node_id, old, node.image)

    def begun(node: Any, *arguments: Any, **options: Any) -> None:
        begin(node, *arguments, **options)
        noted(node, EMPTY_IMAGE)

    def installed(node: Any, data: bytes) -> Any:
        old, taken = node.image, install(node, data)
        noted(node, old)
        return taken

    def applied_items(node: Any, entry: bytes) -> None:
        applying[:] = [node._log.node_id]
        apply_items(node, entry)

    def applied(image: ClusterImage, data: bytes) -> Any:
        new, outcome = apply.apply(image, data)
        journal.note(applying[0], image, new)
        return new, outcome

    changes: dict[str, Callable[..., Any]] = {
        "__init__": begun,
        "install": installed,
        "_apply_items": applied_items,
    }
    for name, function in changes.items():
        setattr(state, name, function)
    assert machine_state.apply is apply
    setattr(machine_state, "apply", SimpleNamespace(apply=applied))  # noqa: B010


def read_images(path: Path) -> Iterator[PartitionSeen]:
    """Give what a node has written, in its order; a line that a kill has torn is none."""
    for line in path.read_text().splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        yield PartitionSeen._make(tuple(v) if isinstance(v, list) else v for v in values)
