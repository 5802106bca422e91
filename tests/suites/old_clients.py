"""Old clients from their registries: what they write is read, found by time and kept as it should.

Each client gets a plan (batches of records with mixed times) and tells what it read and found. The
expected answers come from the plan, so a server that passes answers as every other one that does.
"""

import base64
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.suites import sources
from tests.suites.outcomes import FAILED, PASSED, Outcomes

PROGRAMS = Path(__file__).with_name("programs")
RUN_S, RETENTION_S = 120, 60
DAY_MS = 24 * 3_600_000
SEGMENT_BYTES = 1 << 20
VALUE_BYTES = 150_000


class Record(NamedTuple):
    """A record of a plan."""

    timestamp: int
    key: bytes | None
    value: bytes | None


Batches = Sequence[Sequence[Record]]


class Client(NamedTuple):
    """A client in one version. `command`: builds it where it is not there, and returns it."""

    name: str
    codecs: Sequence[str]
    command: Callable[[], list[str]]
    is_java: bool = False
    # What it says of a time behind all records; None: the end of the log.
    missing: int | None = -1


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _sarama(module: str, version: str) -> list[str]:
    folder = sources.FOLDER / f"sarama-{version}"
    program = folder / "client"
    if not program.exists():
        sources.need("go")
        folder.mkdir(parents=True, exist_ok=True)
        source = (PROGRAMS / "sarama_client.go").read_text(encoding="utf-8")
        (folder / "main.go").write_text(source.replace("SARAMA", module), encoding="utf-8")
        text = f"module client\ngo 1.18\nrequire {module} {version}\n"
        (folder / "go.mod").write_text(text, encoding="utf-8")
        for arguments in (["mod", "tidy"], ["build", "-o", str(program), "."]):
            sources.run(["go", *arguments], folder)
    return [str(program)]


def _kafkajs(version: str) -> list[str]:
    folder = sources.FOLDER / f"kafkajs-{version}"
    if not (folder / "node_modules").exists():
        sources.need("npm")
        folder.mkdir(parents=True, exist_ok=True)
        sources.run(["npm", "install", "--silent", "--no-audit", f"kafkajs@{version}"], folder)
    shutil.copy(PROGRAMS / "kafkajs_client.js", folder / "client.js")
    return ["node", str(folder / "client.js")]


def _java(version: str) -> list[str]:
    folder = sources.FOLDER / f"kafka-clients-{version}"
    if not (folder / "OldClient.class").exists():
        sources.need("mvn")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAMS / "old-clients-pom.xml", folder / "pom.xml")
        jars = f"-DoutputDirectory={folder / 'jars'}"
        goal = "dependency:copy-dependencies"
        sources.run(["mvn", "-q", "-B", f"-Dclients.version={version}", goal, jars], folder)
        source = str(PROGRAMS / "OldClient.java")
        sources.run(["javac", "-nowarn", "-cp", "jars/*", "-d", ".", source], folder)
    return ["java", "-cp", f"{folder}:{folder / 'jars'}/*", "OldClient"]


CODECS = ("none", "gzip", "snappy", "lz4")
CLIENTS = (
    Client(
        "sarama-1.22.1",
        (*CODECS, "zstd"),
        lambda: _sarama("github.com/Shopify/sarama", "v1.22.1"),
    ),
    Client("sarama-1.45.0", (*CODECS, "zstd"), lambda: _sarama("github.com/IBM/sarama", "v1.45.0")),
    Client("kafkajs-2.2.4", ("none", "gzip"), lambda: _kafkajs("2.2.4"), missing=None),
    Client("java-2.0.1", CODECS, lambda: _java("2.0.1"), is_java=True),
    Client("java-2.8.2", (*CODECS, "zstd"), lambda: _java("2.8.2"), is_java=True),
)


def mixed(now_ms: int) -> list[list[Record]]:
    """Return batches whose first record is neither the oldest nor the newest."""
    times = ((0,), (5_000, 1_000, 3_000), (2_000, 9_000, 100), (4_000, 4_000), (8_000, 12_000))
    number = 0
    batches = []
    for each in times:
        batch = []
        for offset_ms in each:
            key = None if number % 3 == 0 else b"k%d" % number
            value = None if number % 4 == 1 else b"value %d " % number * 20
            batch.append(Record(now_ms + offset_ms, key, value))
            number += 1
        batches.append(batch)
    return batches


def aged(now_ms: int) -> list[list[Record]]:
    """Return batches of 450 kB that are due by their times, one of them with a fresh record."""
    rng, old_ms = random.Random(5), now_ms - 10 * DAY_MS

    def batch(*times_ms: int) -> list[Record]:
        return [Record(each, None, rng.randbytes(VALUE_BYTES)) for each in times_ms]

    due = [batch(old_ms, old_ms, old_ms) for _ in range(6)]
    return [*due[:3], batch(old_ms, now_ms, old_ms), *due[3:], batch(now_ms)]


def first_at(batches: Batches, time_ms: int) -> int | None:
    """Return the offset of the first record at or after a time."""
    records = [record for batch in batches for record in batch]
    found = (offset for offset, each in enumerate(records) if each.timestamp >= time_ms)
    return next(found, None)


