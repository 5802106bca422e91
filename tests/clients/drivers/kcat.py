"""kcat, with Debian's librdkafka and with an old one; one process per call, as in a shell."""

import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.clients import tools
from tests.clients.drivers.driver import TAIL_WAIT_MS, Driver, Header, Rec, RefusedError
from tests.clients.drivers.librdkafka import Librdkafka

CALL_S = 60
# What separates records, and key from value, on kcat's standard input.
RECORD_END, KEY_END = b"\x1e", b"\x1f"
FORMAT = r"%p %o %T %K %S %h\n%k%s\n"


def _header(text: str) -> Header:
    name, _, value = text.partition("=")
    return name, None if value == "NULL" else value.encode()


def _parse(output: bytes) -> Iterator[Rec]:
    """Read what FORMAT printed; an incomplete record at the end is left out."""
    at = 0
    while (line_end := output.find(b"\n", at)) >= 0:
        fields = output[at:line_end].decode().split(" ", 5)
        partition, offset, timestamp_ms, key_bytes, value_bytes = map(int, fields[:5])
        key_end = line_end + 1 + max(key_bytes, 0)
        value_end = key_end + max(value_bytes, 0)
        at = value_end + 1
        if at > len(output):
            return
        headers = fields[5].split(",") if fields[5] else []
        yield Rec(
            key=None if key_bytes < 0 else output[line_end + 1 : key_end],
            value=None if value_bytes < 0 else output[key_end:value_end],
            headers=tuple(_header(text) for text in headers),
            timestamp_ms=timestamp_ms,
            partition=partition,
            offset=offset,
        )


def _kind(record: Rec) -> tuple[Any, ...]:
    """Records of one kind can share a process: its options hold for all of them."""
    whole_file = any(c in (record.value or b"") for c in (*RECORD_END, *KEY_END, *b"\n"))
    large = len(record.value or b"") > 10_000
    alone = record.key if whole_file or large else None
    file_of_its_own = whole_file or large
    null = record.value is None
    return record.partition, record.headers, null, record.key is None, file_of_its_own, alone


