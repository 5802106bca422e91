"""Administration of records: log starts and ends, deletion of old records.

Part of `dlog.client.admin`. Each partition is asked for at its leader.
"""

import asyncio
from collections.abc import Mapping

from dlog.client.cluster import partition_calls
from dlog.client.cluster.admin_session import TIMEOUT_MS, AdminSession
from dlog.client.cluster.node import NodeClient
from dlog.client.cluster.offset_lookup import OffsetLookup
from dlog.client.starts import Start
from dlog.errors import DlogError
from dlog.types import TopicPartition

TRIMS_AT_ONCE = 32
"""Partitions that one call asks for at the same time."""


class RecordsAdmin(AdminSession):
    """Calls about the records of partitions. Owner: one event loop."""

    async def find_offsets(
        self, starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, int]:
        """Return the offset that each start stands for now, as readers of everything see it.

        "latest" is the high watermark. Raises the first error that is final, or that lasts until
        the policy's deadline.
        """
        loop = asyncio.get_running_loop()
        finder = OffsetLookup(self._cluster, loop=loop, rng=self._rng)
        return await finder.place(starts)

    async def delete_records(
        self, before: Mapping[TopicPartition, int], timeout_ms: int = TIMEOUT_MS
    ) -> dict[TopicPartition, int | DlogError]:
        """Delete the records below an offset of each partition; return where each log begins then.

        The error of a partition stands in its place. All replicas in sync have deleted when this
        returns. Raises ValueError for a negative offset: `find_offsets` tells where a log ends.
        """
        for key, offset in before.items():
            if offset < 0:
                raise ValueError(f"{key}: {offset} is not an offset")
        some = asyncio.Semaphore(TRIMS_AT_ONCE)

        async def one(key: TopicPartition, offset: int) -> int | DlogError:
            async with some:
                try:
                    return await self._trim(key, offset, timeout_ms)
                except DlogError as error:
                    return error

        found = await asyncio.gather(*(one(key, offset) for key, offset in before.items()))
        return dict(zip(before, found, strict=True))

    async def _trim(self, key: TopicPartition, offset: int, timeout_ms: int) -> int:
        patience = self._patience(timeout_ms)

        async def operation(node: NodeClient) -> int:
            found = await partition_calls.delete_records(
                node, key.topic, {key.partition: offset}, round(patience().total_seconds() * 1000)
            )
            return found[key.partition]

        # Deleting twice what is below one offset is deleting it.
        return await self._cluster.run(
            lambda: self._cluster.leader(key.topic, key.partition), operation, topic=key.topic
        )
