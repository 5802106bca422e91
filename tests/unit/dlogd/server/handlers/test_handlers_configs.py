"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from dlog.wire.apis import ApiKey
from dlogd.config.schema import build
from dlogd.metadata.commands.codec import Command
from dlogd.metadata.state.image import Outcome, Refused, Unknown
from dlogd.server.handlers import alter_configs, describe_configs
from tests.fakes.config_requests import (
    APPEND,
    BROKER,
    CLUSTER_SOURCE,
    DEFAULT_SOURCE,
    DELETE,
    FILE_SOURCE,
    LOGGER,
    SET,
    SUBTRACT,
    TOPIC,
    TOPIC_SOURCE,
    alter,
    describe,
)
from tests.fakes.server import FakeClock, FakeNode
from tests.fakes.turns import turns_beside


async def replace(node: FakeNode, name: str, **configs: str | None) -> int:
    resource = {
        "resource_type": TOPIC,
        "resource_name": name,
        "configs": [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()],
    }
    response = await node.ask(ApiKey.ALTER_CONFIGS, 2, resources=[resource])
    return int(response.responses[0].error_code)


def test_a_topic_shows_each_value_and_its_source() -> None:
    async def test() -> None:
        node = FakeNode(build({"segment.bytes": 1 << 20}))
        await node.create("t", 1, **{"retention.ms": "7"})
        assert await alter(node, BROKER, "", ("log.roll.ms", SET, "60000")) == (0, None)
        code, configs = await describe(
            node, TOPIC, "t", include_synonyms=True, include_documentation=True
        )
        assert code == 0
        found = {
            name: (configs[name].value, configs[name].config_source)
            for name in ("retention.ms", "segment.ms", "segment.bytes", "cleanup.policy")
        }
        assert found == {
            "retention.ms": ("7", TOPIC_SOURCE),
            "segment.ms": ("60000", CLUSTER_SOURCE),
            "segment.bytes": ("1048576", FILE_SOURCE),
            "cleanup.policy": ("delete", DEFAULT_SOURCE),
        }
        synonyms = [(s.name, s.source) for s in configs["retention.ms"].synonyms]
        assert synonyms[0] == ("retention.ms", TOPIC_SOURCE)
        assert synonyms[-1] == ("log.retention.ms", DEFAULT_SOURCE)
        assert "dropped" in configs["retention.ms"].documentation
        assert configs["retention.ms"].config_type == 5
        assert not configs["retention.ms"].read_only
        assert not configs["retention.ms"].is_sensitive

    asyncio.run(test())


def test_many_topics_at_once_each_show_their_own() -> None:
    async def test() -> None:
        node = FakeNode()
        wanted = {f"t{number}": str(1000 + number % 3) for number in range(30)}
        for name, value in wanted.items():
            await node.create(name, 1, **{"retention.ms": value})
        await node.create("plain")
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
            for name in (*wanted, "absent", "plain")
        ]
        response = await node.ask(ApiKey.DESCRIBE_CONFIGS, 1, resources=resources)
        found = {
            result.resource_name: {c.name: c.value for c in result.configs}.get("retention.ms")
            for result in response.results
        }
        assert found == {**wanted, "absent": None, "plain": "604800000"}

    asyncio.run(test())


def test_many_topics_with_the_same_configs_hold_nobody_up() -> None:
    async def test() -> None:
        node = FakeNode()
        resources = []
        for name in (f"t{number}" for number in range(300)):
            await node.create(name)
            resources.append({"resource_type": TOPIC, "resource_name": name})
        asking = node.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources)
        response, turns = await turns_beside(asking)
        assert turns >= 300 // describe_configs.RESOURCES_BURST_COUNT
        assert len(response.results) == 300
        # A megabyte of the same one was answered with three hundred of them.
        response = await node.ask(ApiKey.DESCRIBE_CONFIGS, 4, resources=resources[:2] * 50)
        assert [result.resource_name for result in response.results] == ["t0", "t1"]

    asyncio.run(test())


