"""A node asks another one for its clients: what that costs, however many ask."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.errors import BrokerNotAvailableError, DlogError
from dlog.types import NodeId
from dlog.wire import messages
from dlog.wire.apis import ApiKey
from dlogd.metadata.state.image import NodeAddress
from dlogd.server import node_client
from dlogd.server.node_client import ASKED_MAX, NodeAsker
from tests.fakes.peer import Peer


def asker_of(peer: Peer) -> NodeAsker:
    address = NodeAddress(listener="clients", host=peer.address.host, port=peer.address.port)
    image: Any = SimpleNamespace(nodes={2: SimpleNamespace(addresses=(address,))})
    return NodeAsker(asyncio.get_running_loop(), lambda: image)


def question() -> Any:
    return messages.request_type(ApiKey.DESCRIBE_QUORUM, 2)(topics=())


def answered(_request: Any, module: Any, _header: Any) -> Any:
    return module.DescribeQuorumResponse(
        error_code=module.ErrorCode(0), error_message=None, topics=(), nodes=()
    )


def test_many_who_ask_have_few_connections_and_all_an_answer() -> None:
    async def scenario() -> None:
        peer, most = Peer(), 0

        def answer(*arguments: Any) -> Any:
            nonlocal most
            most = max(most, peer.open_count)
            return answered(*arguments)

        peer.answers[ApiKey.DESCRIBE_QUORUM] = answer
        await peer.start()
        asker = asker_of(peer)
        found = await asyncio.gather(*(asker.ask(NodeId(2), question()) for _ in range(100)))
        assert (len(found), most <= ASKED_MAX) == (100, True)
        peer.stop()

    asyncio.run(scenario())


def test_nobody_waits_long_behind_those_who_ask_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "TIMEOUT_S", 0.2)

    async def scenario() -> None:
        peer = Peer()
        peer.answers[ApiKey.DESCRIBE_QUORUM] = lambda *_: None
        await peer.start()
        asker = asker_of(peer)
        work = (asker.ask(NodeId(2), question()) for _ in range(100))
        errors = await asyncio.gather(*work, return_exceptions=True)
        assert all(isinstance(each, DlogError) for each in errors)
        assert any(isinstance(each, BrokerNotAvailableError) for each in errors)
        assert len(peer.connections) <= 2 * ASKED_MAX
        peer.stop()

    asyncio.run(scenario())
