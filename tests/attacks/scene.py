"""Scene of one attack: the nodes under attack, what is measured, and the bounds that must hold.

A test makes bounds by `Scene.bound`; all of them are measured before the first one may fail. In the
short form a bound that depends on the speed of the machine is measured and has no verdict, unless
it names a wide one for that form.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from dlog.client.admin import Admin
from tests.cluster.nodes import Cluster, Node, cluster_of
from tests.fakes.process_memory import anonymous_bytes, resident_bytes

T = TypeVar("T")

IS_LONG = os.environ.get("DLOG_ATTACKS") == "long"
LIMIT_S = 900.0 if IS_LONG else 120.0
"""No attack lasts longer."""
TOPIC = "attacked"
HARMS = ("Lease ended", "Lost leadership of the metadata quorum", "Gave up a node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bound of one attack, as the table shows it."""

    attack: str
    what: str
    measured: float
    limit: float | None
    """None: measured only, in this form of the attack."""
    unit: str
    is_least: bool = False
    """Whether the limit is the least allowed, not the most."""

    @property
    def is_missed(self) -> bool:
        """Whether the bound does not hold."""
        if self.limit is None:
            return False
        return self.measured < self.limit if self.is_least else self.measured > self.limit

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Attack, bound, measured value, verdict."""
        sign = ">=" if self.is_least else "<="
        limit = "measured only" if self.limit is None else f"{sign} {self.limit:,.6g} {self.unit}"
        verdict = "-" if self.limit is None else "MISSED" if self.is_missed else "holds"
        measured = f"{self.measured:,.4g} {self.unit}"
        return f"{self.attack}: {self.what}", limit, measured, verdict

    def encode(self) -> str:
        """Return the row as text that `decode` reads; reports carry text between processes."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "Row":
        """Return the row that `encode` wrote."""
        return cls(**json.loads(text))


class Scene:
    """One attack: its form, its folder, and its rows."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.is_long = IS_LONG
        self.rows: list[Row] = []

    def pick(self, *, short: T, long: T) -> T:
        """Return the value of this form of the attack."""
        return long if self.is_long else short

    def bound(
        self,
        what: str,
        measured: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        short: float | None = None,
        is_timing: bool = False,
    ) -> None:
        """Measure one bound. `is_timing`: the short form has `short` as its limit, or none."""
        is_least = at_least is not None
        limit = at_least if is_least else at_most
        if is_timing and not self.is_long:
            limit = short
        self.rows.append(
            Row(
                attack=self.name,
                what=what,
                measured=measured,
                limit=limit,
                unit=unit,
                is_least=is_least,
            )
        )

    def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run the attack for at most LIMIT_S; fail when a bound is missed."""

        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await work()

        asyncio.run(bounded())
        missed = ["  ".join(row.cells) for row in self.rows if row.is_missed]
        assert not missed, "\n".join(missed)

    @asynccontextmanager
    async def victims(
        self, count: int = 3, overrides: Mapping[str, str] | None = None
    ) -> AsyncIterator["Victims"]:
        """Start the nodes and a topic of one partition with a replica on each of them."""
        config = {"log.level": "info", **(overrides or {})}
        async with cluster_of(self.folder, count, config) as cluster:
            async with Admin(cluster.bootstrap) as admin:
                await admin.create_topic(TOPIC, partitions=1, replication_factor=count)
                found = await admin.describe_topic(TOPIC)
            leader = cluster.node(found.partitions[0].leader)
            await cluster.until_well()
            yield Victims(cluster, leader)
            cluster.expect_no_complaints()


class Victims:
    """The nodes under attack, and what they show."""

    def __init__(self, cluster: Cluster, leader: Node) -> None:
        self.cluster = cluster
        self.leader = leader
        """It leads the topic's partition: the node that is attacked."""
        host, _, port = leader.client_address.rpartition(":")
        self.address = (host, int(port))
        self.marks = self._lengths()

    def _lengths(self) -> list[int]:
        return [len(each.log) for each in self.cluster.nodes]

    def mark(self) -> None:
        """Count harm from now on."""
        self.marks = self._lengths()

    def harms(self) -> int:
        """Return how many leases and leaders were lost since the mark."""
        news = [node.log[mark:] for node, mark in zip(self.cluster.nodes, self.marks, strict=True)]
        return sum(text.count(event) for text in news for event in HARMS)

    def memory_bytes(self) -> int:
        """Return the anonymous memory of the node that is attacked."""
        return anonymous_bytes(self.leader.process)

    def resident_bytes(self) -> int:
        """Return the resident memory of the node that is attacked."""
        return resident_bytes(self.leader.process)

    async def metrics(self) -> str:
        """Return the metrics of the node that is attacked."""
        return (await self.leader.page("/metrics"))[1].decode()

    async def metric(self, name: str) -> float:
        """Return a metric without labels of the node that is attacked."""
        found = re.search(rf"^{name} (\S+)$", await self.metrics(), re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    @asynccontextmanager
    async def stalls(self) -> AsyncIterator[list[float]]:
        """Give a list that holds the longest stall of the loop in this block, in seconds."""
        found: list[float] = []
        before = await self.metrics()
        yield found
        found.append(longest_stall_s(before, await self.metrics()))


def longest_stall_s(before: str, after: str) -> float:
    """Return the longest stall between two looks, or the upper bound of its bucket.

    The exact value is known when no longer stall was before.
    """
    longest = [
        float(re.findall(r"^dlog_loop_delay_seconds_max (\S+)$", text, re.MULTILINE)[0])
        for text in (before, after)
    ]
    if longest[1] > longest[0]:
        return longest[1]
    pattern = r'^dlog_loop_delay_seconds_bucket\{le="([^"]+)"\} (\S+)$'
    counts = [dict(re.findall(pattern, text, re.MULTILINE)) for text in (before, after)]
    news = {name: float(counts[1][name]) - float(counts[0][name]) for name in counts[1]}
    total = max(news.values())
    return min(float(name) for name, count in news.items() if count == total)
