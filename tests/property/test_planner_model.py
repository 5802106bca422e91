"""The planner against a plain model that remembers everything it was ever shown.

The planner keeps since when things are as they are, and skips a scan of all partitions when nothing
can have changed. The model keeps each look and asks all of them again. Plans must be the same, be
the same when made twice, and no command of a plan may be refused.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dlog.types import NodeId
from dlogd.controller.planner import Liveness, Plan, Planner
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    DrainNode,
    ElectionKind,
    Proof,
    Reassignment,
    ReportReplicas,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.machine.placement import place
from dlogd.metadata.state.image import (
    ClusterImage,
    Drain,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)
from tests.fakes.controlled_cluster import QUICK, Controlled
from tests.fakes.plans import plain

NODES = 4
CONTROLLER = NodeId(1)
others = st.integers(2, NODES).map(NodeId)
anybody = st.integers(1, NODES).map(NodeId)
picks = st.integers(0, 999)
times = st.sampled_from([0, 100, 500, 500, 1_000, 3_000, 5_000, 5_000, 61_000])

Key = tuple[Any, int]


def every(image: ClusterImage) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            yield topic, number, partition


class Look:
    """What the planner was shown at one time."""

    def __init__(self, image: ClusterImage, now_ms: int) -> None:
        self.now_ms = now_ms
        self.up = {n for n, node in image.nodes.items() if node.active}
        self.down = {n for n, node in image.nodes.items() if node.fenced}
        self.known = set(image.nodes)
        self.leaderless: set[Key] | None = None  # None: partitions were not looked at


class Model:
    """All looks, from the first one on."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        # Those added since the beginning that began to take the places of one that is down.
        self.heirs: dict[NodeId, set[NodeId]] = {}

    def for_ms(self, what: Any, looks: list[Look], now_ms: int) -> int:
        """Return for how long something holds; -1: it does not."""
        since = None
        for look in reversed(looks):
            if not what(look):
                break
            since = look.now_ms
        return -1 if since is None else now_ms - since

    def settled(self, node_id: NodeId, now_ms: int) -> bool:
        held = self.for_ms(lambda look: node_id in look.up, self.looks, now_ms)
        return held >= QUICK.settled_ms

    def is_dead(self, image: ClusterImage, node_id: NodeId, now_ms: int) -> bool:
        down_ms = self.for_ms(lambda look: node_id in look.down, self.looks, now_ms)
        if down_ms >= QUICK.refill_after_ms:
            return True
        heirs = self.heirs.get(node_id, set())
        return down_ms >= QUICK.settled_ms and any(usable(image.nodes[n]) for n in heirs)

    def note_heirs(self, image: ClusterImage, now_ms: int) -> None:
        """Who came after a node went down, and held nothing while that was missed, goes on."""
        holders = {n for _, _, partition in every(image) for n in partition.replicas}
        empty = {n for n, node in image.nodes.items() if usable(node) and n not in holders}
        for node_id in self.looks[-1].down:
            down_ms = self.for_ms(lambda look, n=node_id: n in look.down, self.looks, now_ms)
            if QUICK.settled_ms <= down_ms < QUICK.refill_after_ms:
                self.heirs.setdefault(node_id, set()).update(
                    each
                    for each in empty - self.looks[0].known
                    if self.for_ms(lambda look, n=each: n in look.known, self.looks, now_ms)
                    < down_ms
                )

    def expected(self, image: ClusterImage, liveness: Liveness, now_ms: int) -> list[Any]:
        """Return what to do about nodes and leaders; moves are only judged."""
        self.looks.append(Look(image, now_ms))
        for node_id in image.nodes.keys() - self.looks[-1].down:
            self.heirs.pop(node_id, None)
        found = list(about_nodes(image, liveness, now_ms))
        if found:
            return found
        look = self.looks[-1]
        look.leaderless = {(t.topic_id, n) for t, n, p in every(image) if not p.has_leader}
        self.note_heirs(image, now_ms)
        preferred = [
            (topic.topic_id, number)
            for topic, number, partition in every(image)
            if partition.has_leader
            and (may_end(image, partition) or self.leads_wrongly(image, partition, now_ms))
        ][: QUICK.elections_max]
        if preferred:
            found.append(("elect", ElectionKind.PREFERRED, sorted(preferred, key=str)))
        unclean = [
            (topic.topic_id, number)
            for topic, number, partition in every(image)
            if self.is_lost(image, topic, number, partition, now_ms)
        ]
        if unclean:
            found.append(("elect", ElectionKind.UNCLEAN_IF_ALLOWED, sorted(unclean, key=str)))
        return found

    def leads_wrongly(self, image: ClusterImage, partition: PartitionImage, now_ms: int) -> bool:
        """Whether the first replica should lead, or anybody in the place of a drained one."""
        fit = [n for n in partition.isr if image.nodes[n].active and n not in partition.offline]
        order = [n for n in partition.replicas if n in fit]
        calm = [n for n in order if image.nodes[n].drain is Drain.NONE]
        best = next(iter(calm or order), None)
        if best in (None, partition.leader):
            return False
        if image.nodes[partition.leader].drain is not Drain.NONE:
            return True
        return best == partition.replicas[0] and self.settled(best, now_ms)

    def is_lost(
        self, image: ClusterImage, topic: TopicImage, number: int, part: PartitionImage, now_ms: int
    ) -> bool:
        looks = [look for look in self.looks if look.leaderless is not None]
        key = (topic.topic_id, number)
        held_ms = self.for_ms(lambda look: key in look.leaderless, looks, now_ms)
        return (
            held_ms >= QUICK.unclean_after_ms
            and topic.configs.get("unclean.leader.election.enable") == "true"
            and any(image.nodes[n].active and n not in part.offline for n in part.replicas)
        )

    def judge_moves(
        self, image: ClusterImage, moves: tuple[Reassignment, ...], now_ms: int
    ) -> None:
        """Replicas leave only who is dead or emptied, for who is fit; all that can, if any can."""
        gone = {
            n
            for n, node in image.nodes.items()
            if node.drain is Drain.REPLICAS or self.is_dead(image, n, now_ms)
        }
        fit = {n for n, node in image.nodes.items() if usable(node)}
        by_key = {(each.topic_id, each.partition): each.replicas for each in moves}
        assert len(by_key) == len(moves)
        room = QUICK.reassignments_max
        room -= sum(bool(p.has_leader and (p.adding or p.removing)) for _, _, p in every(image))
        begun = 0
        for topic, number, partition in every(image):
            target = by_key.get((topic.topic_id, number))
            present = tuple(n for n in partition.replicas if n not in partition.removing)
            moving = bool(partition.adding or partition.removing)
            # What is copied anyway is only sent elsewhere when that is gone as well, or cannot end.
            away = {n for n in present if n in gone and not image.nodes[n].active}
            ends = len(present) - len(away) >= min(2, len(present))
            wanted = partition.adding if moving and ends else present
            may = partition.has_leader and bool(gone.intersection(wanted))
            if target is None:
                # Not the last holders, nor too many of the ISR: they would go at once.
                stay = (set(present) - gone) | (set(partition.replicas) - set(partition.adding))
                going, left = set(partition.isr) - stay, stay.intersection(partition.isr)
                may = may and not (going and len(left) < min(2, len(present)))
                may = may and bool(stay.intersection(partition.holders))
                if may and fit - gone - set(present):
                    assert not moving and len(moves) >= room, "somebody could take it"
                continue
            assert may
            begun += not moving
            assert len(target) == len(present) == len(set(target))
            for old, new in zip(present, target, strict=True):
                assert new == old or (old in gone and new in fit and new not in present)
            assert target != present
        assert begun <= max(room, 0)


