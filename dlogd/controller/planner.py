"""Planner of the controller: image, liveness and time into commands.

No I/O, no clock, no randomness: all of it is passed in, and the same calls give the same plans. A
plan is only a proposal; the machine decides. So a plan from an old image does no harm, work that
failed comes up again with the next plan, and nothing is remembered but since when things are as
they are. The driver calls `plan` on each change of liveness and on a timer, proposes the commands,
and waits for their outcomes before it asks again.

- A node without a lease is fenced, together with all others that lost theirs.
- A node that is heard of, ready, and has read its own registration is unfenced.
- A node that wants to stop is shut down: its leaders move first.
- Leaders go back to the preferred replica, some at a time, when its node has been up for a while;
  off drained nodes at once.
- A topic that allows it gets an unclean leader when it has had none for long.
- Replicas on nodes that are emptied, or dead for long, go to others
  (`dlogd.controller.replica_replacement`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from dlog.types import NO_NODE, NodeId, TopicId
from dlogd.controller import replica_replacement
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    ElectionKind,
    ElectLeaders,
    FenceNodes,
    Guarded,
    PartitionSet,
    PlainCommand,
    ShutDownNode,
    UnfenceNode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.machine.election import preferred_leader, rules_of, settle
from dlogd.metadata.machine.placement import Loads, usable_nodes
from dlogd.metadata.state.image import (
    ClusterImage,
    Drain,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)

Key = tuple[TopicId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLiveness:
    """What the controller knows of one life of a node. Times are those of its own clock."""

    node_epoch: int
    lease_end_ms: int  # exclusive; in the past when the process is known to be dead
    heard: bool = False  # has sent a heartbeat in this life
    ready: bool = False  # its logs are open, it may be unfenced
    image_version: int = 0  # that it has applied
    wants_shutdown: bool = False

    def is_leased(self, now_ms: int) -> bool:
        """Whether the node may still believe that it has a lease."""
        return now_ms < self.lease_end_ms


Liveness = Mapping[NodeId, NodeLiveness]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """How gently the controller goes about what is not urgent.

    What operators may want otherwise is in the configuration (`dlogd.node.cluster_timings`).
    """

    scan_interval_ms: int = 1_000  # partitions are looked at no more often
    elections_max: int = 100  # preferred leaders that are moved in one plan
    settled_ms: int = 30_000  # how long a node has been up when it gets its leaders back
    unclean_after_ms: int = 30_000  # how long a partition has had no leader
    refill_after_ms: int = 1_800_000  # how long a node has been down when its replicas are replaced
    reassignments_max: int = 20  # that are led, at any time, those that others ordered included


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to propose, in order, and why in one sentence."""

    commands: tuple[Guarded, ...]
    sentence: str


