"""Producers and consumers of a cluster that is harmed, and the verdict on what they saw.

The history is a file, judged by `tests.histories`; `python -m tests.histories FILE` does it again.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dlog.client.admin import Admin, Resource
from dlog.client.retry import RetryPolicy
from dlog.client.views import PartitionView
from dlog.errors import DlogError, TopicAlreadyExistsError
from tests.cluster.nodes import LOOK_S, Cluster, Node
from tests.cluster.readers import Lookout, OwnReader, RdkReader, Reader, read_final
from tests.cluster.replica_logs import chain_breaches, differences
from tests.cluster.senders import Manner, Own, Rdk, Sender, SendLog
from tests.histories.checkers import check
from tests.histories.files import Facts, Recorder, Strike, Violation, load
from tests.histories.history import FinalLog, LogFacts, LogKey
from tests.histories.offset_checkers import watermarks_fallen_back

PARTITIONS = 2
TOPICS: Mapping[str, Mapping[str, str]] = {
    "data-usual": {},
    "data-rolling": {"segment.bytes": "65536"},
}
MANNERS = (
    (Own, Manner(idempotent=True)),
    (Own, Manner(idempotent=False)),
    (Own, Manner(idempotent=True, compression="lz4")),
    (Own, Manner(idempotent=False, acks=1)),
    (Rdk, Manner(idempotent=True)),
    (Rdk, Manner(idempotent=False)),
)
SHOWN_MAX = 8
WHOLE_S = 240.0
READERS_S = 240.0


@dataclass(slots=True)
class LoadSummary:
    """What producers and consumers were told in a run, and what was wrong with it."""

    sends: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    polls: int = 0
    slowest_s: float = 0.0
    fallen_back: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    breaches: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def first_texts(self) -> list[str]:
        """Return the first breaches of each kind."""
        return [
            text
            for name in self.breaches
            for text in [each for each in self.texts if each.startswith(name)][:SHOWN_MAX]
        ]

    def lines(self) -> list[str]:
        """Return it for people."""
        counted = {name: self.breaches.get(name, 0) for name in SHOWN}
        return [
            f"records: acknowledged={self.acknowledged} refused={self.refused}"
            f" unknown={self.unknown} slowest={self.slowest_s:.1f} s polls={self.polls}",
            "breaches: "
            + " ".join(f"{name}={count}" for name, count in {**counted, **self.breaches}.items()),
            f"watermarks fallen back in answers to Fetch, as Kafka's may: {self.fallen_back}",
            f"clients said: {dict(sorted(self.reasons.items()))}",
        ]


SHOWN = (
    "lost-write",
    "duplicate",
    "inconsistent-offsets",
    "unseen",
    "nonmonotonic-poll",
    "poll-skip",
    "nonmonotonic-send",
    "replicas-differ",
)


class Load:
    """All clients of one run. Life: `start`, `run` until `stop`, `finish`, `judge`."""

    def __init__(
        self, cluster: Cluster, rng: random.Random, path: Path, *, replicas: int, min_isr: int
    ) -> None:
        self.cluster = cluster
        self.replicas = replicas
        self.recorder = Recorder(path)
        self.log = SendLog(self.recorder)
        self.keys: list[LogKey] = []
        self.summary = LoadSummary()
        self._rng = rng
        self._min_isr = min_isr
        self._senders: list[Sender] = []
        self._readers: list[Reader] = []
        self._reading: list[asyncio.Task[None]] = []
        self._finals: list[FinalLog] = []
        self._replicas: dict[LogKey, tuple[int, ...]] = {}

    async def start(self) -> None:
        """Make the topics and the clients; the cluster is well."""
        async with Admin(self.cluster.bootstrap) as admin:
            for name, configs in TOPICS.items():
                await self._create(admin, name, configs)
        bootstrap = self.cluster.bootstrap
        for index, (kind, manner) in enumerate(MANNERS):
            rng = random.Random(self._rng.getrandbits(64))
            keys = self._rng.sample(self.keys, len(self.keys))
            self._senders.append(kind(index, manner, self.log, rng, keys, bootstrap))
        rng = random.Random(self._rng.getrandbits(64))
        manner = Manner(idempotent=False)
        self._newcomer = Own(len(MANNERS), manner, self.log, rng, self.keys, bootstrap)
        given = (self.recorder, self.log.counts, self.keys, bootstrap)
        self._readers = [
            OwnReader("own-steady", *given, self._rng, steady=True),
            OwnReader("own-anew", *given, self._rng, steady=False),
            RdkReader("rdk-steady", *given),
            Lookout(*given),
        ]

    async def _create(self, admin: Admin, name: str, configs: Mapping[str, str]) -> None:
        try:
            await admin.create_topic(
                name,
                partitions=PARTITIONS,
                replication_factor=self.replicas,
                configs={**configs, "min.insync.replicas": str(self._min_isr)},
            )
        except TopicAlreadyExistsError:
            pass  # by an attempt whose answer was lost
        topic = await admin.describe_topic(name)
        for number in range(PARTITIONS):
            key = LogKey(topic.topic_id, name, number)
            self.keys.append(key)
            self.recorder.add(Facts(key, LogFacts(replicas=self.replicas)))

    async def run(self) -> None:
        """Send until `stop`, and until every outcome is known; readers go on."""
        async with asyncio.TaskGroup() as tasks:
            self._reading = [asyncio.create_task(each.run()) for each in self._readers]
            for each in self._senders:
                tasks.create_task(each.run())

    def stop(self) -> None:
        """Send nothing more."""
        for each in self._senders:
            each.stop()

    def note_strike(self, what: str) -> None:
        """Let the history tell when something was done."""
        self.recorder.add(Strike(time.monotonic_ns(), what))

    async def until_written(self, patience_s: float) -> None:
        """Return when every log has acknowledged something that is asked for from now on."""
        await self.log.until_acknowledged(self.keys, time.monotonic_ns(), patience_s)

    @asynccontextmanager
    async def all_in_sync_wanted(self, patience_s: float) -> AsyncIterator[None]:
        """Let nothing be acknowledged by all for a while, unless all replicas are in sync."""
        await self._want_in_sync(self.replicas, patience_s)
        try:
            yield
        finally:
            await self._want_in_sync(self._min_isr, patience_s)

    async def until_too_few(self, patience_s: float) -> None:
        """Return when some log has a leader, and lacks a replica in sync; or after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while all(
                    view.leader < 0 or len(view.isr) == len(view.replicas)
                    for view in (await self.partitions()).values()
                ):
                    await asyncio.sleep(4 * LOOK_S)

    @asynccontextmanager
    async def newcomer(self) -> AsyncIterator[Callable[[], None]]:
        """Give what lets one more producer begin; at the end it has been told of all it wrote.

        The others soon wait for what they have under way, when nothing is acknowledged.
        """
        writing: list[asyncio.Task[None]] = []
        self._newcomer.is_stopping = False
        try:
            yield lambda: writing.append(asyncio.create_task(self._newcomer.run()))
        finally:
            self._newcomer.stop()
            await asyncio.gather(*writing)

    async def _want_in_sync(self, count: int, patience_s: float) -> None:
        policy = RetryPolicy(deadline_s=patience_s)
        async with Admin(self.cluster.bootstrap, policy=policy) as admin:
            for topic in TOPICS:
                values = {"min.insync.replicas": str(count)}
                await admin.alter_configs(Resource.TOPIC, topic, set_values=values)

    async def partitions(self) -> dict[LogKey, PartitionView]:
        """Return what any node tells of the logs; empty while none answers."""
        found = {}
        try:
            async with Admin(self.cluster.bootstrap) as admin:
                topics = (await admin.describe_topics(list(TOPICS))).topics
        except DlogError:
            return {}
        for key in self.keys:
            for each in topics[key.topic].partitions if key.topic in topics else ():
                if each.partition == key.partition:
                    found[key] = each
        return found

    async def leader(self) -> Node | None:
        """Return the leader of a log, if it runs."""
        views = await self.partitions()
        leaders = [each.leader for each in views.values() if each.leader > 0]
        if not leaders:
            return None
        node = self.cluster.node(self._rng.choice(leaders))
        return node if node.runs else None

    async def until_whole(self) -> None:
        """Return when all replicas of all logs are in sync; raise AssertionError if never."""
        deadline_s = time.monotonic() + WHOLE_S
        views: dict[LogKey, PartitionView] = {}
        while time.monotonic() < deadline_s:
            views = await self.partitions()
            whole = [
                each.leader > 0 and set(each.isr) == set(each.replicas) for each in views.values()
            ]
            if len(whole) == len(self.keys) and all(whole):
                self._replicas = {key: view.replicas for key, view in views.items()}
                return
            await asyncio.sleep(4 * LOOK_S)
        tails = "\n".join(each.tail() for each in self.cluster.nodes)
        raise AssertionError(f"replicas do not come back: {views}\n{tails}")

    async def finish(self) -> None:
        """Read all that is there, and let the readers come to the end; all has healed."""
        await self.until_whole()
        self._finals = await read_final(self.cluster.bootstrap, self.keys)
        for final in self._finals:
            self.recorder.add(final)
        for each in self._readers:
            each.finish({final.key: final.high_watermark for final in self._finals})
        async with asyncio.timeout(READERS_S):
            await asyncio.gather(*self._reading)

    def compare_replicas(self, data: Mapping[int, Sequence[Path]]) -> None:
        """Note where the files of replicas differ, or their offsets are in disorder.

        The nodes have ended, in good order.
        """
        logs = (self._finals, self._replicas, data)
        for text in (*differences(*logs), *chain_breaches(*logs)):
            self.recorder.add(Violation(text))

    def judge(self) -> LoadSummary:
        """Judge the history as it is in its file."""
        self.recorder.close()
        history = load([self.recorder.path])
        counts, found = self.log.counts, self.summary
        found.texts = check(history)
        found.texts += [f"fatal: {each}" for each in counts.reasons if "fatal" in each]
        for text in found.texts:
            name = text.partition(":")[0]
            found.breaches[name] = found.breaches.get(name, 0) + 1
        found.sends, found.polls = len(history.sends), len(history.polls)
        found.acknowledged, found.refused = counts.acknowledged, counts.refused
        found.unknown, found.reasons = counts.unknown, counts.reasons
        found.fallen_back = watermarks_fallen_back(history)
        found.slowest_s = self.log.gap_s_max
        return found

    async def close(self) -> None:
        """End what still reads."""
        for each in self._reading:
            each.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
