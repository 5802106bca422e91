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
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.suites import sources
from tests.suites.outcomes import FAILED, PASSED, Outcomes

PROGRAMS = Path(__file__).with_name("programs")
RUN_S, RETENTION_S = 120, 60
DAY_MS = 24 * 3_600_000
SEGMENT_BYTES = 1 << 20
VALUE_BYTES = 150_000
DUE, FRESH = 2, 3
"""Batches in the segment that is due, and the index of the one with a fresh record in its middle:
a segment has two."""


class Record(NamedTuple):
    """A record of a plan."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


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


def _is_built(program: Path, source: Path, text: str) -> bool:
    """Say whether a program is there, of this source; else write the source."""
    if program.exists() and source.exists() and source.read_text(encoding="utf-8") == text:
        return True
    program.unlink(missing_ok=True)
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text, encoding="utf-8")
    return False


def _sarama(module: str, version: str) -> list[str]:
    folder = sources.FOLDER / f"sarama-{version}"
    program = folder / "client"
    text = (PROGRAMS / "sarama_client.go").read_text(encoding="utf-8").replace("SARAMA", module)
    if not _is_built(program, folder / "main.go", text):
        sources.need("go")
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
    source = folder / "OldClient.java"
    text = (PROGRAMS / source.name).read_text(encoding="utf-8")
    if not _is_built(folder / "OldClient.class", source, text):
        sources.need("mvn")
        shutil.copy(PROGRAMS / "old-clients-pom.xml", folder / "pom.xml")
        jars = f"-DoutputDirectory={folder / 'jars'}"
        goal = "dependency:copy-dependencies"
        sources.run(["mvn", "-q", "-B", f"-Dclients.version={version}", goal, jars], folder)
        sources.run(["javac", "-nowarn", "-cp", "jars/*", "-d", ".", source.name], folder)
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
            headers = [("trace", b"\0\xff%d" % number), ("empty", b"")][: number % 3]
            batch.append(Record(now_ms + offset_ms, key, value, headers))
            number += 1
        batches.append(batch)
    return batches


def aged(now_ms: int) -> list[list[Record]]:
    """Return batches of 450 kB that are due by their times, one of them with a fresh record."""
    rng, old_ms = random.Random(5), now_ms - 10 * DAY_MS

    def batch(*times_ms: int) -> list[Record]:
        return [Record(each, None, rng.randbytes(VALUE_BYTES)) for each in times_ms]

    due = [batch(old_ms, old_ms, old_ms) for _ in range(6)]
    return [*due[:FRESH], batch(old_ms, now_ms, old_ms), *due[FRESH:], batch(now_ms)]


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
        wanted = [_plain(each) for each in records]
        assert _read(self._bootstrap, topic, len(records)) == wanted
        if seen["read"] is not None:
            assert seen["read"] == wanted, "the client reads something else"
        missing = len(records) if self._client.missing is None else self._client.missing
        found = [first_at(batches, each) for each in times]
        assert seen["offsets"] == [missing if each is None else each for each in found]

    def retention(self) -> None:
        """What is due goes; the segment with a fresh record in its middle stays.

        Nothing is due while it writes, and segments end by their size alone: otherwise the moments
        at which a server looks would show.
        """
        config = {
            "retention.ms": "-1",
            "segment.ms": str(30 * DAY_MS),
            "segment.bytes": str(SEGMENT_BYTES),
        }
        batches = aged(int(time.time() * 1000))
        topic = self._topic("retention", config)
        self._run(topic, batches, [])
        for answer in self._admin.incremental_alter_configs([_kept_for_a_day(topic)]).values():
            answer.result(60)
        due = sum(len(batch) for batch in batches[:DUE])
        ends = time.monotonic() + RETENTION_S
        while self._log_start(topic) < due and time.monotonic() < ends:
            time.sleep(0.2)
        time.sleep(3)  # three more looks of the server
        assert (start := self._log_start(topic)) == due, f"the log starts at {start}, not at {due}"

    def _log_start(self, topic: str) -> int:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "unused"})
        try:
            low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        finally:
            consumer.close()
        return int(low)


def _plain(each: Record) -> dict[str, Any]:
    """Return a record as JSON has it."""
    return {
        "timestamp": each.timestamp,
        "key": _text(each.key),
        "value": _text(each.value),
        "headers": [{"name": name, "value": _text(value)} for name, value in each.headers],
    }


def _kept_for_a_day(topic: str) -> ConfigResource:
    entry = ConfigEntry("retention.ms", str(DAY_MS), incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])


def _json(bootstrap: str, topic: str, codec: str, batches: Batches, times: Sequence[int]) -> str:
    return json.dumps(
        {
            "bootstrap": bootstrap,
            "topic": topic,
            "codec": codec,
            "batches": [[_plain(each) for each in batch] for batch in batches],
            "times": list(times),
        }
    )


def _lines(bootstrap: str, topic: str, codec: str, batches: Batches, times: Sequence[int]) -> str:
    def word(data: bytes | None) -> str:
        return "-" if data is None else f"+{_text(data)}"

    lines = [bootstrap, topic, codec]
    for batch in batches:
        lines.append("batch")
        for each in batch:
            words = [word(each.key), word(each.value)]
            for name, value in each.headers:
                words += [name, word(value)]
            lines.append(" ".join(["record", str(each.timestamp), *words]))
    lines += [f"time {each}" for each in times]
    return "\n".join(lines) + "\n"


def _of_word(word: str) -> str | None:
    return None if word == "-" else word[1:]


def _of_lines(text: str) -> dict[str, Any]:
    seen: dict[str, Any] = {"read": [], "offsets": []}
    for line in text.splitlines():
        name, *words = line.split(" ")
        if name == "record":
            time_ms, key, value, *rest = words
            headers = [
                {"name": name, "value": _of_word(each)}
                for name, each in zip(rest[::2], rest[1::2], strict=True)
            ]
            seen["read"].append(
                {
                    "timestamp": int(time_ms),
                    "key": _of_word(key),
                    "value": _of_word(value),
                    "headers": headers,
                }
            )
        elif name == "offset":
            seen["offsets"].append(int(words[0]))
    return seen


def _headers(message: Any) -> list[tuple[str, bytes]]:
    return list(message.headers() or ())


def _read(bootstrap: str, topic: str, count: int) -> list[dict[str, Any]]:
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
    return [
        _plain(Record(each.timestamp()[1], each.key(), each.value(), _headers(each)))
        for each in found
    ]


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
