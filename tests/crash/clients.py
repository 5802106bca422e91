"""A node and what a test of it does as a client, for tests with disks that fail."""

import time

from dlog.batch.records import Record, encode
from dlog.checksum import Buffer
from dlog.client.blocking import BlockingClient
from dlog.client.cluster.partition_calls import produce
from dlog.transport import Address
from tests.daemon.one_partition import read_all
from tests.daemon.process import DaemonProcess


class Client:
    """A blocking client of one node; each call raises DlogError when it is refused."""

    def __init__(self, node: DaemonProcess) -> None:
        self._client = BlockingClient([Address.parse(node.status()["listeners"][0])])

    def create(self, topic: str, configs: dict[str, str] | None = None) -> None:
        """Make a topic with one partition."""
        self._client.run(
            lambda: self._client.admin.create_topic(topic, partitions=1, configs=configs or {})
        )

    def append(self, topic: str, value: bytes, timestamp_ms: int | None = None) -> int:
        """Append one record, by default of now; return its offset."""
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000

        record = Record(key=None, value=value, headers=(), timestamp_ms=timestamp_ms, offset=0)
        return self.produce(topic, encode([record]))

    def produce(self, topic: str, batch: Buffer) -> int:
        """Append a batch; return its offset."""

        async def work() -> int:
            leader = await self._client.cluster.leader(topic, 0)
            produced = await produce(leader, topic, 0, batch, timeout_ms=1000)
            assert produced is not None
            return produced.base_offset

        return self._client.run(work)

    def read(self, topic: str) -> list[bytes | None]:
        """Return all values of a topic, from offset 0 on."""
        return read_all(self._client, topic)

    def close(self) -> None:
        """End the connections."""
        self._client.close()


def directories_online(node: DaemonProcess) -> dict[str, bool]:
    """Return which data directories are in service, by path."""
    return {home["path"]: home["online"] for home in node.status()["storage"]["directories"]}
