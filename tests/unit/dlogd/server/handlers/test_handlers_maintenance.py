"""Maintenance lock through requests: set, described, deleted, and what has to carry its token."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import InvalidConfigError, InvalidRequestError, PolicyViolationError
from dlog.types import NodeId
from dlog.wire.apis import ApiKey
from dlogd.metadata.state.image import Drain
from dlogd.metadata.state.limits import LEVEL_MAINTENANCE
from dlogd.server.handlers.maintenance import LOCK, TOKEN
from tests.fakes.cluster_requests import cluster
from tests.fakes.config_requests import BROKER, DELETE, SET, alter, describe
from tests.fakes.server import FakeNode

ANN, BOB = str(UUID(int=0xA)), str(UUID(int=0xB))
POLICY = PolicyViolationError.code


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def wanted(token: str = ANN, **fields: Any) -> str:
    values = {"owner": "ann@ops1", "token": token, "node": 2, "lifetime_ms": 60_000}
    return json.dumps(values | fields)


async def hold(node: FakeNode, token: str = ANN, /, **fields: Any) -> tuple[int, str | None]:
    return await alter(node, BROKER, "", (LOCK, SET, wanted(token, **fields)))


async def present(node: FakeNode) -> Any:
    _, configs = await describe(node, BROKER, "")
    return None if LOCK not in configs else json.loads(configs[LOCK].value)


def test_it_is_held_described_renewed_and_released() -> None:
    async def test() -> None:
        node, _ = cluster()
        assert await present(node) is None
        assert await hold(node) == (0, None)
        now_ms = node.context.clock.timestamp_ms()
        assert await present(node) == {
            "owner": "ann@ops1",
            "node": 2,
            "since_ms": now_ms,
            "expires_ms": now_ms + 60_000,
        }
        code, message = await hold(node, BOB)
        assert code == POLICY
        assert message is not None and "by ann@ops1 (node 2) since" in message
        assert (await hold(node, node=None, owner="step 2"))[0] == 0
        assert (await present(node))["node"] is None
        assert (await alter(node, BROKER, "", (LOCK, DELETE, BOB)))[0] == POLICY
        assert await alter(node, BROKER, "", (LOCK, DELETE, ANN)) == (0, None)
        assert await present(node) is None

    run(test())


@pytest.mark.parametrize("value", [None, ""])
def test_without_a_token_it_ends_whoever_holds_it(value: str | None) -> None:
    """As kafka-configs.sh --delete-config does."""

    async def test() -> None:
        node, _ = cluster()
        await hold(node)
        assert await alter(node, BROKER, "", (LOCK, DELETE, value)) == (0, None)
        assert await present(node) is None

    run(test())


def test_drains_and_removals_have_to_carry_the_token() -> None:
    async def test() -> None:
        node, _ = cluster(5)
        node.fence(5)
        await hold(node)

        async def drain(*token: tuple[str, int, str | None]) -> int:
            return (await alter(node, BROKER, "2", ("node.drain", SET, "leaders"), *token))[0]

        assert await drain() == POLICY
        assert await drain((TOKEN, SET, BOB)) == POLICY
        assert node.image.nodes[NodeId(2)].drain == Drain.NONE
        assert await drain((TOKEN, SET, ANN)) == 0
        assert node.image.nodes[NodeId(2)].drain == Drain.LEADERS
        assert (await alter(node, BROKER, "2", ("node.drain", DELETE, None)))[0] == 0

        response = await node.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=5)
        assert int(response.error_code) == POLICY
        forget = ("node.registration", DELETE, None)
        assert (await alter(node, BROKER, "5", forget))[0] == POLICY
        rehearsed = await alter(node, BROKER, "5", forget, (TOKEN, SET, ANN), validate_only=True)
        assert rehearsed[0] == 0 and NodeId(5) in node.image.nodes
        assert (await alter(node, BROKER, "5", forget, (TOKEN, SET, ANN)))[0] == 0
        assert NodeId(5) not in node.image.nodes

    run(test())


def test_a_voter_is_forgotten_with_no_token() -> None:
    async def test() -> None:
        node, _ = cluster()
        await hold(node)
        node.fence(2)
        forget = ("node.registration", DELETE, None)
        code, message = await alter(node, BROKER, "2", forget, (TOKEN, SET, ANN))
        assert code == InvalidRequestError.code
        assert message == "Node 2 is a voter of the metadata: remove it there first"

    run(test())


def test_a_node_alone_has_no_lock() -> None:
    """Its feature level is one, and is never raised."""

    async def test() -> None:
        node = FakeNode()
        code, message = await hold(node)
        assert code == InvalidRequestError.code
        assert message == "This node keeps its metadata alone: no other waits for a lock"
        assert await present(node) is None

    run(test())


def test_below_its_level_the_cure_is_named() -> None:
    async def test() -> None:
        node, _ = cluster()
        node.image = node.image.having(feature_level=LEVEL_MAINTENANCE - 1)
        for change in ((LOCK, SET, wanted()), (LOCK, DELETE, None)):
            code, message = await alter(node, BROKER, "", change)
            assert code == InvalidConfigError.code
            assert message is not None
            assert "needs feature level 5, the cluster is at 4" in message
            assert message.endswith("dlogctl config set feature.level=5")
        drained = await alter(node, BROKER, "2", ("node.drain", SET, "leaders"), (TOKEN, SET, ANN))
        assert drained == (0, None)

    run(test())


@pytest.mark.parametrize(
    "text",
    [
        *("", "ann", "[]", "{}", "[" * 4_000, " " * 5_000),
        *(wanted(owner=1), wanted(owner="a\nb"), wanted(owner="\ud800"), wanted("ann")),
        *(wanted(node=-1), wanted(node=True), wanted(node=1 << 31), wanted(lifetime_ms="5")),
        wanted(lifetime_ms=5.0),
        wanted().replace("60000", "9" * 4_500),
        wanted().replace(f'"{ANN}"', "null"),
    ],
)
def test_what_is_no_lock(text: str) -> None:
    async def test() -> None:
        node, _ = cluster()
        code, message = await alter(node, BROKER, "", (LOCK, SET, text))
        assert code == InvalidConfigError.code and message
        assert node.image.maintenance is None

    run(test())


def test_what_is_no_request() -> None:
    async def test() -> None:
        node, _ = cluster()
        drain, token = ("node.drain", SET, "leaders"), (TOKEN, SET, ANN)
        for name, changes, error in (
            ("2", [drain, (TOKEN, SET, "ann")], InvalidConfigError),
            ("2", [drain, (TOKEN, DELETE, ANN)], InvalidConfigError),
            ("2", [drain, token, token], InvalidConfigError),
            ("2", [token], InvalidRequestError),
            ("2", [("node.registration", SET, "1")], InvalidConfigError),
            ("", [(LOCK, SET, wanted()), token], InvalidRequestError),
            ("", [(LOCK, 2, wanted())], InvalidConfigError),
            ("", [(LOCK, SET, wanted(owner=""))], InvalidRequestError),
            ("", [(LOCK, SET, wanted(lifetime_ms=3_600_001))], InvalidRequestError),
        ):
            code, message = await alter(node, BROKER, name, *changes)
            assert (code, bool(message)) == (error.code, True), changes
        assert not any(each.drain for each in node.image.nodes.values())

    run(test())


def test_an_expired_lock_is_described_no_longer() -> None:
    async def test() -> None:
        node, _ = cluster(5)
        await hold(node)
        assert await present(node) is not None
        node.context.clock = Later(node.context.clock)
        assert await present(node) is None
        # It holds nothing back either, though the image still has it.
        node.fence(5)
        response = await node.ask(ApiKey.UNREGISTER_BROKER, 0, broker_id=5)
        assert (int(response.error_code), response.error_message) == (0, None)
        assert node.image.maintenance is not None
        assert (await hold(node, BOB))[0] == 0

    run(test())


class Later:
    """A clock that is an hour ahead."""

    def __init__(self, clock: Any) -> None:
        self.now_ms, self.now_us = clock.now_ms, clock.now_us
        self._clock = clock

    def timestamp_ms(self) -> int:
        return int(self._clock.timestamp_ms()) + 3_600_000