class Planner:
    """Makes the plans of one controller epoch. Owner: the controller's loop."""

    def __init__(
        self,
        controller_epoch: int,
        new_id: Callable[[], UUID],
        settings: PlannerSettings | None = None,
    ) -> None:
        self._controller_epoch = controller_epoch
        self._new_id = new_id
        self._settings = settings or PlannerSettings()
        self._up_since: dict[NodeId, int] = {}
        self._down_since: dict[NodeId, int] = {}
        self._leaderless_since: dict[Key, int] = {}
        self._added: dict[NodeId, int] = {}  # since when nodes are there; -1: from the beginning
        # Who takes the places of a node that is down, and since when that is down.
        self._heirs: dict[NodeId, tuple[int, NodeId]] = {}
        self._scan_next_ms = 0
        # What the last scan saw, if it left nothing to do or to wait for.
        self._calm: _Sight | None = None

    def plan(self, image: ClusterImage, liveness: Liveness, now_ms: int) -> Plan:
        """Return what to do now; `liveness` is what `driver.node_liveness` says of leases."""
        self._note_nodes(image, now_ms)
        plain = _node_commands(image, liveness, now_ms, self._new_id)
        if not plain and now_ms >= self._scan_next_ms:
            self._scan_next_ms = now_ms + self._settings.scan_interval_ms
            plain = self._partition_commands(image, now_ms)
        commands = tuple(
            apply.guarded(image, command, controller_epoch=self._controller_epoch)
            for command in plain
        )
        return Plan(commands=commands, sentence=_sentence(plain))

    def _note_nodes(self, image: ClusterImage, now_ms: int) -> None:
        # Those that were there when this controller began may have been there for ever.
        self._added = {n: self._added.get(n, now_ms) if self._added else -1 for n in image.nodes}
        up = {node_id for node_id, node in image.nodes.items() if node.active}
        down = {node_id for node_id, node in image.nodes.items() if node.fenced}
        self._up_since = {n: self._up_since.get(n, now_ms) for n in sorted(up)}
        self._down_since = {n: self._down_since.get(n, now_ms) for n in sorted(down)}

    def _partition_commands(self, image: ClusterImage, now_ms: int) -> list[PlainCommand]:
        settled = {
            node_id
            for node_id, since in self._up_since.items()
            if now_ms - since >= self._settings.settled_ms
        }
        dead = self._dead(image, now_ms)
        sight = _Sight(image, settled, dead)
        if self._calm is not None and self._calm.is_same(sight):
            return []
        scan = _Scan(self._settings.elections_max)
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if not partition.has_leader:
                    scan.leaderless.append((topic, number))
                    continue
                if partition.adding or partition.removing:
                    scan.reassigning += 1
                    if _can_end(image, topic, partition):
                        scan.note(topic, number)
                        continue
                if _may_move(image.nodes, partition, settled):
                    scan.note_preferred(image.nodes, topic, number, partition)
        commands: list[PlainCommand] = []
        if scan.preferred:
            commands.append(self._elect(ElectionKind.PREFERRED, scan.preferred))
        unclean = self._overdue(image, scan.leaderless, now_ms)
        if unclean:
            commands.append(self._elect(ElectionKind.UNCLEAN_IF_ALLOWED, unclean))
        commands += self._refill(image, scan.reassigning, dead)
        waits = commands or scan.leaderless or scan.reassigning
        self._calm = None if waits else sight
        return commands

    def _dead(self, image: ClusterImage, now_ms: int) -> frozenset[NodeId]:
        """Return the nodes whose replicas are to be replaced.

        A node that was added since and holds nothing is there to take somebody's place: then one
        that is down is not waited for as long.
        """
        settings, since = self._settings, self._down_since
        dead = {n for n, begun in since.items() if now_ms - begun >= settings.refill_after_ms}
        down = {n for n, begun in since.items() if now_ms - begun >= settings.settled_ms} - dead
        return frozenset(dead | self._inherited(image, down))

    def _inherited(self, image: ClusterImage, down: set[NodeId]) -> set[NodeId]:
        """Return who of `down` has an heir that can take replicas: also when it has got some."""
        since, fit = self._down_since, {node.node_id for node in usable_nodes(image)}
        self._heirs = {
            node_id: (begun, heir)
            for node_id, (begun, heir) in self._heirs.items()
            if since.get(node_id) == begun and heir in image.nodes
        }
        found = {n for n in down if n in self._heirs and self._heirs[n][1] in fit}
        if found != down:
            empty = [(self._added.get(n, -1), n) for n in replica_replacement.empty_nodes(image)]
            newest_ms, heir = max(empty, default=(-1, NO_NODE))
            new = {n for n in down - found if since[n] < newest_ms}
            self._heirs |= {node_id: (since[node_id], heir) for node_id in new}
            found |= new
        return found

    def _elect(self, kind: ElectionKind, keys: list[Key]) -> ElectLeaders:
        return ElectLeaders(command_id=self._new_id(), election=kind, partitions=grouped(keys))

    def _overdue(
        self, image: ClusterImage, leaderless: list[tuple[TopicImage, int]], now_ms: int
    ) -> list[Key]:
        """Return what has had no leader for long, has somebody who could, and may be unclean."""
        since = {
            (topic.topic_id, number): self._leaderless_since.get((topic.topic_id, number), now_ms)
            for topic, number in leaderless
        }
        self._leaderless_since = since
        return [
            (topic.topic_id, number)
            for topic, number in leaderless
            if now_ms - since[topic.topic_id, number] >= self._settings.unclean_after_ms
            and rules_of(image, topic).unclean_allowed
            and any(
                (node := image.nodes.get(node_id)) is not None
                and node.active
                and node_id not in topic.partitions[number].offline
                for node_id in topic.partitions[number].replicas
            )
        ]

    def _refill(
        self, image: ClusterImage, reassigning: int, dead: frozenset[NodeId]
    ) -> list[PlainCommand]:
        leaving = frozenset(
            node_id for node_id, node in image.nodes.items() if node.drain == Drain.REPLICAS
        )
        room = self._settings.reassignments_max - reassigning
        if not dead and not leaving:
            return []
        moves = replica_replacement.plan_refill(image, dead, leaving, max(room, 0), Loads.of(image))
        if not moves:
            return []
        return [AlterAssignments(command_id=self._new_id(), reassignments=tuple(moves))]


