"""Rows about many partitions and many connections: what they cost and whom they disturb."""

import time

from bench.arena import Arena
from bench.peers.server import Server
from bench.rows.read import PARTITIONS, fill
from bench.rows.row import Numbers, Row, Target

CROWD = 1000


class ManyPartitionsRow(Row):
    """One topic of 2,000 partitions: idle cost, speed when all are written, memory."""

    name = "partitions-2000"
    title = "2,000 partitions on the node: CPU when idle; produce spread over all; RSS"
    targets = (
        Target(metric="idle_cpu_share", theirs=None, at_most=0.02),
        Target(metric="mb_per_s", at_least=1.0),
        Target(metric="rss_mb", at_most=0.3),
    )
    PARTITIONS = 2000
    IDLE_S, IDLE_QUICK_S = 20, 5
    RECORDS, RECORDS_QUICK = 1_000_000, 100_000

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}

    def open(self, arena: Arena, contender: str) -> None:
        """Start, create the topic, write to all partitions once."""
        super().open(arena, contender)
        server = arena.servers[contender]
        self._topics[contender] = arena.create_topic(server, self.PARTITIONS)
        time.sleep(2)
        self._produce(arena, contender)

    def _produce(self, arena: Arena, contender: str) -> Numbers:
        server = arena.servers[contender]
        where = ("--topic", self._topics[contender], "--partitions", self.PARTITIONS)
        count = arena.pick(self.RECORDS, self.RECORDS_QUICK)
        return arena.load("librdkafka", server, *where, "--records", count, "--spread")

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Produce, rest, then measure the idle server."""
        server = arena.servers[contender]
        result = self._produce(arena, contender)
        time.sleep(5)
        seconds = arena.pick(self.IDLE_S, self.IDLE_QUICK_S)
        before = server.usage().cpu_seconds
        time.sleep(seconds)
        usage = server.usage()
        result["idle_cpu_share"] = (usage.cpu_seconds - before) / seconds
        result["rss_mb"] = usage.rss_bytes / 1e6
        return result


def _steady(arena: Arena, server: Server, topic: str) -> Numbers:
    """The work of everybody else: one-record requests on 8 connections."""
    where = ("--topic", topic, "--partitions", PARTITIONS, "--connections", 8)
    return arena.load("requests", server, *where, "--requests", arena.pick(60_000, 6_000))


class CrowdRow(Row):
    """A thousand connections; memory for each, and the loss of speed of the others.

    Crowd and no crowd alternate inside one run, so that the comparison is of neighbours in time.
    """

    slow = False

    def __init__(self) -> None:
        self._topics: dict[str, str] = {}

    def open(self, arena: Arena, contender: str) -> None:
        """Start; slow consumers need something to read."""
        super().open(arena, contender)
        server = arena.servers[contender]
        topic = self._topics[contender] = arena.create_topic(server, PARTITIONS)
        if self.slow:
            fill(arena, server, topic)
        for _ in range(3):
            _steady(arena, server, topic)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Measure without the crowd, with it, and without it again."""
        server = arena.servers[contender]
        topic = self._topics[contender]
        before = _steady(arena, server, topic)
        rss_before = server.usage().rss_bytes
        options = ["--connections", CROWD, "--topic", topic, "--partitions", PARTITIONS]
        options += ["--slow"] if self.slow else []
        with arena.background("crowd", server, *options, ready=True):
            time.sleep(3)
            rss = server.usage().rss_bytes
            beside = _steady(arena, server, topic)
        time.sleep(1)
        after = _steady(arena, server, topic)
        alone = (before["requests_per_s"] + after["requests_per_s"]) / 2
        return {
            "kb_per_connection": max(0, rss - rss_before) / CROWD / 1024,
            "speed_beside_crowd": beside["requests_per_s"] / alone,
            "requests_per_s": alone,
        }


class IdleCrowdRow(CrowdRow):
    """Connections that asked for metadata once."""

    name = "connections-1000-idle"
    title = "1,000 idle connections: RSS for each; speed of the others"
    targets = (
        Target(metric="kb_per_connection", theirs=None, at_most=64),
        Target(metric="speed_beside_crowd", theirs=None, at_least=0.9),
    )


class SlowCrowdRow(CrowdRow):
    """Consumers that take 4 KiB per second of a response of 1 MiB."""

    slow = True
    name = "consumers-1000-slow"
    title = "1,000 slow consumers: RSS for each; speed of the others"
    targets = IdleCrowdRow.targets


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [ManyPartitionsRow(), IdleCrowdRow(), SlowCrowdRow()]
