"""Rows about Spark: dlog's source against Spark's own Kafka source (jars), on the same cluster.

Both sides run in sessions of the same version of Spark with two cores, warmed, in turns; topics are
filled once and read by both.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench.arena import Arena
from bench.peers import spark
from bench.peers.server import Server
from bench.rows.row import Numbers, Row, Target

PARTITIONS = 4
OURS, JAR, ON_KAFKA = "spark-dlog", "spark-jar", "spark-jar-on-kafka"
SMALL = "spark-dlog-small"
"""Ours, with `smallBatchOffsets`: small micro-batches come with their plan."""
COMPILED = "spark-dlog-compiled"
"""Ours, where `python -m dlog.spark.compile_pyspark` was run."""
SOURCES = {OURS: "dlog", SMALL: "dlog", COMPILED: "dlog", JAR: "kafka", ON_KAFKA: "kafka"}
WARM_RUNS = 2
ANSWER_TIMEOUT_S = 300


class Session:
    """A Spark session as a process of its own. Life: until `close`."""

    def __init__(self, server: Server, contender: str) -> None:
        spark.install()
        source = SOURCES[contender]
        home = spark.compiled_home() if contender == COMPILED else None
        self._log = server.folder / f"{contender}.log"
        jars = ("--jars", spark.jars()) if source == "kafka" else ()
        where = ("--bootstrap", server.bootstrap, "--source", source)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load.spark_job", *where, *jars],
            cwd=server.folder,  # Spark leaves folders where it runs
            env={**spark.environment(home), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("wb"),
            text=True,
        )
        self._answer()

    def ask(self, do: str, **request: Any) -> Numbers:
        """Have something done."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Numbers:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark ended: {self._log.read_text(errors='replace')[-3000:]}")
        answer: Numbers = json.loads(line)
        return answer

    def close(self) -> None:
        """End the session and its processes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


class SparkRow(Row):
    """One kind of work for both sources."""

    contenders: Sequence[str] = (OURS, JAR)
    warm_runs = WARM_RUNS

    def __init__(self, name: str, title: str, targets: Sequence[Target]) -> None:
        self.name, self.title, self.targets = name, title, targets
        self._sessions: dict[str, Session] = {}
        self._topics: dict[str, str] = {}

    def server(self, arena: Arena, contender: str) -> Server:
        """Return the cluster of a contender, started by whoever comes first."""
        name = "kafka-cluster" if contender == ON_KAFKA else "dlog-cluster"
        if name not in arena.servers:
            arena.add(name).start()
        return arena.servers[name]

    def open(self, arena: Arena, contender: str) -> None:
        """Fill a topic if nobody has, start a session, run for warmth."""
        server = self.server(arena, contender)
        if server.bootstrap not in self._topics:
            self._topics[server.bootstrap] = self.prepare(arena, server)
        session = Session(server, contender)
        arena.ends.callback(session.close)
        self._sessions[contender] = session
        for _ in range(self.warm_runs):
            self.run(arena, contender)

    def prepare(self, arena: Arena, server: Server) -> str:
        """Make what both sides read; return its topic."""
        return arena.create_topic(server, PARTITIONS)

    def topic(self, arena: Arena, contender: str) -> str:
        """Return what `prepare` made."""
        return self._topics[self.server(arena, contender).bootstrap]

    def ask(self, contender: str, do: str, **request: Any) -> Numbers:
        """Have a session do something."""
        return self._sessions[contender].ask(do, **request)


def _speeds(result: Numbers, records: int, value_bytes: int) -> Numbers:
    cpu_s = result["jvm_cpu_s"] + result["python_cpu_s"]
    return {
        **result,
        "records": records,
        "records_per_s": records / result["seconds"],
        "mb_per_s": records * value_bytes / result["seconds"] / 1e6,
        "cpu_s_per_million": cpu_s / records * 1e6,
    }


class FilledRow(SparkRow):
    """Reads all of a topic that was filled before."""

    def __init__(
        self,
        name: str,
        title: str,
        do: Mapping[str, Any],
        *,
        value_bytes: int,
        codec: str = "none",
        at_least: float,
        contenders: Sequence[str] = (OURS, JAR),
        times: int = 1,
    ) -> None:
        speed = Target(metric="records_per_s", ours=OURS, theirs=JAR, at_least=at_least)
        cost = Target(metric="cpu_s_per_million", ours=OURS, theirs=JAR, at_most=1.0)
        super().__init__(name, title, (speed, cost))
        self.contenders = contenders
        self._do = dict(do)
        self._value_bytes, self._codec, self._times = value_bytes, codec, times

    def records(self, arena: Arena) -> int:
        """Return how many records there are."""
        full, quick = (4_000_000, 200_000) if self._value_bytes < 1000 else (1_000_000, 50_000)
        return arena.pick(full * self._times, quick)

    def prepare(self, arena: Arena, server: Server) -> str:
        """Fill a topic."""
        topic = super().prepare(arena, server)
        shape = ("--records", self.records(arena), "--value-bytes", self._value_bytes)
        where = ("--topic", topic, "--partitions", PARTITIONS)
        arena.load("fill", server, *where, *shape, "--codec", self._codec)
        return topic

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Read once."""
        topic, records = self.topic(arena, contender), self.records(arena)
        result = self.ask(contender, **self._do, topic=topic, records=records)
        return _speeds(result, records, self._value_bytes)