class _Sight:
    """All that a scan of the partitions depends on, but for time."""

    def __init__(self, image: ClusterImage, settled: set[NodeId], dead: frozenset[NodeId]) -> None:
        self._parts = (image.topics, image.nodes, image.configs)
        self._sets = (settled, dead)

    def is_same(self, other: "_Sight") -> bool:
        """Whether a scan would find the same again: images share what did not change."""
        parts = zip(self._parts, other._parts, strict=True)
        return self._sets == other._sets and all(one is another for one, another in parts)


class _Scan:
    """What was found among the partitions."""

    def __init__(self, elections_max: int) -> None:
        self.preferred: list[Key] = []
        self.leaderless: list[tuple[TopicImage, int]] = []
        self.reassigning = 0
        self._elections_max = elections_max

    def note_preferred(
        self,
        nodes: Mapping[NodeId, NodeRegistration],
        topic: TopicImage,
        number: int,
        partition: PartitionImage,
    ) -> None:
        """Note a partition that should get another leader, while there are not too many."""
        if len(self.preferred) < self._elections_max and (
            preferred_leader(nodes, partition) is not None
        ):
            self.note(topic, number)

    def note(self, topic: TopicImage, number: int) -> None:
        """Note a partition that an election of a preferred leader puts in order."""
        if len(self.preferred) < self._elections_max:
            self.preferred.append((topic.topic_id, number))


def _can_end(image: ClusterImage, topic: TopicImage, partition: PartitionImage) -> bool:
    """Whether a reassignment ends when the machine looks at it again.

    It looks before it elects. So one that waits for a leader only is not over with him, and when
    nobody else is there to join him, nothing comes by which it would be.
    """
    if not all(node_id in partition.isr for node_id in partition.adding):
        return False
    settled, _ = settle(partition, rules_of(image, topic))
    return not settled.adding and not settled.removing


def _may_move(
    nodes: Mapping[NodeId, NodeRegistration], partition: PartitionImage, settled: set[NodeId]
) -> bool:
    """Whether it is worth asking for the preferred leader of a partition."""
    leader = nodes.get(partition.leader)
    if leader is None or leader.drain != Drain.NONE:
        return True
    first = partition.replicas[0]
    return first != partition.leader and first in settled


def _node_commands(
    image: ClusterImage, liveness: Liveness, now_ms: int, new_id: Callable[[], UUID]
) -> list[PlainCommand]:
    lost: list[tuple[NodeId, int]] = []
    commands: list[PlainCommand] = []
    for node_id, node in image.nodes.items():
        known = liveness.get(node_id)
        if known is None or known.node_epoch != node.node_epoch:
            continue
        if not known.is_leased(now_ms):
            if not node.fenced or node.returning:
                lost.append((node_id, node.node_epoch))
        elif node.shutting_down:
            continue
        elif known.wants_shutdown:
            commands.append(
                ShutDownNode(command_id=new_id(), node_id=node_id, node_epoch=node.node_epoch)
            )
        elif node.fenced and _is_ready(node, known):
            commands.append(
                UnfenceNode(command_id=new_id(), node_id=node_id, node_epoch=node.node_epoch)
            )
    if lost:
        commands.insert(0, FenceNodes(command_id=new_id(), nodes=tuple(lost)))
    return commands


def _is_ready(node: NodeRegistration, known: NodeLiveness) -> bool:
    # The epoch of a node is the version of the image in which it registered.
    return known.heard and known.ready and known.image_version >= node.node_epoch


def grouped(keys: list[Key]) -> PartitionSet:
    """Return partitions by topic, in the order in which they come."""
    topics: dict[TopicId, list[int]] = {}
    for topic_id, number in keys:
        topics.setdefault(topic_id, []).append(number)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in topics.items())


def _sentence(commands: list[PlainCommand]) -> str:
    """Say what a plan does, for the log."""
    if not commands:
        return "Nothing to do"
    return "; ".join(_clause(command) for command in commands)


def _clause(command: PlainCommand) -> str:
    match command:
        case FenceNodes():
            return "fence nodes " + ",".join(str(node_id) for node_id, _ in command.nodes)
        case UnfenceNode():
            return f"unfence node {command.node_id}"
        case ShutDownNode():
            return f"shut down node {command.node_id}"
        case ElectLeaders():
            count = sum(len(numbers) for _, numbers in command.partitions)
            return f"elect {command.election.name.lower()} leaders of {count} partition(s)"
        case AlterAssignments():
            return f"reassign {len(command.reassignments)} partition(s)"
        case _:
            return type(command).__name__