def test_only_what_is_asked_for() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        _, configs = await describe(node, TOPIC, "t", "retention.ms", "no.such.key")
        assert list(configs) == ["retention.ms"]
        assert configs["retention.ms"].synonyms == ()
        assert configs["retention.ms"].documentation is None

    asyncio.run(test())


def test_a_node_and_the_cluster() -> None:
    async def test() -> None:
        node = FakeNode()
        _, configs = await describe(node, BROKER, "1")
        assert configs["node.id"].value == "1"
        assert configs["node.id"].read_only
        assert not configs["log.retention.ms"].read_only
        assert await describe(node, BROKER, "") == (0, {})
        await alter(node, BROKER, "", ("min.insync.replicas", SET, "2"))
        _, configs = await describe(node, BROKER, "")
        assert [(n, c.value, c.config_source) for n, c in configs.items()] == [
            ("min.insync.replicas", "2", CLUSTER_SOURCE)
        ]
        _, configs = await describe(node, BROKER, "1")
        assert configs["min.insync.replicas"].value == "2"

    asyncio.run(test())


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        (TOPIC, "absent", 3),
        (TOPIC, "", 17),
        (BROKER, "2", 42),
        (BROKER, "one", 42),
        (LOGGER, "1", 42),
        (0, "", 42),
        (99, "", 42),
    ],
)
def test_what_cannot_be_described(resource_type: int, name: str, code: int) -> None:
    asyncio.run(_refused(describe(FakeNode(), resource_type, name), code))


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        (TOPIC, "absent", 3),
        (TOPIC, "", 42),
        (TOPIC, "a b", 17),
        (BROKER, "1", 42),
        (BROKER, "2", 42),
        (BROKER, "one", 42),
        (LOGGER, "1", 42),
        (0, "", 42),
    ],
)
def test_what_cannot_be_altered(resource_type: int, name: str, code: int) -> None:
    asyncio.run(_refused(alter(FakeNode(), resource_type, name, ("retention.ms", SET, "1")), code))


async def _refused(answer: Coroutine[Any, Any, tuple[int, Any]], code: int) -> None:
    assert (await answer)[0] == code


def test_many_resources_in_one_request_hold_nobody_up() -> None:
    async def test() -> None:
        node = FakeNode()
        resources = [
            {"resource_type": TOPIC, "resource_name": f"absent-{number}", "configs": []}
            for number in range(20_000)
        ]
        begun_s = time.process_time()
        response = await node.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            resources=[*resources, resources[0]],
            validate_only=False,
        )
        # When each looked for its like among all others, it was fifteen.
        assert time.process_time() - begun_s < 5
        codes = Counter(int(each.error_code) for each in response.responses)
        assert codes == {3: 19_999, 42: 2}

    asyncio.run(test())


def test_the_four_operations() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t", 1, **{"retention.ms": "7"})

        async def configs(*operations: tuple[str, int, str | None]) -> dict[str, str]:
            assert await alter(node, TOPIC, "t", *operations) == (0, None)
            return dict(node.image.topics["t"].configs)

        assert await configs(("retention.ms", SET, "8"), ("retention.bytes", SET, "9")) == {
            "retention.ms": "8",
            "retention.bytes": "9",
        }
        assert await configs(("retention.ms", DELETE, None)) == {"retention.bytes": "9"}
        assert await configs(("retention.ms", DELETE, None)) == {"retention.bytes": "9"}
        assert await configs(("cleanup.policy", APPEND, "delete")) == {
            "retention.bytes": "9",
            "cleanup.policy": "delete",
        }
        assert await configs() == {"retention.bytes": "9", "cleanup.policy": "delete"}

    asyncio.run(test())


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (("retention.ms", SET, "soon"), 40),
        (("retention.ms", SET, None), 42),
        (("retention.ms", APPEND, "1"), 40),
        (("retention.ms", SUBTRACT, "1"), 40),
        (("retention.ms", 4, "1"), 42),
        (("no.such.key", SET, "1"), 40),
        (("cleanup.policy", SUBTRACT, "delete"), 40),
        (("cleanup.policy", APPEND, "compact"), 40),
    ],
    ids=str,
)
def test_refused_operations_change_nothing(
    operation: tuple[str, int, str | None], code: int
) -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        for validate_only in (True, False):
            found, message = await alter(
                node,
                TOPIC,
                "t",
                ("retention.bytes", SET, "9"),
                operation,
                validate_only=validate_only,
            )
            assert found == code
            assert message
        assert node.image.topics["t"].configs == {}

    asyncio.run(test())


