"""A cluster of real processes under kill -9 and SIGSTOP, with clients, and the verdict.

    python -m tests.cluster --minutes 15 --seed 7

What is checked: nothing acknowledged is lost, nothing refused has an effect, nothing is done twice
(`ledger`); all images are equal; epochs only grow, as clients and logs see them; one leader per
term; all nodes are unfenced in the end; no log has a traceback.
"""

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from dlog.client.admin import Admin, Resource
from dlog.client.retry import RetryPolicy
from dlog.client.views import ClusterView
from dlog.errors import DlogError
from dlog.transport import ConnectionOptions
from tests.cluster.clients import Changer, Librdkafka, OwnClient, Witness
from tests.cluster.hosts import Hosts
from tests.cluster.ledger import TopicState
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.cluster.operators import Operator

KINDS = (
    "kill follower",
    "kill controller",
    "kill most",
    "kill all",
    "pause controller",
    "kill starting",
    "stop in order",
)
CUTS = ("cut controller off", "cut follower off", "cut one way", "cut pair", "cut all off")
"""Only where nodes have hosts of their own."""
TOPIC_SOURCE = 1  # of DescribeConfigs: set on the topic itself
HEAL_S = 90.0
PAUSE_S = (0.3, 6.0)  # shorter and longer than a lease
CUT_S = (0.2, 8.0)
SEEN_EVERY_S = 0.3
LOG_BYTES = 50_000  # snapshots of the metadata come all the time