class KcatDriver(Driver):
    """Drives the kcat program; the administrative calls go to the same library by ctypes."""

    name = "kcat"
    # kcat cannot set a timestamp; headers without a value it can only read.
    lacks = frozenset(
        {
            *("timestamps", "null_headers", "exact_headers"),
            *("log_dirs", "max_timestamp", "delete_config"),
        }
    )

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._kcat = tools.program("kcat", "kcat")
        self._admin = Librdkafka(self.library(), bootstrap)

    def library(self) -> str:
        """Return what to load for the administrative calls."""
        return "librdkafka.so.1"

    def environment(self) -> dict[str, str]:
        """Return the environment of kcat."""
        return dict(os.environ)

    def _command(self, *arguments: str) -> list[str]:
        return [self._kcat, "-b", self._bootstrap, "-X", "message.max.bytes=10000000", *arguments]

    def _run(self, *arguments: str, data: bytes = b"", timeout_s: float = CALL_S) -> bytes:
        done = subprocess.run(
            self._command(*arguments),
            input=data,
            capture_output=True,
            env=self.environment(),
            timeout=timeout_s,
        )
        if done.returncode:
            raise RefusedError(-1, done.stderr.decode(errors="replace"))
        return done.stdout

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        self._admin.create_topic(topic, partitions, configs or {})

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topic(topic)

    def create_partitions(self, topic: str, partitions: int) -> None:
        self._admin.create_partitions(topic, partitions)

    def _metadata(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._run("-L", "-J", *arguments))
        return found

    def describe_topic(self, topic: str) -> list[int]:
        (found,) = self._metadata("-t", topic)["topics"]
        if "error" in found:
            raise RefusedError(3, found["error"])
        by_index = {p["partition"]: p["leader"] for p in found["partitions"]}
        return [by_index[index] for index in sorted(by_index)]

    def list_topics(self) -> list[str]:
        return sorted(topic["topic"] for topic in self._metadata()["topics"])

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        return self._admin.describe_configs(topic)

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        self._admin.alter_configs(topic, configs)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        return self._admin.delete_records(topic, partition, offset)

    def describe_cluster(self) -> tuple[str, int, list[int]]:
        nodes = [broker["id"] for broker in self._metadata()["brokers"]]
        return (*self._admin.cluster(), nodes)

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        if isinstance(at, int):
            return self._admin.offset_for_time(topic, partition, at)
        return self._admin.watermarks(topic, partition)[at == "latest"]

    def produce(
        self,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        settings = ["-X", f"topic.acks={acks}", "-X", "linger.ms=5"]
        settings += ["-X", f"enable.idempotence={str(idempotent).lower()}"]
        if codec != "none":
            settings += ["-z", codec]
        for _, group in itertools.groupby(records, _kind):
            self._produce_alike(topic, list(group), settings)
        return [-1] * len(records)

    def _produce_alike(self, topic: str, records: list[Rec], settings: list[str]) -> None:
        first = records[0]
        options = ["-P", "-t", topic, "-p", str(first.partition), *settings]
        for name, value in first.headers:
            options += ["-H", f"{name}={(value or b'').decode()}"]
        if first.value is None:
            options.append("-Z")
        if _kind(first)[4]:
            if first.key is not None:
                options += ["-k", first.key.decode()]
            self._produce_files(options, records)
            return
        data = b""
        for record in records:
            key = b"" if record.key is None else record.key + KEY_END
            data += key + (record.value or b"") + RECORD_END
        if first.key is not None:
            options += ["-K", r"\x1f"]
        self._run(*options, "-D", r"\x1e", data=data)

    def _produce_files(self, options: list[str], records: list[Rec]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for index, record in enumerate(records):
                path = Path(folder) / str(index)
                path.write_bytes(record.value or b"")
                names.append(str(path))
            self._run(*options, *names)

    def _reading(self, topic: str, partition: int, start: str | int, count: int) -> list[str]:
        where = ["-t", topic, "-p", str(partition), "-o", str(start), "-c", str(count)]
        wait = ["-X", f"fetch.wait.max.ms={TAIL_WAIT_MS}"]
        return self._command("-C", *where, *wait, "-q", "-u", "-f", FORMAT)

    def consume(
        self, topic: str, partition: int, start: str | int, count: int, timeout_s: float = 20
    ) -> list[Rec]:
        begin = "beginning" if start == "earliest" else start
        with self._reader(topic, partition, begin, count) as process:
            return self._collect(process, count, timeout_s)

    @contextmanager
    def _reader(
        self, topic: str, partition: int, start: str | int, count: int
    ) -> Iterator["subprocess.Popen[bytes]"]:
        command = self._reading(topic, partition, start, count)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment()
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def _collect(
        self, process: "subprocess.Popen[bytes]", count: int, timeout_s: float
    ) -> list[Rec]:
        """Read what kcat prints until there are `count` records, it ends, or time is up."""
        assert process.stdout is not None
        end = time.monotonic() + timeout_s
        output = b""
        while (left := end - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            data = os.read(process.stdout.fileno(), 1 << 20)
            output += data
            if not data:
                if process.wait() and process.stderr is not None:
                    raise RefusedError(-1, process.stderr.read().decode(errors="replace"))
                break
        return list(_parse(output))[:count]

    @contextmanager
    def tail(self, topic: str, partition: int) -> Iterator[Callable[[int, float], list[Rec]]]:
        start = self.list_offset(topic, partition, "latest")
        with self._reader(topic, partition, start, 1_000_000) as process:

            def read(count: int, timeout_s: float) -> list[Rec]:
                assert process.stdout is not None
                end = time.monotonic() + timeout_s
                output = b""
                while len(list(_parse(output))) < count and time.monotonic() < end:
                    if select.select([process.stdout], [], [], 0.1)[0]:
                        output += os.read(process.stdout.fileno(), 1 << 20)
                return list(_parse(output))

            yield read

    def close(self) -> None:
        self._admin.close()


class OldLibrdkafkaDriver(KcatDriver):
    """The same program on librdkafka 1.7, as in distributions of its time."""

    name = "librdkafka-1.7"

    def library(self) -> str:
        return str(tools.old_librdkafka() / "librdkafka.so.1")

    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(tools.old_librdkafka())}
