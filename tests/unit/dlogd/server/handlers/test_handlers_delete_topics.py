"""DeleteTopics in a cluster: many by one command, each all the same when somebody was faster."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dlog.errors import RequestTimedOutError, UnknownTopicIdError
from dlog.wire.apis import ApiKey
from dlogd.metadata.commands.codec import DeleteTopic, DeleteTopics
from dlogd.metadata.state.image import Refused, Unknown
from dlogd.metadata.state.limits import LEVEL_NEWEST
from dlogd.server.handlers import delete_topics
from tests.fakes.server import FakeNode, FakeQuorum, new_topic


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


async def cluster_with(*names: str) -> FakeNode:
    node = FakeNode(quorum=FakeQuorum())
    topics = [new_topic(name) for name in names]
    await node.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=1000)
    assert list(node.image.topics) == list(names)
    node.commands.clear()
    return node


async def delete(node: FakeNode, *names: str) -> dict[str, int]:
    topics = [{"name": name, "topic_id": None} for name in names]
    response = await node.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=1000)
    return {each.name: int(each.error_code) for each in response.responses}


def test_many_topics_are_deleted_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        names = [f"t{n}" for n in range(10)]
        node = await cluster_with(*names)
        results = await delete(node, *names[:4], "nothing")
        assert results == dict.fromkeys(names[:4], 0) | {"nothing": 3}
        (command,) = node.commands
        assert isinstance(command, DeleteTopics)
        assert list(node.image.topics) == names[4:]
        await delete(node, names[4])
        assert isinstance(node.commands[-1], DeleteTopic), "for one there is an older command"
        monkeypatch.setattr(delete_topics, "COMMAND_TOPICS_MAX", 2)
        await delete(node, *names[5:])
        assert len(node.commands) == 5
        assert not node.image.topics

    run(test())


def test_where_somebody_else_was_faster_the_others_are_deleted_all_the_same() -> None:
    async def test() -> None:
        node = await cluster_with("a", "b", "c")
        refused = Refused(code=UnknownTopicIdError.code, message="")
        node.outcomes = [refused, refused]
        assert await delete(node, "a", "b") == {"a": UnknownTopicIdError.code, "b": 0}
        assert list(node.image.topics) == ["a", "c"]
        node.outcomes = [Unknown(message="The deadline passed")]
        before = len(node.commands)
        late = RequestTimedOutError.code
        assert await delete(node, "a", "c") == {"a": late, "c": late}
        assert len(node.commands) == before + 1, "an unknown outcome is not tried again"

    run(test())


def test_topics_are_deleted_one_by_one_while_there_is_older_software(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delete_topics, "LEVEL_TOGETHER", LEVEL_NEWEST + 1)

    async def test() -> None:
        node = await cluster_with("a", "b")
        assert await delete(node, "a", "b") == {"a": 0, "b": 0}
        assert [type(command) for command in node.commands] == [DeleteTopic, DeleteTopic]

    run(test())