def may_end(image: ClusterImage, partition: PartitionImage) -> bool:
    """Whether all that a reassignment waits for is there; each topic wants two in sync."""
    wanted = set(partition.replicas) - set(partition.removing)
    there = wanted.intersection(partition.isr)
    return bool(
        (partition.adding or partition.removing)
        and there.issuperset(partition.adding)
        and len(there) >= min(2, len(wanted))
        and any(image.nodes[n].active and n not in partition.offline for n in there)
    )


def usable(node: NodeRegistration) -> bool:
    return node.active and node.drain is Drain.NONE


def about_nodes(image: ClusterImage, liveness: Liveness, now_ms: int) -> Iterator[Any]:
    known = {
        n: (node, liveness[n])
        for n, node in image.nodes.items()
        if n in liveness and liveness[n].node_epoch == node.node_epoch
    }
    silent = [n for n, (_, life) in known.items() if life.lease_end_ms <= now_ms]
    lost = [n for n in silent if not known[n][0].fenced or known[n][0].returning]
    if lost:
        yield ("fence", *lost)
    for n, (node, life) in known.items():
        if n in silent or node.shutting_down:
            continue
        if life.wants_shutdown:
            yield ("shut down", n)
        elif node.fenced and life.heard and life.ready and life.image_version >= node.node_epoch:
            yield ("unfence", n)


class JudgedPlanner:
    """Asks two planners and the model, and compares."""

    def __init__(self, cluster: Controlled) -> None:
        epoch = cluster.image.controller.epoch
        self.model = Model()
        self.planners = [Planner(epoch, cluster.new_id, QUICK) for _ in range(2)]
        self.opening: set[NodeId] = set()  # their logs are not open yet

    def plan(self, image: ClusterImage, liveness: Liveness, now_ms: int) -> Plan:
        liveness = {
            n: replace(life, ready=life.ready and n not in self.opening)
            for n, life in liveness.items()
        }
        one, other = (each.plan(image, liveness, now_ms) for each in self.planners)
        done = plain(one)
        assert done == plain(other)
        assert one.sentence == other.sentence
        expected = self.model.expected(image, liveness, now_ms)
        moves = [each for each in done if each[0] == "move"]
        assert [each for each in done if each[0] != "move"] == expected
        if self.model.looks[-1].leaderless is not None:
            self.model.judge_moves(image, moves[0][1] if moves else (), now_ms)
        else:
            assert not moves
        return one


class PlannerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Controlled(NODES, QUICK)
        self.judged = JudgedPlanner(self.cluster)
        self.cluster.planner = self.judged  # type: ignore[assignment]
        self.names = 0

    @initialize(factor=st.integers(1, 3), unclean=st.booleans())
    def begin(self, factor: int, unclean: bool) -> None:
        self.create(factor, 3, unclean)
        self.cluster.tick(0)

    def go_on(self, passed_ms: int) -> None:
        """Let time pass; a long time in steps, so that who lives is heard of."""
        self.cluster.catch_up()
        for _ in range(4):
            self.cluster.tick(passed_ms // 4)

    @rule(factor=st.integers(1, 3), partitions=st.integers(1, 3), unclean=st.booleans())
    def create(self, factor: int, partitions: int, unclean: bool) -> None:
        fit = [node for node in self.cluster.image.nodes.values() if usable(node)]
        if len(fit) < factor or self.names >= 5:
            return
        places = place(self.cluster.image, partitions, factor)
        self.names += 1
        configs = {"min_insync_replicas": "2", "unclean_leader_election_enable": str(unclean)}
        configs = {name: value.lower() for name, value in configs.items()}
        self.cluster.create(f"t{self.names}", *places, **configs)

    @rule(node_id=others, passed_ms=times)
    def die(self, node_id: NodeId, passed_ms: int) -> None:
        self.cluster.up -= {node_id}
        self.go_on(passed_ms)

    @rule(node_id=others, proof=st.sampled_from(list(Proof)), passed_ms=times)
    def begin_again(self, node_id: NodeId, proof: Proof, passed_ms: int) -> None:
        self.cluster.register(node_id, proof=proof)
        self.cluster.stopping -= {node_id}
        self.cluster.up |= {node_id}
        self.go_on(passed_ms)

    @rule(node_id=others, passed_ms=times)
    def be_heard_again(self, node_id: NodeId, passed_ms: int) -> None:
        self.cluster.up |= {node_id}
        self.go_on(passed_ms)

    @rule(node_id=others, passed_ms=times)
    def open_or_close_logs(self, node_id: NodeId, passed_ms: int) -> None:
        self.judged.opening ^= {node_id}
        self.go_on(passed_ms)

    @rule(node_id=others, passed_ms=times)
    def stop(self, node_id: NodeId, passed_ms: int) -> None:
        self.cluster.stopping |= {node_id}
        self.go_on(passed_ms)

    @rule(passed_ms=times)
    def add(self, passed_ms: int) -> None:
        if NodeId(NODES + 1) not in self.cluster.image.nodes:
            self.cluster.register(NODES + 1)
            self.cluster.up |= {NodeId(NODES + 1)}
        self.go_on(passed_ms)

    @rule(node_id=anybody, drain=st.sampled_from(list(Drain)), passed_ms=times)
    def drain(self, node_id: NodeId, drain: Drain, passed_ms: int) -> None:
        self.cluster.apply(
            DrainNode(command_id=self.cluster.new_id(), node_id=node_id, drain=drain)
        )
        self.go_on(passed_ms)

    @rule(pick=picks, node_id=others, works=st.booleans(), passed_ms=times)
    def report(self, pick: int, node_id: NodeId, works: bool, passed_ms: int) -> None:
        all_of_them = list(every(self.cluster.image))
        topic, number, _ = all_of_them[pick % len(all_of_them)]
        named = ((topic.topic_id, (number,)),)
        self.cluster.apply(
            ReportReplicas(
                command_id=self.cluster.new_id(),
                node_id=node_id,
                node_epoch=self.cluster.epoch(node_id),
                failed_directory_ids=(),
                offline=() if works else named,
                online=named if works else (),
            )
        )
        self.go_on(passed_ms)

    @rule(
        pick=picks, wanted=st.lists(anybody, min_size=1, max_size=3, unique=True), passed_ms=times
    )
    def reassign(self, pick: int, wanted: list[NodeId], passed_ms: int) -> None:
        """As an operator does; refused where nobody in sync would be left."""
        of_them = list(every(self.cluster.image))
        topic, number, _ = of_them[pick % len(of_them)]
        move = Reassignment(topic_id=topic.topic_id, partition=number, replicas=tuple(wanted))
        data = encode(AlterAssignments(command_id=self.cluster.new_id(), reassignments=(move,)))
        self.cluster.image, _ = apply.apply(self.cluster.image, data)
        self.go_on(passed_ms)

    @rule(passed_ms=times)
    def rest(self, passed_ms: int) -> None:
        self.go_on(passed_ms)

    @rule(passed_ms=times)
    def be_silent(self, passed_ms: int) -> None:
        """As long as nobody catches up, and a look comes late."""
        self.cluster.tick(passed_ms)


PlannerMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPlanner = PlannerMachine.TestCase