class SinkRow(SparkRow):
    """Writes what the JVM makes, into a fresh topic each time."""

    def __init__(self, name: str, title: str, *, value_bytes: int) -> None:
        speed = Target(metric="records_per_s", ours=OURS, theirs=JAR, at_least=1.0)
        cost = Target(metric="cpu_s_per_million", ours=OURS, theirs=JAR, at_most=1.0)
        super().__init__(name, title, (speed, cost))
        self._value_bytes = value_bytes

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Write once, and count what arrived."""
        server = self.server(arena, contender)
        full = (1_000_000, 50_000) if self._value_bytes < 1000 else (250_000, 20_000)
        records = arena.pick(*full)
        with arena.topic(server, PARTITIONS) as topic:
            shape = {"records": records, "value_bytes": self._value_bytes}
            result = self.ask(contender, "sink", topic=topic, **shape)
            there = arena.record_count(server, topic, PARTITIONS)
        if there != records:
            raise RuntimeError(f"{contender}: {there} of {records} records are there")
        return _speeds(result, records, self._value_bytes)


class PlanRow(SparkRow):
    """Plans a read of many partitions, and runs no task."""

    PARTITIONS = 1_000

    def __init__(self) -> None:
        super().__init__(
            "spark-plan-1000",
            "Spark: planning a batch read of 1,000 partitions",
            (Target(metric="seconds", ours=OURS, theirs=None, at_most=1.0),),
        )

    def prepare(self, arena: Arena, server: Server) -> str:
        """Make a topic of many partitions, each with a record: else there is nothing to plan."""
        topic = arena.create_topic(server, self.PARTITIONS)
        where = ("--topic", topic, "--partitions", self.PARTITIONS)
        shape = ("--records", self.PARTITIONS, "--value-bytes", 100, "--chunk", 1)
        arena.load("fill", server, *where, *shape)
        return topic

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Plan once."""
        return self.ask(contender, "plan", topic=self.topic(arena, contender))


