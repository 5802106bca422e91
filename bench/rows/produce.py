"""Rows in which records are produced at full speed, or one at a time."""

import time
from collections.abc import Sequence

from bench.arena import Arena
from bench.rows.row import Numbers, Row, Target

WARM_S, WARM_QUICK_S = 12, 2
GB = 1e9
SLOW_SHARE = 20
"""JetStream that flushes each message is loaded with so much less: a figure per second the same."""


class LoadRow(Row):
    """One load program with fixed arguments, into a fresh topic each time, after a warm-up."""

    def __init__(
        self,
        name: str,
        title: str,
        module: str,
        arguments: Sequence[object],
        *,
        count_option: str,
        count: int,
        quick_count: int,
        partitions: int,
        targets: Sequence[Target],
        contenders: Sequence[str] = ("dlog", "kafka"),
        nats_arguments: Sequence[object] = (),
    ) -> None:
        self.name, self.title = name, title
        self.contenders, self.targets = contenders, targets
        self._module, self._arguments = module, arguments
        self._count_option, self._partitions = count_option, partitions
        self._count, self._quick_count = count, quick_count
        self._nats_arguments = nats_arguments

    def _once(self, arena: Arena, contender: str) -> Numbers:
        server = arena.servers[contender]
        total = arena.pick(self._count, self._quick_count)
        if contender == "nats-always":
            total //= SLOW_SHARE
        count = (self._count_option, total)
        if server.name == "nats":
            with arena.measured(server) as costs:
                result = arena.load("nats", server, *self._nats_arguments, *count)
        else:
            with arena.topic(server, self._partitions) as topic:
                where = ("--topic", topic, "--partitions", self._partitions)
                with arena.measured(server) as costs:
                    result = arena.load(self._module, server, *where, *self._arguments, *count)
        cost, gigabytes = costs[0], result["value_bytes"] / GB if "value_bytes" in result else 0
        result["server_cpu_s"] = cost.server_cpu_s
        result["machine_cpu_s"] = cost.machine_cpu_s
        if gigabytes:
            result["cpu_s_per_gb"] = cost.server_cpu_s / gigabytes
        result["rss_mb"] = server.usage().rss_bytes / 1e6
        return result

    def open(self, arena: Arena, contender: str) -> None:
        """Start the server and load it for a while with what will be measured."""
        super().open(arena, contender)
        end = time.monotonic() + arena.pick(WARM_S, WARM_QUICK_S)
        while time.monotonic() < end:
            self._once(arena, contender)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Produce once."""
        return self._once(arena, contender)


WITH_NATS = ("dlog", "kafka", "nats-always", "nats")
ROWS = (
    LoadRow(
        "produce-1k",
        "produce, acks=1, librdkafka, 4 partitions, 1-KiB records",
        "librdkafka",
        ("--value-bytes", 1024),
        count_option="--records",
        count=2_000_000,
        quick_count=200_000,
        partitions=4,
        targets=(
            Target(metric="mb_per_s", at_least=2.5),
            Target(metric="cpu_s_per_gb", at_most=0.2),
            Target(metric="rss_mb", at_most=0.15),
        ),
    ),
    LoadRow(
        "produce-100",
        "the same, 100-byte records (the client is the bound)",
        "librdkafka",
        ("--value-bytes", 100),
        count_option="--records",
        count=5_000_000,
        quick_count=500_000,
        partitions=4,
        targets=(Target(metric="records_per_s", at_least=1.3),),
    ),
    LoadRow(
        "prebuilt",
        "prebuilt batches (64 x 1 KiB), 4 connections, 5 in flight",
        "requests",
        ("--connections", 4, "--in-flight", 5, "--records", 64, "--value-bytes", 1024),
        count_option="--requests",
        count=30_000,
        quick_count=3_000,
        partitions=4,
        targets=(Target(metric="mb_per_s", at_least=1.5),),
    ),
    *(
        LoadRow(
            f"produce-{name}-{codec}",
            f"produce, acks=1, librdkafka with {codec}, 4 partitions, lines of {size} bytes",
            "librdkafka",
            ("--value-bytes", size, "--codec", codec),
            count_option="--records",
            count=count,
            quick_count=count // 10,
            partitions=4,
            targets=(),
            contenders=("dlog", "dlog-checking", "kafka"),
        )
        for name, size, count in (("1k", 1024, 400_000), ("100", 100, 2_000_000))
        for codec in ("zstd", "lz4", "gzip")
    ),
    LoadRow(
        "pipelined",
        "one-record requests (100 B), 512 in flight on one connection",
        "requests",
        ("--connections", 1, "--in-flight", 512),
        count_option="--requests",
        count=200_000,
        quick_count=20_000,
        partitions=1,
        targets=(Target(metric="requests_per_s", at_least=5),),
        contenders=WITH_NATS,
        nats_arguments=("--in-flight", 512),
    ),
    LoadRow(
        "pipelined-1k",
        "the same with 1-KiB records (beside JetStream)",
        "requests",
        ("--connections", 1, "--in-flight", 512, "--value-bytes", 1024),
        count_option="--requests",
        count=100_000,
        quick_count=10_000,
        partitions=1,
        targets=(),
        contenders=WITH_NATS,
        nats_arguments=("--in-flight", 512, "--value-bytes", 1024),
    ),
    LoadRow(
        "connections-64",
        "one-record requests (100 B), 64 connections, one in flight each",
        "requests",
        ("--connections", 64, "--in-flight", 1),
        count_option="--requests",
        count=150_000,
        quick_count=20_000,
        partitions=4,
        targets=(
            Target(metric="requests_per_s", at_least=1.5),
            Target(metric="p99_us", at_most=0.5),
        ),
    ),
    LoadRow(
        "round-trip",
        "one-record round trip (100 B), one connection, idle server",
        "roundtrip",
        (),
        count_option="--requests",
        count=10_000,
        quick_count=2_000,
        partitions=1,
        targets=(
            Target(metric="p50_us", theirs="kafka-flush", at_most=0.5),
            Target(metric="p50_us", theirs="kafka", at_most=1.5),
            Target(metric="p50_us", ours="dlog-never", theirs="kafka", at_most=1.0),
        ),
        contenders=("dlog", "dlog-never", "kafka", "kafka-flush", "nats-always", "nats"),
    ),
)


def rows() -> list[Row]:
    """Return the rows of this kind."""
    return list(ROWS)
