"""DescribeTopicPartitions: what clients are told of topics, page by page."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from dlog.wire.apis import ApiKey
from tests.fakes.server import FakeNode


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


class TestDescribeTopicPartitions:
    """Pages of topics."""

    async def pages(self, node: FakeNode, limit: int, *names: str) -> list[list[tuple[str, Any]]]:
        cursor: Any = None
        pages = []
        while True:
            response = await node.ask(
                ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                0,
                topics=[{"name": name} for name in names],
                response_partition_limit=limit,
                cursor=cursor,
            )
            pages.append(
                [(t.name, [p.partition_index for p in t.partitions]) for t in response.topics]
            )
            if response.next_cursor is None:
                return pages
            cursor = {
                "topic_name": response.next_cursor.topic_name,
                "partition_index": response.next_cursor.partition_index,
            }

    async def three(self) -> FakeNode:
        node = FakeNode()
        for name, count in (("b", 3), ("a", 2), ("c", 1)):
            await node.create(name, count)
        return node

    def test_everything_in_order_of_name(self) -> None:
        async def test() -> None:
            node = await self.three()
            assert await self.pages(node, 2000) == [[("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]]
            assert await self.pages(node, 2) == [
                [("a", [0, 1])],
                [("b", [0, 1])],
                [("b", [2]), ("c", [0])],
            ]
            assert await self.pages(node, -5) == [
                [("a", [0])],
                [("a", [1])],
                [("b", [0])],
                [("b", [1])],
                [("b", [2])],
                [("c", [0])],
            ]

        run(test())

    def test_named_topics(self) -> None:
        async def test() -> None:
            node = await self.three()
            assert await self.pages(node, 3, "c", "nope", "b") == [
                [("b", [0, 1, 2])],
                [("c", [0]), ("nope", [])],
            ]

        run(test())

    def test_the_cursor_must_make_sense(self) -> None:
        async def test() -> None:
            node = await self.three()
            for cursor in (
                {"topic_name": "zzz", "partition_index": 0},
                {"topic_name": "a", "partition_index": -1},
            ):
                response = await node.ask(
                    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
                    0,
                    topics=[{"name": "a"}],
                    cursor=cursor,
                    response_partition_limit=1,
                )
                assert response.topics[0].error_code == 42

        run(test())
