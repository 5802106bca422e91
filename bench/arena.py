"""Where a row is run: the servers that take part, load programs, topics, what the machine used."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.peers.cluster import NODES, DlogCluster, KafkaCluster, NatsCluster
from bench.peers.dlog import CheckingDlogServer, DlogServer
from bench.peers.hosts import DLOG, KAFKA, Hosts
from bench.peers.kafka import KafkaServer
from bench.peers.nats import NatsServer
from bench.peers.server import ROOT, TICKS_PER_SECOND, Server

FLUSH_EACH = {"log.flush.interval.messages": "1"}
# Who can take part, and in which configuration.
CONTENDERS: dict[str, Callable[[Path], Server]] = {
    "dlog": DlogServer,
    "dlog-never": lambda folder: DlogServer(folder, overrides={"flush.policy": "never"}),
    "dlog-checking": CheckingDlogServer,
    "kafka": KafkaServer,
    "kafka-flush": lambda folder: KafkaServer(folder, overrides=FLUSH_EACH),
    "dlog-cluster": DlogCluster,
    "kafka-cluster": KafkaCluster,
    "dlog-hosts": lambda folder: DlogCluster(folder, hosts=Hosts(NODES, DLOG)),
    "kafka-hosts": lambda folder: KafkaCluster(folder, hosts=Hosts(NODES, KAFKA)),
    "nats": NatsServer,
    "nats-always": lambda folder: NatsServer(folder, sync="always"),
    "nats-cluster": lambda folder: NatsCluster(folder, sync="always"),
}
DESCRIPTIONS = {
    "dlog": "dlogd at its defaults: on stable storage before the answer",
    "dlog-never": "dlogd with `flush.policy: never`",
    "dlog-checking": "dlogd with topics that have `compressed.records.validate=true`",
    "kafka": "Apache Kafka 4.3, one KRaft node at its defaults: no fsync before the answer",
    "kafka-flush": "the same with `log.flush.interval.messages=1`: fsync before the answer",
    "dlog-cluster": "three dlogd at their defaults, all of them voters",
    "kafka-cluster": "three Apache Kafka 4.3 at their defaults, each broker and controller",
    "dlog-hosts": "three dlogd at their defaults, each in a network namespace of its own",
    "kafka-hosts": "three Apache Kafka 4.3 at their defaults, likewise",
    "nats": "NATS JetStream, file store, flushed every two minutes (its default)",
    "nats-always": "NATS JetStream, file store, `sync_interval: always`",
    "nats-cluster": "three of these, three replicas of each message",
}


class Client(NamedTuple):
    """A client library as it takes part: its program in `bench.load.clients`, and how it is set."""

    program: str
    description: str
    settings: Sequence[str] = ()


CLIENTS = {
    "dlog-blocking": Client(
        "dlog_blocking", "`dlog.client.blocking` at its defaults: idempotent, checksums verified"
    ),
    "dlog-asyncio": Client("dlog_asyncio", "`dlog.client` for asyncio, likewise"),
    "confluent-kafka": Client(
        "confluent", "confluent-kafka as it ships: not idempotent, no checksums verified"
    ),
    "confluent-tuned": Client(
        "confluent",
        "the same with `fetch.queue.backoff.ms=1`: else it stops fetching for a second whenever"
        " 100,000 records wait to be read",
        ("fetch.queue.backoff.ms=1",),
    ),
    "kafka-python": Client(
        "kafka_python", "kafka-python as it ships: idempotent, checksums verified"
    ),
    "aiokafka": Client(
        "aiokafka_client", "aiokafka as it ships: not idempotent, checksums verified"
    ),
}
DESCRIPTIONS |= {name: client.description for name, client in CLIENTS.items()}
DESCRIPTIONS |= {
    "spark-dlog": "`dlog.spark` in Spark 4.2.0, `local[2]`, against three dlogd",
    "spark-dlog-small": "the same with `smallBatchOffsets`: small batches come with their plan",
    "spark-dlog-compiled": "the same after `python -m dlog.spark.compile_pyspark`",
    "spark-jar": "Spark's own Kafka source (spark-sql-kafka-0-10), so too, against the same",
    "spark-jar-on-kafka": "the same against three Apache Kafka 4.3",
    "dlog-parts": "parts of dlogd in a process of their own, without a server",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds that something took: the server's own, and the whole machine's."""

    server_cpu_s: float
    machine_cpu_s: float
    kernel_cpu_s: float  # of the kernel's own workers, which write for whoever does not wait


def _machine_cpu_s() -> float:
    """Return the busy time of all cores since the machine started (user, system, interrupts)."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:7])) / TICKS_PER_SECOND


KERNEL_PARENT = 2
KERNEL_WORKERS = ("kworker", "ksoftirqd", "jbd2", "kswapd")


def _kernel_cpu_s() -> float:
    """Return what the kernel's workers that are there now have used since they began."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text(encoding="ascii", errors="replace").rpartition(")")
        except OSError:
            continue  # it has just ended
        fields = rest.split()
        if int(fields[1]) == KERNEL_PARENT and head.partition("(")[2].startswith(KERNEL_WORKERS):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_SECOND