@dataclass(slots=True)
class Summary:
    """What a run did and saw."""

    seed: int
    strikes: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    without_controller_s: list[float] = field(default_factory=list)
    duration_s: float = 0.0
    version: int = 0
    snapshots: int = 0
    installed: int = 0

    def lines(self) -> list[str]:
        """Return it for people."""
        gaps = sorted(self.without_controller_s)
        told = (
            f"p50={median(gaps):.2f} s p99={gaps[int(len(gaps) * 0.99)]:.2f} s"
            f" max={gaps[-1]:.2f} s of {len(gaps)}"
            if gaps
            else "never"
        )
        return [
            f"seed={self.seed} duration={self.duration_s:.0f} s kills={self.kills}",
            f"strikes: {_counts(self.strikes)}",
            f"acknowledged={sum(self.acknowledged.values())}: {_counts(self.acknowledged)}",
            f"an operator's: {_counts(self.operations)}",
            f"refused={sum(self.refused.values())}: {_counts(self.refused)}",
            f"unknown={sum(self.unknown.values())}: {_counts(self.unknown)}",
            f"reasons: {_counts(self.reasons)}",
            "kill of the controller, all others alive, to the next change that was asked for"
            f" and acknowledged: {told}",
            f"metadata version={self.version}, all images equal;"
            f" snapshots taken={self.snapshots}, from another node={self.installed}",
        ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


class Observer:
    """Watches epochs through one node's answers; they never go back, also over restarts.

    A node serves clients only when its image has all that was acknowledged before.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._leader_epochs: dict[tuple[object, int], int] = {}
        self._version = (0, -1)  # of a life
        self.answers = 0

    async def run(self) -> None:
        """Look again and again; raise AssertionError when something went back."""
        policy = RetryPolicy(deadline_s=0, lookup_timeout_s=1)
        options = ConnectionOptions(client_id="observer", connect_timeout_s=1)
        while True:
            # Only this node is asked: each look begins anew at its own address.
            try:
                async with Admin(
                    [self._node.client_address], policy=policy, connection=options
                ) as admin:
                    self._take(await admin.describe_topics())
            except DlogError:
                pass
            await self._look_at_version()
            await asyncio.sleep(SEEN_EVERY_S)

    def _take(self, view: ClusterView) -> None:
        self.answers += 1
        for topic in view.topics.values():
            for each in topic.partitions:
                key = (topic.topic_id, each.partition)
                before = self._leader_epochs.get(key, -1)
                assert each.leader_epoch >= before, (
                    f"node {self._node.node_id}: leader epoch of {topic.name}-{each.partition}"
                    f" went from {before} back to {each.leader_epoch}"
                )
                self._leader_epochs[key] = each.leader_epoch

    async def _look_at_version(self) -> None:
        life = self._node.lives
        status = await self._node.status()
        if status is None or life != self._node.lives:
            return
        seen = (life, status["metadata_version"])
        assert seen >= self._version, f"node {self._node.node_id}: {self._version} then {seen}"
        self._version = seen


class Chaos:
    """One run over a cluster. Life: `run` once."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.summary = Summary(seed)
        self.witness = Witness()
        self._rng = random.Random(seed)
        self._restarts: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self.operator = Operator(cluster, random.Random(self._rng.getrandbits(64)))
        self._kinds = KINDS if cluster.hosts is None else (*KINDS, *CUTS)

    async def run(self, *, duration_s: float) -> Summary:
        """Strike for so long, each kind once at least, then heal and judge."""
        begun_s = time.monotonic()
        clients = self._clients()
        observers = [Observer(node) for node in self.cluster.nodes]
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            changing = [tasks.create_task(each.run()) for each in clients]
            operating = tasks.create_task(self.operator.run())
            watching = [tasks.create_task(each.run()) for each in observers]
            await self._strike_for(begun_s + duration_s)
            for client in clients:
                client.stop()
            self.operator.stop()
            await asyncio.wait((*changing, operating))
            for task in watching:
                task.cancel()
        await asyncio.gather(*(each.close() for each in clients))
        assert all(each.answers for each in observers)
        await self.operator.finish()
        await self._judge()
        self.summary.operations = self.operator.counts
        self.summary.duration_s = time.monotonic() - begun_s
        return self.summary

    def _clients(self) -> list[Changer]:
        bootstrap = self.cluster.bootstrap
        seeds = [random.Random(self._rng.getrandbits(64)) for _ in range(4)]
        own = [OwnClient(f"own{n}-", self.witness, seeds[n], bootstrap) for n in range(3)]
        return [*own, Librdkafka("rdk-", self.witness, seeds[3], bootstrap)]

    async def _strike_for(self, end_s: float) -> None:
        order: list[str] = []
        done = 0
        while done < len(self._kinds) or time.monotonic() < end_s:
            if not order:
                order = self._rng.sample(self._kinds, len(self._kinds))
            kind = order.pop()
            print(f"{time.strftime('%H:%M:%S')} {kind}", flush=True)
            await self._strike(kind)
            self.summary.strikes[kind] = self.summary.strikes.get(kind, 0) + 1
            done += 1
            # Often the next one comes while the cluster still heals.
            if self._rng.random() < 0.6:
                since_s = time.monotonic()
                await self._healed()
                await self.witness.until_acknowledged(since_s, 3, HEAL_S)
        await self._healed()

    async def _healed(self) -> None:
        if self._restarts:
            await asyncio.wait(set(self._restarts))
        await self.cluster.until_well(patience_s=HEAL_S)

    async def _strike(self, kind: str) -> None:
        controller = await self.cluster.controller()
        if controller is None and kind not in ("kill most", "kill all", "kill starting"):
            # What counts is a strike at one that is there.
            controller = await self._controller_healed()
        nodes = self.cluster.nodes
        if kind == "kill controller":
            assert controller is not None
            await self._kill_controller(controller)
        elif kind == "kill follower":
            others = [each for each in nodes if each is not controller]
            await self._kill([self._rng.choice(others)])
        elif kind == "kill most":
            await self._kill(self._rng.sample(nodes, len(nodes) // 2 + 1))
        elif kind == "kill all":
            await self._kill(nodes)
        elif kind == "pause controller":
            assert controller is not None
            await self._pause(controller)
        elif kind == "stop in order":
            assert controller is not None
            await self._stop(controller)
        elif kind in CUTS:
            await self._cut(kind, controller)
        else:
            await self._kill_starting(self._rng.choice(nodes))

    async def _cut(self, kind: str, controller: Node | None) -> None:
        hosts = self.cluster.hosts
        assert hosts is not None and controller is not None
        first = controller.node_id
        others = [each.node_id for each in self.cluster.nodes if each is not controller]
        other = self._rng.choice(others)
        if kind == "cut controller off":
            hosts.cut(first)
        elif kind == "cut follower off":
            hosts.cut(other)
        elif kind == "cut one way":
            hosts.cut_way(*self._rng.sample((first, other), 2))
        elif kind == "cut pair":
            hosts.cut_pair(first, other)
        else:
            for each in self.cluster.nodes:
                hosts.cut(each.node_id)
        await asyncio.sleep(self._rng.uniform(*CUT_S))
        hosts.heal()

    async def _controller_healed(self) -> Node:
        while True:
            await self._healed()
            found = await self.cluster.controller()
            if found is not None:
                return found

    async def _kill(self, victims: Sequence[Node]) -> None:
        await asyncio.gather(*(self._kill_one(each) for each in victims))
        for each in victims:
            await self._apart()
            self._restart(each)

    async def _kill_one(self, node: Node) -> None:
        self.summary.kills += int(node.runs)
        await node.kill()

    async def _kill_controller(self, controller: Node) -> None:
        async with self.operator.voters_complete:
            await self._measure_death(controller)
        self._restart(controller)

    async def _measure_death(self, controller: Node) -> None:
        others = [each for each in self.cluster.nodes if each is not controller]
        statuses = await self.cluster.statuses(others)
        complete = all(each is not None and each["state"] == "active" for each in statuses)
        begun_s = time.monotonic()
        await self._kill_one(controller)
        if complete:
            await self.witness.until_acknowledged(begun_s, 1, HEAL_S)
            first = min(
                each.answered_s for each in self.witness.acknowledgements if each.asked_s >= begun_s
            )
            self.summary.without_controller_s.append(first - begun_s)

    async def _pause(self, node: Node) -> None:
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(*PAUSE_S))
        node.signal(signal.SIGCONT)

    async def _stop(self, node: Node) -> None:
        if node.runs:
            await node.stop()
        self._restart(node)

    async def _kill_starting(self, node: Node) -> None:
        """Kill a node several times while it starts, each time a bit later."""
        for _ in range(3):
            await self._kill_one(node)
            if not node.runs:
                await node.start()
            await asyncio.sleep(self._rng.uniform(0.2, 2.0))
        await self._kill_one(node)
        self._restart(node)

    async def _apart(self) -> None:
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)) * self._rng.random())

    def _restart(self, node: Node) -> None:
        async def restart() -> None:
            if not node.runs:
                await node.start()

        assert self._tasks is not None
        task = self._tasks.create_task(restart())
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    # -- the verdict

    async def _judge(self) -> None:
        ledger, summary = self.witness.ledger, self.summary
        await self._healed()
        # What was proposed and given up may still be on its way; there are no new proposals.
        summary.version = (await self.cluster.until_equal())["version"]
        breaches = []
        for node in self.cluster.nodes:
            found = await topics_at(node)
            breaches += [f"node {node.node_id}: {each}" for each in ledger.breaches(found)]
        breaches += breaches_of_logs(self.cluster.nodes)
        assert not breaches, "\n".join(breaches[:40])
        self.cluster.expect_no_complaints()
        summary.snapshots = self._count_said("(Compacted the Raft log)")
        summary.installed = self._count_said("(Installed metadata snapshot)")
        counts = ledger.counts
        summary.acknowledged, summary.refused = counts.acknowledged, counts.refused
        summary.unknown, summary.reasons = counts.unknown, counts.reasons
        assert not [each for each in counts.reasons if "UnknownServerError" in each], counts.reasons

    def _count_said(self, pattern: str) -> int:
        return sum(len(each.said(pattern)) for each in self.cluster.nodes)