class MicroBatchRow(SparkRow):
    """What a batch of a streaming query costs that has next to nothing to do."""

    BATCHES, RECORDS_PER_BATCH = 40, 20
    contenders = (OURS, SMALL, JAR)

    def __init__(self) -> None:
        super().__init__(
            "spark-micro-batch",
            "Spark: a micro-batch of 20 records of 2 partitions, checkpoint included",
            tuple(
                Target(metric="batch_ms", ours=each, theirs=JAR, at_most=1.2)
                for each in (OURS, SMALL)
            ),
        )

    def prepare(self, arena: Arena, server: Server) -> str:
        """Fill two partitions a little."""
        topic = arena.create_topic(server, 2)
        records = self.BATCHES * self.RECORDS_PER_BATCH
        shape = ("--records", records, "--value-bytes", 100, "--chunk", self.RECORDS_PER_BATCH)
        arena.load("fill", server, "--topic", topic, "--partitions", 2, *shape)
        return topic

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Go through all of it in small batches.

        Counted is what a batch takes once the query runs; `start_s` is the rest: its start and end.
        """
        options = {"maxOffsetsPerTrigger": str(self.RECORDS_PER_BATCH)}
        if contender == SMALL:
            options["smallBatchOffsets"] = "1000"
        records = self.BATCHES * self.RECORDS_PER_BATCH
        what = {"sink": "noop", "options": options, "records": records}
        result = self.ask(contender, "stream", topic=self.topic(arena, contender), **what)
        return {**result, "start_s": result["seconds"] - self.BATCHES * result["batch_ms"] / 1000}


class PipelineRow(FilledRow):
    """A pipeline over all of a topic: to Parquet, or from there into a fresh topic."""

    def __init__(self, do: str, title: str) -> None:
        super().__init__(
            f"spark-{do}-1k", title, {"do": do}, value_bytes=1024, at_least=0, contenders=(OURS,)
        )
        self.targets = ()

    def records(self, arena: Arena) -> int:
        """Return how many records there are."""
        return arena.pick(250_000, 50_000)

    def run(self, arena: Arena, contender: str) -> Numbers:
        """Do it once; what is replayed is archived before the first time."""
        server, topic = self.server(arena, contender), self.topic(arena, contender)
        records, folder = self.records(arena), str(server.folder / "spark-archive")
        what = {"topic": topic, "records": records, "folder": folder}
        if self._do["do"] == "archive":
            return self._rated(self.ask(contender, "archive", **what), records)
        if not (server.folder / "spark-archive").exists():
            self.ask(contender, "archive", **what)
        with arena.topic(server, PARTITIONS) as target:
            result = self.ask(contender, "replay", **what, target=target)
            there = arena.record_count(server, target, PARTITIONS)
        if there != records:
            raise RuntimeError(f"{there} of {records} records are there")
        return self._rated(result, records)

    def _rated(self, result: Numbers, records: int) -> Numbers:
        found = _speeds(result, records, self._value_bytes)
        cpu_s = result["jvm_cpu_s"] + result["python_cpu_s"]
        return {**found, "mb_per_cpu_s": records * self._value_bytes / cpu_s / 1e6}


SIZES = {"100": (100, "100-byte"), "1k": (1024, "1-KiB")}


def _batch_rows() -> list[Row]:
    rows: list[Row] = []
    for suffix, (value_bytes, words) in SIZES.items():
        for codec in ("none", "zstd"):
            zstd = codec == "zstd"
            rows.append(
                FilledRow(
                    f"spark-batch-{'zstd-' if zstd else ''}{suffix}",
                    f"Spark: batch read of {words} records{', zstd' if zstd else ''}",
                    {"do": "batch"},
                    value_bytes=value_bytes,
                    codec=codec,
                    at_least=1.5,
                    contenders=(OURS, JAR) if zstd else (OURS, JAR, ON_KAFKA),
                )
            )
    return rows


def _stream_rows() -> list[Row]:
    return [
        FilledRow(
            f"spark-stream-{sink}-{suffix}",
            f"Spark: AvailableNow to {sink}, {words} records",
            {"do": "stream", "sink": sink},
            value_bytes=value_bytes,
            at_least=at_least,
            contenders=(OURS, COMPILED, JAR),
            # The start of a query takes a second or two (`MicroBatchRow` gives it by itself).
            times=4,
        )
        for sink, at_least in (("noop", 1.5), ("parquet", 1.2))
        for suffix, (value_bytes, words) in SIZES.items()
    ]


def rows() -> list[Row]:
    """Return the rows of this kind."""
    sinks = [
        SinkRow(f"spark-sink-{suffix}", f"Spark: batch write of {words} records", value_bytes=size)
        for suffix, (size, words) in SIZES.items()
    ]
    pipelines = [
        PipelineRow("archive", "Spark: archive of 1-KiB records to Parquet (zstd)"),
        PipelineRow("replay", "Spark: replay of archived 1-KiB records into a topic"),
    ]
    return [*_batch_rows(), *_stream_rows(), *sinks, PlanRow(), MicroBatchRow(), *pipelines]
