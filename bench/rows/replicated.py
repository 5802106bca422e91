"""Rows of three nodes with three replicas of each record: throughput, latency, what it costs.

Every record is on at least two nodes before it is acknowledged (acks=all, `min.insync.replicas=2`),
at dlog flushed there, at Kafka in memory, as it comes.
"""

import time
from collections.abc import Sequence

from bench.arena import Arena
from bench.peers.server import Server
from bench.rows.produce import GB
from bench.rows.row import Numbers, Row, Target

OURS, THEIRS = "dlog-cluster", "kafka-cluster"
CONTENDERS = (OURS, THEIRS)
PARTITIONS = 4
IDLE_PARTITIONS = 1_000
IDLE_TOPICS = 10
WARM_S, WARM_QUICK_S = 8, 2
WARM_JAVA_S = 35
"""A virtual machine compiles what is hot, by and by: a cold Kafka is half as fast as a warm one."""
NATS = "nats-cluster"
NATS_SHARE = 10
"""JetStream that flushes each message is loaded with so much less: a figure per second the same."""


def ratio(metric: str, *, at_least: float | None = None, at_most: float | None = None) -> Target:
    """Return a bound on dlog's number divided by Kafka's."""
    return Target(metric=metric, ours=OURS, theirs=THEIRS, at_least=at_least, at_most=at_most)


def warm_seconds(arena: Arena, contender: str) -> int:
    """Return for how long a contender is loaded before it is measured."""
    return arena.pick(WARM_JAVA_S if contender == THEIRS else WARM_S, WARM_QUICK_S)


def number(metric: str, at_most: float) -> Target:
    """Return a bound on dlog's own number."""
    return Target(metric=metric, ours=OURS, theirs=None, at_most=at_most)


