"""Apache Kafka's own Java client: one process per version, fed with lines of JSON."""

import base64
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.clients import tools
from tests.clients.drivers.driver import TAIL_WAIT_MS, Driver, Rec, RefusedError


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _data(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _rec(node: dict[str, Any]) -> Rec:
    return Rec(
        key=_data(node["key"]),
        value=_data(node["value"]),
        headers=tuple((name, _data(value)) for name, value in node["headers"]),
        timestamp_ms=node["timestamp_ms"],
        partition=node["partition"],
        offset=node["offset"],
    )


class JavaDriver(Driver):
    """Drives the program of tests/clients/java."""

    version = ""

    def __init__(self, bootstrap: str) -> None:
        self._names = itertools.count()
        self._process = subprocess.Popen(
            tools.java_command(self.version, bootstrap),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _call(self, op: str, **arguments: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        stdin.flush()
        line = stdout.readline()
        assert line, f"{self.name} ended with {self._process.poll()}"
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"], answer["message"])
        return answer["ok"]

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        self._call("create_topic", topic=topic, partitions=partitions, configs=dict(configs or {}))

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic=topic)

    def create_partitions(self, topic: str, partitions: int) -> None:
        self._call("create_partitions", topic=topic, partitions=partitions)

    def describe_topic(self, topic: str) -> list[int]:
        return list(self._call("describe_topic", topic=topic)["leaders"])

    def list_topics(self) -> list[str]:
        return sorted(self._call("list_topics"))

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        return dict(self._call("describe_configs", topic=topic))

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        self._call("alter_configs", topic=topic, configs=dict(configs))

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        return int(self._call("delete_records", topic=topic, partition=partition, offset=offset))

    def describe_cluster(self) -> tuple[str, int, list[int]]:
        found = self._call("describe_cluster")
        return found["cluster_id"], found["controller"], found["nodes"]

    def describe_log_dirs(self) -> dict[str, int]:
        return dict(self._call("describe_log_dirs"))

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        return int(self._call("list_offset", topic=topic, partition=partition, at=str(at)))

    def produce(
        self,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        settings = {
            "compression.type": codec,
            "acks": acks,
            "enable.idempotence": str(idempotent).lower(),
            "linger.ms": "5",
            "max.request.size": "10000000",
            "delivery.timeout.ms": "30000",
            "request.timeout.ms": "20000",
        }
        nodes = [
            {
                "partition": record.partition,
                "timestamp_ms": record.timestamp_ms,
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
            }
            for record in records
        ]
        return list(self._call("produce", topic=topic, records=nodes, settings=settings))

    def consume(
        self, topic: str, partition: int, start: str | int, count: int, timeout_s: float = 20
    ) -> list[Rec]:
        found = self._call(
            "consume",
            topic=topic,
            partition=partition,
            start=str(start),
            count=count,
            timeout_ms=int(timeout_s * 1000),
        )
        return [_rec(node) for node in found]

    def consume_from_rack(
        self, topic: str, count: int, rack: str, node: int, timeout_s: float
    ) -> tuple[list[int], dict[str, int]]:
        """Read partition 0 until many fetches went to a node; return offsets, requests by node."""
        found = self._call(
            "consume_from_rack",
            topic=topic,
            partition=0,
            count=count,
            node=node,
            timeout_ms=int(timeout_s * 1000),
            settings={"client.rack": rack, "fetch.max.wait.ms": "100"},
        )
        return found["offsets"], {name: int(many) for name, many in found["requests"].items()}

    @contextmanager
    def tail(self, topic: str, partition: int) -> Iterator[Callable[[int, float], list[Rec]]]:
        name = f"tail-{next(self._names)}"
        settings = {"fetch.max.wait.ms": str(TAIL_WAIT_MS)}
        self._call("open_at_end", name=name, topic=topic, partition=partition, settings=settings)

        def read(count: int, timeout_s: float) -> list[Rec]:
            nodes = self._call("poll", name=name, count=count, timeout_ms=int(timeout_s * 1000))
            return [_rec(node) for node in nodes]

        yield read

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Java3Driver(JavaDriver):
    """The newest 3.x."""

    name = "java-3"
    version = "3.9.2"


class Java4Driver(JavaDriver):
    """The newest 4.x."""

    name = "java-4"
    version = "4.4.0"
