"""What IncrementalAlterConfigs takes back: only what its resource can have, or has."""

import asyncio

import pytest

from dlogd.metadata.commands.codec import AlterConfigs, ConfigChange
from tests.fakes.config_requests import BROKER, DELETE, SET, TOPIC, alter
from tests.fakes.server import FakeNode


@pytest.mark.parametrize(
    ("kind", "name", "key", "said"),
    [
        (TOPIC, "t", "retention.msx", "Unknown topic config name: retention.msx; did you mean"),
        (TOPIC, "t", "replication.factor", "cannot be unset, for it is not stored: set it to"),
        (BROKER, "", "default.replication.factor", "Unknown cluster config name: default.repl"),
        (BROKER, "", "retention.ms", "retention.ms; here it is log.retention.ms"),
        (TOPIC, "t", "log.retention.ms", "log.retention.ms; here it is retention.ms"),
        (BROKER, "1", "no.such.key", "Unknown node config name: no.such.key"),
    ],
)
def test_what_is_unknown_cannot_be_taken_back(kind: int, name: str, key: str, said: str) -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        for validate_only in (True, False):
            code, message = await alter(
                node, kind, name, (key, DELETE, None), validate_only=validate_only
            )
            assert code == 40 and said in (message or "")

    asyncio.run(test())


def test_what_an_earlier_version_set_can_be_taken_back() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        topic = node.image.topics["t"]
        change = ConfigChange(key="of.old", value="1")
        for topic_id in (topic.topic_id, None):
            # The machine takes what a proposer has checked.
            node.apply(
                AlterConfigs(command_id=node.context.new_id(), topic_id=topic_id, changes=(change,))
            )
        assert await alter(node, TOPIC, "t", ("of.old", DELETE, None)) == (0, None)
        assert await alter(node, BROKER, "", ("of.old", DELETE, None)) == (0, None)
        assert node.image.topics["t"].configs == node.image.configs == {}

    asyncio.run(test())


@pytest.mark.parametrize("value", ["0" * 5000, "00000000" + "1" * 5000, "1" * 5000, "0", None])
def test_a_factor_that_cannot_be_is_refused(value: str | None) -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        code, message = await alter(node, TOPIC, "t", ("replication.factor", SET, value))
        assert code == 40 and "set it to 1 to" in (message or "")
        assert await alter(node, TOPIC, "t", ("replication.factor", SET, "001")) == (0, None)

    asyncio.run(test())
