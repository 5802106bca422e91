"""Election of leaders, and changes of a partition when a node or replica changes.

Pure and deterministic; called by the machine alone to make new partitions, and by others to ask.
`settle` is the one place where ISR, ELR, leader, reassignment and epochs move (but for a node alone
that starts again, `machine.node`), in this order:

1. who is out of the ISR leaves it; a reassignment whose new replicas are in sync ends;
2. who left an ISR that is below min.insync.replicas stays eligible (ELR, KIP-966): the watermark
   does not move while the ISR is that small, so these replicas hold all that was acknowledged;
3. a leader that can lead stays; else the first replica of the ISR that can, else of the ELR, else
   the last leader when nobody is left in either (it holds the most; counted as unclean);
4. the leader epoch rises with each change of leader and when a replica goes; the partition epoch
   rises with each change.

A replica outside ISR and ELR is never chosen unless `unclean` says so; then one that is being added
comes last.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from dlog.types import NO_NODE, LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.state.image import (
    ClusterImage,
    Drain,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)
from dlogd.metadata.state.limits import INT31_MAX

MIN_ISR = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"
FLUSH_POLICY = "flush.policy"

Nodes = tuple[NodeId, ...]

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What decides about the partitions of one topic."""

    nodes: Mapping[NodeId, NodeRegistration]
    min_isr: int
    unclean_allowed: bool

    def min_isr_of(self, partition: PartitionImage) -> int:
        """Return how many members the ISR of a partition needs for its watermark to move."""
        return self.enough_of(len(partition.replicas) - len(partition.adding))

    def enough_of(self, replica_count: int) -> int:
        """Return how many of so many replicas have to be in sync."""
        return max(1, min(self.min_isr, replica_count))

    def may_let_go(self, partition: PartitionImage, kept: Container[NodeId], count: int) -> bool:
        """Whether all in sync who are not `kept` may go, of which `count` are to stay.

        Not before enough of the others are in sync: what was acknowledged would be on fewer disks
        than promised. Who is eligible only is down, and may be for good: it keeps nobody.
        """
        staying = sum(node_id in kept for node_id in partition.isr)
        return staying == len(partition.isr) or staying >= self.enough_of(count)


def rules_of(image: ClusterImage, topic: TopicImage) -> Rules:
    """Return the rules for a topic. What its configs say is read in the same way for ever."""
    configs = (topic.configs, image.configs)
    return Rules(
        nodes=image.nodes,
        min_isr=next((n for each in configs if (n := _positive(each.get(MIN_ISR)))), 1),
        unclean_allowed=next(
            (
                word == "true"
                for each in configs
                if (word := each.get(UNCLEAN, "").strip().lower()) in ("true", "false")
            ),
            False,
        ),
    )