class Arena:
    """Servers and load programs of one row. `folder` is emptied at the start and at the end."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.servers: dict[str, Server] = {}
        self._numbers = itertools.count()
        self._admins: dict[str, AdminClient] = {}
        # Filled topics that contenders of a row share, by the number of records.
        self.topics: dict[int, str] = {}
        # What has to end before the servers.
        self.ends = contextlib.ExitStack()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def pick(self, full: int, quick: int) -> int:
        """Return the size of a load: `full`, or `quick` when the run is a quick one."""
        return quick if self.quick else full

    def add(self, contender: str) -> Server:
        """Make the server of a contender, not started yet, in a fresh folder."""
        server = CONTENDERS[contender](self.folder / contender)
        self.servers[contender] = server
        return server

    def close(self) -> None:
        """End all servers and delete what they wrote."""
        self.ends.close()
        for server in self.servers.values():
            with contextlib.suppress(OSError):
                server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def load(self, module: str, server: Server, *arguments: object) -> dict[str, float]:
        """Run a load program against `server` and return its result."""
        return self.program(module, "--bootstrap", server.bootstrap, *arguments)

    def program(self, module: str, *arguments: object) -> dict[str, float]:
        """Run a program of `bench.load` and return its result."""
        command = [sys.executable, "-m", f"bench.load.{module}", *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command[2:])}: {done.stderr[-2000:]}")
        result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return result

    @contextlib.contextmanager
    def background(
        self, module: str, server: Server, *arguments: object, ready: bool
    ) -> Iterator["subprocess.Popen[str]"]:
        """Run a load program beside what is measured; its standard input is closed at the end."""
        command = [sys.executable, "-m", f"bench.load.{module}", "--bootstrap", server.bootstrap]
        with subprocess.Popen(
            [*command, *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                if ready and process.stdout.readline() != "ready\n":
                    raise RuntimeError(f"{module} against {server.name} failed")
                yield process
            finally:
                assert process.stdin is not None
                process.stdin.close()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _admin(self, server: Server) -> AdminClient:
        if server.bootstrap not in self._admins:
            settings = {"bootstrap.servers": server.bootstrap, "log_level": 0}
            self._admins[server.bootstrap] = AdminClient(settings)
        return self._admins[server.bootstrap]

    def create_topic(self, server: Server, partitions: int, replicas: int | None = None) -> str:
        """Create a topic; its name is as long as every other one's."""
        name = f"bench-{next(self._numbers):05}"
        # Kafka keeps the files of a deleted topic for a minute unless told otherwise.
        config = {"file.delete.delay.ms": "1000"} if server.name == "kafka" else {}
        replicas = replicas or server.replicas
        # Of one replica, two in sync would be too many to ask for.
        config |= server.topic_configs if replicas > 1 else server.topic_configs_alone
        new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=config)
        try:
            self._admin(server).create_topics([new])[name].result(120)
        except KafkaException as error:
            # The name is ours alone: librdkafka has asked again, as the answer took its time.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return name

    def record_count(self, server: Server, topic: str, partitions: int) -> int:
        """Return how many records a topic has, by its offsets."""
        every = [TopicPartition(topic, partition) for partition in range(partitions)]
        ends, starts = (
            sum(
                found.result(60).offset
                for found in self._admin(server)
                .list_offsets(
                    dict.fromkeys(every, spec), isolation_level=IsolationLevel.READ_UNCOMMITTED
                )
                .values()
            )
            for spec in (OffsetSpec.latest(), OffsetSpec.earliest())
        )
        return int(ends - starts)

    @contextlib.contextmanager
    def topic(self, server: Server, partitions: int, replicas: int | None = None) -> Iterator[str]:
        """Create a topic and delete it at the end."""
        name = self.create_topic(server, partitions, replicas)
        try:
            yield name
        finally:
            self._admin(server).delete_topics([name])[name].result(120)

    @contextlib.contextmanager
    def measured(self, server: Server) -> Iterator[list[Cost]]:
        """Measure what the block costs; the list holds the result afterwards."""
        # What an earlier run left to the page cache must not be written during this one.
        os.sync()
        time.sleep(0.5)
        costs: list[Cost] = []
        machine, own, kernel = _machine_cpu_s(), server.usage().cpu_seconds, _kernel_cpu_s()
        yield costs
        # Work that the answers did not wait for still belongs to the run.
        time.sleep(0.3)
        costs.append(
            Cost(
                server.usage().cpu_seconds - own,
                _machine_cpu_s() - machine,
                max(0.0, _kernel_cpu_s() - kernel),
            )
        )