async def topics_at(node: Node) -> dict[str, TopicState]:
    """Return all topics as one node tells of them; each partition has a leader."""
    async with Admin([node.client_address]) as admin:
        view = await admin.describe_topics()
        found = {}
        for name, topic in view.topics.items():
            leaderless = [each.partition for each in topic.partitions if each.leader < 0]
            assert not leaderless, f"node {node.node_id}: nobody leads {name} {leaderless}"
            entries = await admin.describe_configs(Resource.TOPIC, name)
            found[name] = TopicState(
                topic_id=topic.topic_id,
                partitions=len(topic.partitions),
                replicas=topic.replication_factor,
                configs={
                    each.name: each.value or "" for each in entries if each.source == TOPIC_SOURCE
                },
            )
    return found


def breaches_of_logs(nodes: Sequence[Node]) -> list[str]:
    """Return where the logs tell of two leaders in a term, or of epochs that did not grow."""
    wrong = _shared(nodes, r"Leads the metadata quorum.*term=(\d+)", "term")
    wrong += _shared(nodes, r"Acting as controller.*controller_epoch=(\d+)", "controller epoch")
    for node in nodes:
        lives = [int(each) for each in node.said(r"Registered node=\d+ node_epoch=(\d+)")]
        if lives != sorted(set(lives)):
            wrong.append(f"node {node.node_id}: node epochs {lives} do not grow")
    return wrong


def _shared(nodes: Sequence[Node], pattern: str, what: str) -> list[str]:
    """Return which numbers more than one node had for itself."""
    owners: dict[int, set[int]] = {}
    for node in nodes:
        for number in map(int, node.said(pattern)):
            owners.setdefault(number, set()).add(node.node_id)
    return [f"{what} {n}: nodes {sorted(who)}" for n, who in owners.items() if len(who) > 1]


async def run_chaos(
    directory: Path, *, seed: int, duration_s: float, nodes: int = 3, hosts: Hosts | None = None
) -> Summary:
    """Make a cluster, harm it, judge it. With an even number of nodes one is no voter."""
    async with cluster_of(directory, nodes, start=False, hosts=hosts) as cluster:
        for node in cluster.nodes:
            node.log_bytes = LOG_BYTES
        await cluster.start()
        return await Chaos(cluster, seed).run(duration_s=duration_s)


def log_ends(directory: Path) -> str:
    """Return the ends of all logs, for a report of a failure."""
    paths = sorted(directory.glob("node-*/dlogd.log"))
    return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths)