def _positive(text: str | None) -> int | None:
    if text is None or not _NUMBER.match(text.strip()):
        return None
    number = int(text)
    return number if 1 <= number <= INT31_MAX else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is new about a partition; None: as it was."""

    isr: Nodes | None = None
    replicas: Nodes | None = None  # with `adding` and `removing`
    adding: Nodes | None = None
    removing: Nodes | None = None
    offline: Nodes | None = None
    lost: NodeId = NO_NODE  # its data may lack what it promised: neither ISR nor ELR
    missing: NodeId = NO_NODE  # it has no data any more
    preferred: bool = False  # elect the preferred leader if it can lead
    unclean: bool = False  # elect anybody when there is no leader


NO_CHANGE = Change()


def settle(
    old: PartitionImage, rules: Rules, change: Change = NO_CHANGE
) -> tuple[PartitionImage, bool]:
    """Return the partition after a change, and whether its new leader may lack records.

    The same object comes back when nothing is different.
    """
    draft = _Draft(old, rules, change)
    draft.end_reassignment()
    draft.keep_eligible()
    unclean = draft.elect()
    draft.note_last_leader()
    return draft.result(), unclean


class _Draft:
    """A partition on its way from one image to the next."""

    def __init__(self, old: PartitionImage, rules: Rules, change: Change) -> None:
        self.old, self.rules, self.change = old, rules, change
        self.replicas = old.replicas if change.replicas is None else change.replicas
        self.adding = old.adding if change.adding is None else change.adding
        self.removing = old.removing if change.removing is None else change.removing
        self.offline = old.offline if change.offline is None else change.offline
        self.gone = (change.lost, change.missing)
        isr = old.isr if change.isr is None else change.isr
        self.isr = tuple(n for n in self.replicas if n in isr and n not in self.gone)
        self.elr: Nodes = ()
        self.leader = old.leader
        self.last_leader = NO_NODE if change.missing == old.last_leader else old.last_leader

    def can_lead(self, node_id: NodeId) -> bool:
        """Whether a node could lead if its data allow it."""
        return can_lead(self.rules.nodes, self.offline, node_id)

    def end_reassignment(self) -> None:
        """Drop the old replicas when all new ones are in sync, and enough of them."""
        if not self.adding and not self.removing:
            return
        target = tuple(n for n in self.replicas if n not in self.removing)
        isr = tuple(n for n in self.isr if n in target)
        if (
            len(isr) >= self.rules.enough_of(len(target))
            and all(node_id in isr for node_id in self.adding)
            and any(self.can_lead(node_id) for node_id in isr)
        ):
            self.replicas, self.isr = target, isr
            self.offline = tuple(n for n in self.offline if n in target)
            self.adding = self.removing = ()

    def keep_eligible(self) -> None:
        """Keep in the ELR who was in the ISR or the ELR until now, while the ISR is too small."""
        if len(self.isr) >= self.rules.enough_of(len(self.replicas) - len(self.adding)):
            self.elr = ()
            return
        until_now = (*self.old.elr, *self.old.isr)
        self.elr = tuple(
            n for n in self.replicas if n in until_now and n not in self.isr and n not in self.gone
        )

    def elect(self) -> bool:
        """Choose the leader; return whether the choice was unclean."""
        able = candidates(self.rules.nodes, self.replicas, self.offline)
        in_sync = [n for n in able if n in self.isr]
        if in_sync:
            self._choose_in_sync(in_sync)
            return False
        eligible = [n for n in able if n in self.elr]
        if eligible:
            self._lead_alone(eligible[0])
            return False
        self.leader = NO_NODE
        if not self.isr and not self.elr and self._last_leader() in able:
            self._lead_alone(self._last_leader())
            return True
        if self.change.unclean and able:
            # Who is only being added may hold nothing yet.
            self._lead_alone(next((n for n in able if n not in self.adding), able[0]))
            self.elr = ()
            return True
        return False

    def _choose_in_sync(self, in_sync: list[NodeId]) -> None:
        if self.leader not in in_sync:
            self.leader = in_sync[0]
        elif self.change.preferred:
            nodes = self.rules.nodes
            self.leader = _preferred(nodes, self.replicas, in_sync, self.leader)

    def _lead_alone(self, node_id: NodeId) -> None:
        self.leader, self.isr = node_id, (node_id,)
        self.keep_eligible()

    def _last_leader(self) -> NodeId:
        """Return who led last, or was the last in sync."""
        if self.last_leader != NO_NODE:
            return self.last_leader
        old = self.old
        last = old.leader if old.has_leader else next(iter((*old.isr, *old.elr)), NO_NODE)
        return NO_NODE if last == self.change.missing else last

    def note_last_leader(self) -> None:
        """Remember who led last for as long as there is nobody better."""
        nobody = self.leader == NO_NODE and not self.isr and not self.elr
        last = self._last_leader() if nobody else NO_NODE
        self.last_leader = last if last in self.replicas else NO_NODE

    def result(self) -> PartitionImage:
        """Return the partition with its new epochs."""
        old = self.old
        before = (
            *(old.replicas, old.isr, old.leader, old.elr),
            *(old.adding, old.removing, old.offline, old.last_leader),
        )
        after = (
            *(self.replicas, self.isr, self.leader, self.elr),
            *(self.adding, self.removing, self.offline, self.last_leader),
        )
        if before == after:
            return old
        led_anew = self.leader != old.leader or any(n not in self.replicas for n in old.replicas)
        return PartitionImage(
            replicas=self.replicas,
            isr=self.isr,
            leader=self.leader,
            leader_epoch=next_leader_epoch(old) if led_anew else old.leader_epoch,
            partition_epoch=next_partition_epoch(old),
            elr=self.elr,
            adding=self.adding,
            removing=self.removing,
            last_leader=self.last_leader,
            offline=self.offline,
        )


def next_leader_epoch(partition: PartitionImage) -> LeaderEpoch:
    """Return the epoch of the next leader."""
    return LeaderEpoch(min(partition.leader_epoch + 1, INT31_MAX))


def next_partition_epoch(partition: PartitionImage) -> PartitionEpoch:
    """Return the epoch after a change."""
    return PartitionEpoch(min(partition.partition_epoch + 1, INT31_MAX))


def can_lead(nodes: Mapping[NodeId, NodeRegistration], offline: Nodes, node_id: NodeId) -> bool:
    """Whether a node could lead a partition if its data allow it."""
    node = nodes.get(node_id)
    return node is not None and node.active and node_id not in offline


def candidates(
    nodes: Mapping[NodeId, NodeRegistration], replicas: Nodes, offline: Nodes
) -> list[NodeId]:
    """Return who could lead, in order of preference: those that an operator drains come last."""
    able = [n for n in replicas if can_lead(nodes, offline, n)]
    return sorted(able, key=lambda node_id: _is_drained(nodes, node_id))


def _is_drained(nodes: Mapping[NodeId, NodeRegistration], node_id: NodeId) -> bool:
    return nodes[node_id].drain != Drain.NONE


def _preferred(
    nodes: Mapping[NodeId, NodeRegistration],
    replicas: Nodes,
    in_sync: list[NodeId],
    leader: NodeId,
) -> NodeId:
    """Return the first replica if it can lead, else somebody in the place of a drained leader."""
    best = in_sync[0]
    return best if best == replicas[0] or _is_drained(nodes, leader) else leader


def preferred_leader(
    nodes: Mapping[NodeId, NodeRegistration], partition: PartitionImage
) -> NodeId | None:
    """Return who a PREFERRED election would put in the place of the present leader, if anybody."""
    able = candidates(nodes, partition.replicas, partition.offline)
    in_sync = [node_id for node_id in able if node_id in partition.isr]
    if not in_sync or partition.leader not in in_sync:
        return in_sync[0] if in_sync else None
    leader = _preferred(nodes, partition.replicas, in_sync, partition.leader)
    return leader if leader != partition.leader else None