class ReplicatedRow(Row):
    """One load program with fixed arguments, into a fresh topic each time, after a warm-up."""

    contenders: Sequence[str] = CONTENDERS
    runs = 3

    def __init__(
        self,
        name: str,
        title: str,
        module: str,
        arguments: Sequence[object],
        *,
        count_option: str = "--requests",
        count: int,
        quick_count: int,
        partitions: int = PARTITIONS,
        targets: Sequence[Target],
        idle_partitions: int = 0,
        nats_arguments: Sequence[object] | None = None,
    ) -> None:
        self.name, self.title, self.targets = name, title, targets
        self._module, self._arguments = module, arguments
        self._count_option, self._count, self._quick_count = count_option, count, quick_count
        self._partitions, self._idle_partitions = partitions, idle_partitions
        self._nats_arguments = nats_arguments
        if nats_arguments is not None:
            self.contenders = (*CONTENDERS, NATS)

    def _load(self, arena: Arena, server: Server, count: int) -> Numbers:
        how_many = (self._count_option, count)
        if server.name == "nats":
            own = (*(self._nats_arguments or ()), "--replicas", server.replicas)
            how_many = (self._count_option, max(1, count // NATS_SHARE))
            with arena.measured(server) as costs:
                result = arena.load("nats", server, *own, *how_many)
        else:
            with arena.topic(server, self._partitions) as topic:
                where = ("--topic", topic, "--partitions", self._partitions, "--acks", -1)
                with arena.measured(server) as costs:
                    result = arena.load(self._module, server, *where, *self._arguments, *how_many)
        cost = costs[0]
        result["server_cpu_s"], result["kernel_cpu_s"] = cost.server_cpu_s, cost.kernel_cpu_s
        result["machine_cpu_s"] = cost.machine_cpu_s
        if gigabytes := result.get("value_bytes", 0) / GB:
            result["cpu_s_per_gb"] = (cost.server_cpu_s + cost.kernel_cpu_s) / gigabytes
        result["rss_mb"] = server.usage().rss_bytes / 1e6
        return result

    def open(self, arena: Arena, contender: str) -> None:
        """Start three nodes, make the idle partitions, and load for a while."""
        super().open(arena, contender)
        server = arena.servers[contender]
        each = arena.pick(self._idle_partitions, self._idle_partitions // 10) // IDLE_TOPICS
        for _ in range(IDLE_TOPICS if each else 0):
            arena.create_topic(server, each)
        end = time.monotonic() + warm_seconds(arena, contender)
        while time.monotonic() < end:
            self._load(arena, server, arena.pick(self._count, self._quick_count) // 2)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Produce once."""
        count = arena.pick(self._count, self._quick_count)
        return self._load(arena, arena.servers[contender], count)


class EndToEndRow(Row):
    """Latency from producing to consuming at a rate: fixed, or a share of what is possible."""

    contenders = CONTENDERS
    runs = 3
    SECONDS, SECONDS_QUICK = 10, 3
    PEAK_REQUESTS, PEAK_REQUESTS_QUICK = 40_000, 4_000
    targets = (
        ratio("p50_us", at_most=1),
        ratio("p99_us", at_most=0.5),
        ratio("p999_us", at_most=0.5),
    )

    def __init__(self, name: str, title: str, *, rate: float = 0, peak_share: float = 0) -> None:
        self.name, self.title = name, title
        self._rate, self._peak_share = rate, peak_share
        self._rates: dict[str, float] = {}

    def open(self, arena: Arena, contender: str) -> None:
        """Start three nodes, warm them by finding out what is possible, then at the rate."""
        super().open(arena, contender)
        server = arena.servers[contender]
        end = time.monotonic() + warm_seconds(arena, contender)
        peak = 0.0
        while time.monotonic() < end:
            with arena.topic(server, PARTITIONS) as topic:
                where = ("--topic", topic, "--partitions", PARTITIONS, "--acks", -1)
                count = arena.pick(self.PEAK_REQUESTS, self.PEAK_REQUESTS_QUICK)
                many = ("--connections", 64, "--requests", count)
                peak = max(peak, arena.load("requests", server, *where, *many)["requests_per_s"])
        self._rates[contender] = self._rate or peak * self._peak_share
        self.run(arena, contender)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Produce and consume for a while."""
        server, rate = arena.servers[contender], self._rates[contender]
        seconds = arena.pick(self.SECONDS, self.SECONDS_QUICK)
        with arena.topic(server, PARTITIONS) as topic:
            where = ("--topic", topic, "--partitions", PARTITIONS, "--acks", -1)
            steady = ("--rate", rate, "--requests", int(rate * seconds))
            return arena.load("endtoend", server, *where, *steady)


class FollowerCostRow(Row):
    """The same load at one, two and three replicas: what each more costs over all nodes."""

    name = "r3-follower-cost"
    title = (
        "what one more follower costs: prebuilt batches at 1, 2 and 3 replicas, CPU of all nodes"
    )
    contenders = CONTENDERS
    runs = 3
    REQUESTS, REQUESTS_QUICK = 8_000, 800
    SHAPE = ("--connections", 4, "--in-flight", 5, "--records", 64, "--value-bytes", 1024)

    def open(self, arena: Arena, contender: str) -> None:
        """Start three nodes and warm them."""
        super().open(arena, contender)
        self.run(arena, contender)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Produce at each replication factor."""
        server = arena.servers[contender]
        result: Numbers = {}
        for replicas in (1, 2, 3):
            with arena.topic(server, PARTITIONS, replicas=replicas) as topic:
                where = ("--topic", topic, "--partitions", PARTITIONS, "--acks", -1)
                count = arena.pick(self.REQUESTS, self.REQUESTS_QUICK)
                with arena.measured(server) as costs:
                    found = arena.load("requests", server, *where, *self.SHAPE, "--requests", count)
            cost = costs[0].server_cpu_s + costs[0].kernel_cpu_s
            result[f"r{replicas}_cpu_s_per_gb"] = cost / (found["value_bytes"] / GB)
            result[f"r{replicas}_mb_per_s"] = found["mb_per_s"]
        result["follower_cpu_s_per_gb"] = (
            result["r3_cpu_s_per_gb"] - result["r1_cpu_s_per_gb"]
        ) / 2
        return result


class TrickleRow(Row):
    """5,000 partitions with three replicas: idle, and with a record here and there on all."""

    name = "r3-partitions-5000"
    title = (
        "5,000 partitions with 3 replicas: CPU of a node when idle; 1,000 records/s spread over"
        " all, beside the same on 10 partitions"
    )
    contenders = (OURS,)
    runs = 3
    targets = (number("idle_cpu_share", 0.05), number("p99_times", 2))
    TOPICS, EACH, EACH_QUICK = 5, 1_000, 100
    FEW = 10
    RATE = 1_000
    SECONDS, SECONDS_QUICK = 10, 3
    IDLE_S, IDLE_QUICK_S = 15, 4

    def __init__(self) -> None:
        self._topics: dict[str, list[str]] = {}

    def open(self, arena: Arena, contender: str) -> None:
        """Start, create the topics, write to each partition, let all settle."""
        super().open(arena, contender)
        server = arena.servers[contender]
        each = arena.pick(self.EACH, self.EACH_QUICK)
        many = [arena.create_topic(server, each) for _ in range(self.TOPICS)]
        self._topics[contender] = [*many, arena.create_topic(server, self.FEW)]
        self.run(arena, contender)

    def _trickle(self, arena: Arena, server: Server, topics: list[str], partitions: int) -> Numbers:
        seconds = arena.pick(self.SECONDS, self.SECONDS_QUICK)
        where = ("--topic", ",".join(topics), "--partitions", partitions, "--acks", -1)
        steady = ("--rate", self.RATE, "--requests", self.RATE * seconds, "--value-bytes", 100)
        return arena.load("paced", server, *where, *steady)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Trickle on few and on all, then rest."""
        server = arena.servers[contender]
        *many, few = self._topics[contender]
        alone = self._trickle(arena, server, [few], self.FEW)
        spread = self._trickle(arena, server, many, arena.pick(self.EACH, self.EACH_QUICK))
        time.sleep(3)
        seconds = arena.pick(self.IDLE_S, self.IDLE_QUICK_S)
        before = server.usage().cpu_seconds
        time.sleep(seconds)
        usage = server.usage()
        return {
            "few_p50_us": alone["p50_us"],
            "few_p99_us": alone["p99_us"],
            "p50_us": spread["p50_us"],
            "p99_us": spread["p99_us"],
            "p99_times": spread["p99_us"] / alone["p99_us"],
            "idle_cpu_share": (usage.cpu_seconds - before) / seconds / server.replicas,
            "rss_mb": usage.rss_bytes / 1e6,
        }


PREBUILT = ("--connections", 4, "--in-flight", 5, "--records", 64, "--value-bytes", 1024)
MANY = ("--connections", 64, "--in-flight", 1)


def _produce_rows() -> list[Row]:
    return [
        ReplicatedRow(
            "r3-produce-1k",
            "three nodes, 3 replicas, acks=all: produce, librdkafka, 4 partitions, 1-KiB records",
            "librdkafka",
            ("--value-bytes", 1024),
            count_option="--records",
            count=600_000,
            quick_count=100_000,
            targets=(
                ratio("mb_per_s", at_least=2),
                ratio("cpu_s_per_gb", at_most=0.3),
                ratio("rss_mb", at_most=0.15),
            ),
        ),
        ReplicatedRow(
            "r3-produce-100",
            "the same, 100-byte records",
            "librdkafka",
            ("--value-bytes", 100),
            count_option="--records",
            count=3_000_000,
            quick_count=300_000,
            targets=(ratio("records_per_s", at_least=1.5),),
        ),
    ]


def _request_rows(
    suffix: str, idle_partitions: int, bounds: Sequence[Sequence[Target]]
) -> list[Row]:
    crowded = f", beside {idle_partitions:,} idle partitions" if idle_partitions else ""
    prebuilt, round_trip, connections = bounds
    nats: Sequence[object] | None = None if idle_partitions else ("--in-flight", 1)
    return [
        ReplicatedRow(
            f"r3-prebuilt{suffix}",
            "3 replicas, acks=all: prebuilt batches (64 x 1 KiB), 4 connections, 5 in flight"
            f"{crowded}",
            "requests",
            PREBUILT,
            count=8_000,
            quick_count=1_000,
            targets=prebuilt,
            idle_partitions=idle_partitions,
        ),
        ReplicatedRow(
            f"r3-round-trip{suffix}",
            f"3 replicas, acks=all: one-record round trip (100 B), idle servers{crowded}",
            "roundtrip",
            (),
            count=5_000,
            quick_count=500,
            partitions=1,
            targets=round_trip,
            idle_partitions=idle_partitions,
            nats_arguments=nats,
        ),
        ReplicatedRow(
            f"r3-connections-64{suffix}",
            "3 replicas, acks=all: one-record requests (100 B), 64 connections, one in flight each"
            f"{crowded}",
            "requests",
            MANY,
            count=60_000,
            quick_count=6_000,
            targets=connections,
            idle_partitions=idle_partitions,
            nats_arguments=None if nats is None else ("--in-flight", 64),
        ),
    ]


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return [
        *_produce_rows(),
        *_request_rows(
            "",
            0,
            (
                (ratio("mb_per_s", at_least=3), ratio("p99_us", at_most=0.3)),
                (ratio("p50_us", at_most=0.9), ratio("p99_us", at_most=0.4)),
                (ratio("requests_per_s", at_least=1.5),),
            ),
        ),
        *_request_rows(
            "-crowded",
            IDLE_PARTITIONS,
            (
                (ratio("mb_per_s", at_least=5),),
                (ratio("p50_us", at_most=0.4),),
                (ratio("requests_per_s", at_least=3),),
            ),
        ),
        EndToEndRow(
            "r3-latency-1000",
            "3 replicas, acks=all: from producing to consuming at 1,000 records/s",
            rate=1_000,
        ),
        EndToEndRow(
            "r3-latency-peak",
            "the same at 20 % of what each side takes over 64 connections",
            peak_share=0.2,
        ),
        FollowerCostRow(),
        TrickleRow(),
    ]