def test_many_resources_take_no_longer_than_one_where_nothing_is_decided() -> None:
    async def test() -> None:
        node = FakeNode()
        clock = cast(FakeClock, node.context.clock)
        for number in range(2, 5):
            node.register(number)
        names = [f"t{number}" for number in range(3)]
        for name in names:
            await node.create(name)
        begin_ms = clock.time_ms

        async def in_vain(_command: Command, deadline_ms: int) -> Outcome:
            clock.time_ms = max(clock.time_ms, deadline_ms)
            return Unknown(message="no quorum")

        node.context.propose_command = in_vain
        wanted = [(BROKER, str(number), "node.drain", "leaders") for number in range(2, 5)]
        wanted += [(TOPIC, name, "replication.factor", "2") for name in names]
        resources = [
            {
                "resource_type": kind,
                "resource_name": name,
                "configs": [{"name": key, "config_operation": SET, "value": value}],
            }
            for kind, name, key, value in wanted
        ]
        response = await node.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=resources)
        assert {each.error_code for each in response.responses} == {7}
        assert clock.time_ms - begin_ms == alter_configs.TIMEOUT_MS

    asyncio.run(test())


def test_validate_only_changes_nothing() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        operation = ("retention.ms", SET, "1")
        assert await alter(node, TOPIC, "t", operation, validate_only=True) == (0, None)
        assert node.image.topics["t"].configs == {}

    asyncio.run(test())


def test_the_same_key_or_resource_twice() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        code, _ = await alter(node, TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", 1, ""))
        assert code == 42
        resource = {
            "resource_type": TOPIC,
            "resource_name": "t",
            "configs": [{"name": "retention.ms", "config_operation": SET, "value": "1"}],
        }
        response = await node.ask(
            ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource, resource]
        )
        assert [r.error_code for r in response.responses] == [42, 42]
        assert node.image.topics["t"].configs == {}

    asyncio.run(test())


def test_a_list_that_somebody_else_changed_is_looked_at_again() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        propose, raced = node.propose, [False]

        async def race(command: Command, deadline_ms: int) -> Outcome:
            if not raced[0]:
                raced[0] = True
                assert await replace(node, "t", cleanup_policy="delete") == 0
            return await propose(command, deadline_ms)

        node.context.propose_command = race
        assert await alter(node, TOPIC, "t", ("cleanup.policy", APPEND, "delete")) == (0, None)
        assert len(node.commands) == 4

    asyncio.run(test())


def test_a_refusal_of_another_kind_is_not_repeated() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t")
        node.outcomes = [Refused(code=42, message="no")]
        assert await alter(node, TOPIC, "t", ("retention.ms", SET, "1")) == (42, "no")

    asyncio.run(test())


def test_the_elder_request_replaces_everything() -> None:
    async def test() -> None:
        node = FakeNode()
        await node.create("t", 1, **{"retention.ms": "7", "segment.ms": "8"})
        assert await replace(node, "t", retention_ms="9") == 0
        assert node.image.topics["t"].configs == {"retention.ms": "9"}
        assert await replace(node, "t", retention_ms=None) == 42
        assert await replace(node, "t", nonsense="1") == 40
        assert await replace(node, "absent", retention_ms="1") == 3
        assert node.image.topics["t"].configs == {"retention.ms": "9"}
        assert await replace(node, "t") == 0
        assert node.image.topics["t"].configs == {}

    asyncio.run(test())
