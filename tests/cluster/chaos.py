"""A cluster of real processes that is harmed in all ways, with clients, and the verdict.

    python -m tests.cluster --minutes 15 --seed 7

What is checked of the metadata: nothing acknowledged is lost, nothing refused has an effect,
nothing is done twice (`ledger`); all images are equal; epochs only grow, and each has one leader,
as clients and logs (`observers`) and the nodes' images (`image_judges`) see them; ISRs are
replicas; one leader per term; all nodes are unfenced in the end; no log has a traceback. Of the
records (`load`): what `tests.histories.checkers` judges, the high watermarks among it; that nothing
is acknowledged by all while too few are in sync; that all replicas come back into every ISR, that
their files are the same, and their offsets in order (`replica_logs`).
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from dlog.client.admin import Admin, Resource
from tests.cluster.clients import Changer, Librdkafka, OwnClient, Witness
from tests.cluster.hosts import Hosts
from tests.cluster.image_journal import read_images
from tests.cluster.image_judges import MinIsrJudge, by_partition, judge_images
from tests.cluster.ledger import TopicState
from tests.cluster.load import TOPICS, Load, LoadSummary
from tests.cluster.node_disks import SAYS_SO, NodeDisks
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.cluster.observers import Book, Observer
from tests.cluster.operators import Operator
from tests.cluster.strikes import HEAL_S, StrikeCounts, Striker, Targets

TOPIC_SOURCE = 1  # of DescribeConfigs: set on the topic itself
LOG_BYTES = 50_000  # snapshots of the metadata come all the time
CALM_S = 1.0
LONG = ("rotten log",)  # these take a minute
LONG_S = 300
OVERRIDES = {"scrub.interval": "10s"}
CALM_PAUSE_S = (0.1, 0.5)  # of clients that change the metadata, beside those that write records


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run is to be."""

    seed: int
    duration_s: float
    nodes: int = 3
    replicas: int = 3
    """Of the records' topics; 0: no records."""
    min_isr: int = 2
    only: str = ""
    """Only strikes with this in their names."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Of every node's configuration."""