class Case:
    """One client with one codec against one server."""

    def __init__(self, client: Client, codec: str, bootstrap: str) -> None:
        self._client, self._codec, self._bootstrap = client, codec, bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def _topic(self, what: str, config: dict[str, str]) -> str:
        name = f"{self._client.name}-{self._codec}-{what}"
        new = NewTopic(name, num_partitions=1, replication_factor=1, config=config)
        self._admin.create_topics([new])[name].result(60)
        return name

    def _run(self, topic: str, batches: Batches, times: Sequence[int]) -> dict[str, Any]:
        client = self._client
        lines = _lines if client.is_java else _json
        done = subprocess.run(
            client.command(),
            input=lines(self._bootstrap, topic, self._codec, batches, times),
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"{client.name} {self._codec}: {done.stderr[-1500:]}")
        return _of_lines(done.stdout) if client.is_java else dict(json.loads(done.stdout))

    def read_and_search(self) -> None:
        """What it wrote is read as it was, by itself and another; times find the right records."""
        now_ms = int(time.time() * 1000) - 3_600_000
        batches = mixed(now_ms)
        records = [record for batch in batches for record in batch]
        times = [now_ms + each for each in (-1, 0, 1, 1_001, 3_001, 5_001, 9_000, 9_001, 12_001)]
        topic = self._topic("read", {})
        seen = self._run(topic, batches, times)
        wanted = [[each.timestamp, _text(each.key), _text(each.value)] for each in records]
        assert _read(self._bootstrap, topic, len(records)) == wanted
        if seen["read"] is not None:
            read = [[each["timestamp"], each["key"], each["value"]] for each in seen["read"]]
            assert read == wanted, "the client reads something else"
        missing = len(records) if self._client.missing is None else self._client.missing
        found = [first_at(batches, each) for each in times]
        assert seen["offsets"] == [missing if each is None else each for each in found]

    def retention(self) -> None:
        """What is due goes; the segment with a fresh record in its middle stays."""
        config = {"retention.ms": str(DAY_MS), "segment.bytes": str(SEGMENT_BYTES)}
        batches = aged(int(time.time() * 1000))
        topic = self._topic("retention", config)
        self._run(topic, batches, [])
        fresh = first_at(batches, int(time.time() * 1000) - DAY_MS)
        assert fresh is not None
        ends = time.monotonic() + RETENTION_S
        while not (start := self._log_start(topic)) and time.monotonic() < ends:
            time.sleep(0.2)
        time.sleep(3)  # three more looks of the server
        again = self._log_start(topic)
        assert 0 < start <= again <= fresh, f"the log starts at {start}, then {again}"

    def _log_start(self, topic: str) -> int:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "unused"})
        try:
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        finally:
            consumer.close()
        return int(low)


def _json(bootstrap: str, topic: str, codec: str, batches: Batches, times: Sequence[int]) -> str:
    def plain(each: Record) -> dict[str, Any]:
        return {"timestamp": each.timestamp, "key": _text(each.key), "value": _text(each.value)}

    return json.dumps(
        {
            "bootstrap": bootstrap,
            "topic": topic,
            "codec": codec,
            "batches": [[plain(each) for each in batch] for batch in batches],
            "times": list(times),
        }
    )


def _lines(bootstrap: str, topic: str, codec: str, batches: Batches, times: Sequence[int]) -> str:
    def word(data: bytes | None) -> str:
        return "-" if data is None else f"+{_text(data)}"

    lines = [bootstrap, topic, codec]
    for batch in batches:
        lines.append("batch")
        lines += [f"record {each.timestamp} {word(each.key)} {word(each.value)}" for each in batch]
    lines += [f"time {each}" for each in times]
    return "\n".join(lines) + "\n"


def _of_lines(text: str) -> dict[str, Any]:
    seen: dict[str, Any] = {"read": [], "offsets": []}
    for line in text.splitlines():
        name, *words = line.split(" ")
        if name == "record":
            key, value = (None if word == "-" else word[1:] for word in words[1:])
            seen["read"].append({"timestamp": int(words[0]), "key": key, "value": value})
        elif name == "offset":
            seen["offsets"].append(int(words[0]))
    return seen


def _read(bootstrap: str, topic: str, count: int) -> list[list[Any]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.consume(count, 30)
    finally:
        consumer.close()
    return [[each.timestamp()[1], _text(each.key()), _text(each.value())] for each in found]


def run(bootstrap: str, folder: Path, only: str = "") -> tuple[Outcomes, str]:
    """Run all clients, or those with `only` in the names of their tests."""
    outcomes: Outcomes = {}
    told = []
    for client in CLIENTS:
        for codec in client.codecs:
            case = Case(client, codec, bootstrap)
            for what in (case.read_and_search, case.retention):
                name = f"{client.name}_{codec}_{what.__name__}"
                if only not in name:
                    continue
                outcomes[name] = PASSED
                try:
                    what()
                except AssertionError as error:
                    outcomes[name] = FAILED
                    told.append(f"{name}: {error}")
    (folder / "old-clients.log").write_text("\n".join(told), encoding="utf-8")
    return outcomes, ", ".join(client.name for client in CLIENTS)
