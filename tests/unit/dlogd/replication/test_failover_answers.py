"""What Metadata tells while a leader is being replaced: nothing stale, and no node lost at once."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from dlog.types import NodeId
from dlog.wire.apis import ApiKey
from dlogd.replication.follower.fetcher_manager import DOUBT_S, FetcherManager
from dlogd.server.recently_fenced import LINGER_MS
from tests.fakes.server import FakeNode, FakeQuorum


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def told(response: Any) -> list[int]:
    """Return the nodes that an answer names."""
    return [int(each.node_id) for each in response.brokers]


async def describe(node: FakeNode, *names: str) -> Any:
    return await node.ask(ApiKey.METADATA, 12, topics=[{"name": name} for name in names])


def test_a_node_that_was_just_fenced_is_named_for_a_moment() -> None:
    async def test() -> None:
        node = FakeNode(quorum=FakeQuorum())
        node.register(2)
        assert told(await describe(node)) == [1, 2]
        before = node.image
        node.fence(2)
        node.context.lingering.on_image(before, node.image, node.context.clock.now_ms())
        assert told(await describe(node)) == [1, 2]
        node.context.clock.time_ms += LINGER_MS  # type: ignore[attr-defined]
        assert told(await describe(node)) == [1]

    run(test())


def test_a_node_that_was_fenced_before_or_has_left_is_not_named() -> None:
    async def test() -> None:
        node = FakeNode(quorum=FakeQuorum())
        node.register(2)
        node.fence(2)
        node.context.lingering.on_image(node.image, node.image, node.context.clock.now_ms())
        assert told(await describe(node)) == [1]
        assert not node.context.lingering.has(NodeId(7), node.context.clock.now_ms())

    run(test())


def test_the_answer_waits_while_a_leader_is_in_doubt() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        settled = asyncio.Event()

        async def settle() -> None:
            await settled.wait()

        node.context.until_settled = lambda: None if settled.is_set() else settle()
        waiting = asyncio.create_task(describe(node, "t"))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        # Who asks for no topic asks for no leader.
        assert told(await describe(node)) == [1]
        await node.create("u")
        settled.set()
        assert [topic.name for topic in (await waiting).topics] == ["t"]
        assert len((await describe(node, "t", "u")).topics) == 2

    run(test())


def following(lost_s: float, *followings: object) -> Any:
    """Return a fetcher whose connection ended then."""
    return SimpleNamespace(lost_s=lost_s, followings=dict.fromkeys(followings))


def test_a_leader_is_in_doubt_from_when_it_hung_up_until_it_is_followed_no_more() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        fetching = FetcherManager(cast(Any, SimpleNamespace(loop=loop)))
        assert fetching.until_settled() is None
        fetching.fetchers[NodeId(1)] = following(loop.time() - DOUBT_S, "t-0")
        fetching.fetchers[NodeId(2)] = following(loop.time())
        assert fetching.until_settled() is None
        leader = fetching.fetchers[NodeId(3)] = following(loop.time() + 60, "t-1", "t-2")
        settling = fetching.until_settled()
        assert settling is not None
        waiting = asyncio.create_task(settling)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        leader.followings.clear()
        fetching._left.set()
        await waiting
        assert fetching.until_settled() is None

    run(test())


def test_a_doubt_does_not_last() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        fetching = FetcherManager(cast(Any, SimpleNamespace(loop=loop)))
        fetching.fetchers[NodeId(1)] = following(loop.time() - DOUBT_S + 0.02, "t-0")
        settling = fetching.until_settled()
        assert settling is not None
        async with asyncio.timeout(10):
            await settling
        assert fetching.until_settled() is None

    run(test())
