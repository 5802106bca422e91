"""Topics of a real node for the tests of the sink: made, and read back record by record."""

import random
from collections.abc import Mapping
from typing import Self

from dlog.batch.decoding import decode_records
from dlog.batch.records import Record
from dlog.client.blocking import BlockingClient
from dlog.client.cluster.partition_calls import fetch
from dlog.transport import Address


class Topics:
    """What a cluster holds, as a client sees it. Life: a `with` block."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client = BlockingClient([Address.parse(bootstrap)], rng=random.Random(5))

    def create(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Make a topic that keeps records of any time; underscores in configs stand for dots."""
        given: Mapping[str, str] = {
            "retention.ms": "-1",
            **{key.replace("_", "."): value for key, value in configs.items()},
        }
        admin = self._client.admin
        self._client.run(lambda: admin.create_topic(name, partitions=partitions, configs=given))
        return name

    def grow(self, name: str, partitions: int) -> None:
        """Let a topic have so many partitions."""
        admin = self._client.admin
        self._client.run(lambda: admin.create_partitions(name, partitions))

    def delete(self, name: str) -> None:
        """Delete a topic."""
        self._client.run(lambda: self._client.admin.delete_topic(name))

    def read(self, topic: str, partition: int = 0) -> list[Record]:
        """Return all records of a partition, in order."""

        async def work() -> list[Record]:
            found: list[Record] = []
            while True:
                leader = await self._client.cluster.leader(topic, partition)
                fetched = await fetch(leader, topic, partition, len(found), max_wait_ms=0)
                found += decode_records(fetched.records, len(found))
                if len(found) >= fetched.high_watermark:
                    return found

        return self._client.run(work)

    def read_all(self, topic: str, partitions: int) -> list[list[Record]]:
        """Return all records of each partition."""
        return [self.read(topic, partition) for partition in range(partitions)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