@dataclass(slots=True)
class Summary:
    """What a run did and saw."""

    seed: int
    struck: StrikeCounts = field(default_factory=StrikeCounts)
    acknowledged: dict[str, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    duration_s: float = 0.0
    version: int = 0
    snapshots: int = 0
    installed: int = 0
    truncated: int = 0
    dropped: int = 0
    changes_judged: int = 0
    below_minimum: int = 0
    load: LoadSummary | None = None

    def lines(self) -> list[str]:
        """Return it for people."""
        gaps = sorted(self.struck.without_controller_s)
        told = (
            f"p50={median(gaps):.2f} s p99={gaps[int(len(gaps) * 0.99)]:.2f} s"
            f" max={gaps[-1]:.2f} s of {len(gaps)}"
            if gaps
            else "never"
        )
        return [
            f"seed={self.seed} duration={self.duration_s:.0f} s kills={self.struck.kills}",
            f"strikes: {_counts(self.struck.strikes)}",
            *(self.load.lines() if self.load is not None else ()),
            f"changes acknowledged={sum(self.acknowledged.values())}: {_counts(self.acknowledged)}",
            f"an operator's: {_counts(self.operations)}",
            f"changes refused={sum(self.refused.values())}: {_counts(self.refused)}",
            f"changes unknown={sum(self.unknown.values())}: {_counts(self.unknown)}",
            f"reasons: {_counts(self.reasons)}",
            "kill of the controller, all others alive, to the next change that was asked for"
            f" and acknowledged: {told}",
            f"metadata version={self.version}, all images equal;"
            f" snapshots taken={self.snapshots}, from another node={self.installed}",
            f"followers' logs cut={self.truncated}, laggards dropped={self.dropped}",
            f"partitions' changes judged={self.changes_judged}, records asked for while too few"
            f" were in sync={self.below_minimum}",
        ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


class Chaos:
    """One run over a cluster. Life: `run` once."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        *,
        history: Path,
        disks: NodeDisks | None = None,
    ) -> None:
        self.cluster = cluster
        self.summary = Summary(plan.seed)
        self.witness = Witness()
        self._plan = plan
        self._rng = random.Random(plan.seed)
        self._disks = disks
        self.operator = Operator(cluster, random.Random(self._rng.getrandbits(64)))
        self._load: Load | None = None
        if plan.replicas:
            rng = random.Random(self._rng.getrandbits(64))
            self._load = Load(cluster, rng, history, replicas=plan.replicas, min_isr=plan.min_isr)

    async def run(self) -> Summary:
        """Strike for so long, each kind once at least, then heal and judge."""
        begun_s = time.monotonic()
        clients = self._clients()
        book = Book()
        observers = [Observer(node, book) for node in self.cluster.nodes]
        if self._load is not None:
            await self._load.start()
            self.operator.logs = tuple((key.topic, key.partition) for key in self._load.keys)
            self.operator.replicas = self._plan.replicas
        try:
            async with asyncio.TaskGroup() as tasks:
                striker = self._striker(tasks)
                changing = [tasks.create_task(each.run()) for each in clients]
                changing.append(tasks.create_task(self.operator.run()))
                if self._load is not None:
                    changing.append(tasks.create_task(self._load.run()))
                watching = [tasks.create_task(each.run()) for each in observers]
                watching.append(tasks.create_task(striker.keep_up()))
                await self._strike_until(striker, begun_s + self._plan.duration_s)
                for each in (*clients, self.operator, *([self._load] if self._load else ())):
                    each.stop()
                await asyncio.wait(changing)
                for task in watching:
                    task.cancel()
            await asyncio.gather(*(each.close() for each in clients))
            assert all(each.answers for each in observers)
            await self.operator.finish()
            await striker.healed_quietly()
            await self._judge()
        finally:
            if self._load is not None:
                await self._load.close()
        self.summary.operations = self.operator.counts
        self.summary.duration_s = time.monotonic() - begun_s
        return self.summary

    def _clients(self) -> list[Changer]:
        bootstrap = self.cluster.bootstrap
        seeds = [random.Random(self._rng.getrandbits(64)) for _ in range(4)]
        own = [OwnClient(f"own{n}-", self.witness, seeds[n], bootstrap) for n in range(3)]
        clients: list[Changer] = [*own, Librdkafka("rdk-", self.witness, seeds[3], bootstrap)]
        if self._load is not None:
            clients = clients[2:]
            for each in clients:
                each.pause_s = CALM_PAUSE_S
        return clients

    def _striker(self, tasks: asyncio.TaskGroup) -> Striker:
        targets = Targets(
            cluster=self.cluster,
            witness=self.witness,
            operator=self.operator,
            hosts=self.cluster.hosts,
            disks=self._disks,
            load=self._load,
        )
        striker = Striker(targets, self._rng, tasks)
        self.summary.struck = striker.counts
        return striker

    async def _strike_until(self, striker: Striker, end_s: float) -> None:
        order: list[str] = []
        only = self._plan.only
        kinds = [
            each
            for each in striker.kinds
            if only in each and (only or each not in LONG or self._plan.duration_s >= LONG_S)
        ]
        assert kinds, f"No strike has {only!r} in its name; there are {', '.join(striker.kinds)}"
        done = 0
        # Before the first one there is something to lose.
        await striker.healed()
        await asyncio.sleep(CALM_S)
        while done < len(kinds) or time.monotonic() < end_s:
            if not order:
                order = self._rng.sample(kinds, len(kinds))
            kind = order.pop()
            print(f"{time.strftime('%H:%M:%S')} {kind}", flush=True)
            await striker.strike(kind)
            done += 1
            # Often the next one comes while the cluster still heals.
            if self._rng.random() < 0.6:
                since_s = time.monotonic()
                await striker.healed()
                await self.witness.until_acknowledged(since_s, 3, HEAL_S)
        await striker.healed()

    # -- the verdict

    async def _judge(self) -> None:
        """Judge all there is before the first breach ends the run."""
        breaches = await self._judge_metadata()
        said = breaches_of_logs(self.cluster.nodes)
        said += self.cluster.complaints(allowed=SAYS_SO if self._disks is not None else ())
        self._count()
        if self._load is not None:
            breaches += await self._judge_records(self._load)
        breaches += self._judge_images()
        told = "\n".join((*self.summary.lines(), *breaches, *said[:40]))
        assert not breaches and not said, told

    async def _judge_metadata(self) -> list[str]:
        ledger, summary = self.witness.ledger, self.summary
        # What was proposed and given up may still be on its way; there are no new proposals.
        summary.version = (await self.cluster.until_equal())["version"]
        breaches = []
        for node in self.cluster.nodes:
            found = await topics_at(node)
            found = {name: state for name, state in found.items() if name not in TOPICS}
            breaches += [f"node {node.node_id}: {each}" for each in ledger.breaches(found)]
        counts = ledger.counts
        summary.acknowledged, summary.refused = counts.acknowledged, counts.refused
        summary.unknown, summary.reasons = counts.unknown, counts.reasons
        breaches += [each for each in counts.reasons if "UnknownServerError" in each]
        return breaches[:40]

    def _count(self) -> None:
        summary = self.summary
        summary.snapshots = self._count_said("(Compacted the Raft log)")
        summary.truncated = self._count_said("(Truncated log)")
        summary.dropped = self._count_said("(Removing lagging followers from the ISR)")
        summary.installed = self._count_said("(Installed metadata snapshot)")

    async def _judge_records(self, load: Load) -> list[str]:
        await load.finish()
        codes = {node.node_id: await node.stop() for node in self.cluster.nodes}
        load.compare_replicas({each.node_id: self._data_of(each) for each in self.cluster.nodes})
        self.summary.load = found = load.judge()
        breaches = found.first_texts()
        return breaches + [f"node {node} ended with {code}" for node, code in codes.items() if code]

    def _judge_images(self) -> list[str]:
        """Judge what the nodes have written of their images, and what was acknowledged beside."""
        paths = [each.images for each in self.cluster.nodes if each.images is not None]
        assert len(paths) == len(self.cluster.nodes)
        seen = by_partition(each for path in paths for each in read_images(path))
        breaches = judge_images(seen)
        self.summary.changes_judged = sum(map(len, seen.values()))
        if self._load is not None:
            judge = MinIsrJudge(seen)
            breaches += judge.judge(self._load.recorder.history.sends)
            self.summary.below_minimum = judge.asked
        return breaches[:40]

    def _data_of(self, node: Node) -> list[Path]:
        if self._disks is None:
            return [node.data]
        return self._disks.data_of(node.node_id)

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
    wrong = _shared(nodes, r"Became leader of the metadata quorum.*term=(\d+)", "term")
    wrong += _shared(nodes, r"Became controller.*controller_epoch=(\d+)", "controller epoch")
    for node in nodes:
        # What was committed is never cut, and nobody leads who may lack it. (Logs of the clients
        # of the metadata may have one replica, and that on a disk that fails.)
        cuts = node.said(
            r"((?:Truncating below the high watermark|Unclean election).* partition=data-.*)"
        )
        wrong += [f"node {node.node_id}: {each}" for each in cuts]
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
    directory: Path,
    plan: Plan,
    *,
    hosts: Hosts | None = None,
    disks: NodeDisks | None = None,
    history: Path | None = None,
) -> Summary:
    """Make a cluster, harm it, judge it. With an even number of nodes one is no voter."""
    async with cluster_of(
        directory, plan.nodes, {**OVERRIDES, **plan.overrides}, start=False, hosts=hosts
    ) as cluster:
        for node in cluster.nodes:
            node.log_bytes = LOG_BYTES
            node.images = directory / f"images-{node.node_id}.jsonl"
            if disks is not None:
                overrides = cluster.overrides_of(node)
                node.write_config({**overrides, **disks.overrides(node.node_id)})
        await cluster.start()
        chaos = Chaos(cluster, plan, history=history or directory / "history.jsonl", disks=disks)
        return await chaos.run()
