"""A consumer's calls end by the deadline of its policy, however patient its connections are."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from dlog.client.consumer import Consumer
from dlog.client.retry import RetryPolicy
from dlog.errors import ConnectFailedError
from dlog.transport import ConnectionOptions
from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import ApiKey
from tests.fakes.peer import Peer, PeerCluster

DEADLINE_S = 0.3
HANGS_S = 20.0
BRIEF = RetryPolicy(base_s=0.001, cap_s=0.01, deadline_s=DEADLINE_S)
PATIENT = ConnectionOptions(connect_timeout_s=100.0, request_timeout_s=100.0)

FIRST = TopicPartition("t", PartitionId(0))

Call = Callable[[Consumer], Awaitable[object]]
CALLS: dict[str, Call] = {
    "start": lambda reader: reader.start(),
    "assign": lambda reader: reader.assign([FIRST], "latest"),
    "end_offsets": lambda reader: reader.end_offsets([FIRST]),
    "offsets_at": lambda reader: reader.offsets_at({FIRST: "earliest"}),
}


def silent(_request: object, _module: object, _header: object) -> None:
    """Leave a request without an answer."""


def check(silenced: ApiKey, call: Call, *topics: str) -> None:
    async def main() -> None:
        nodes = PeerCluster()
        for peer in nodes.peers.values():
            peer.answers[silenced] = silent
            await peer.start()
        first: Peer = nodes.peers[1]
        reader = Consumer(
            [first.address], topics, policy=BRIEF, connection=PATIENT, rng=random.Random(1)
        )
        async with asyncio.timeout(HANGS_S):
            if not topics:
                await reader.start()
            with pytest.raises(ConnectFailedError, match=r"no answer within 0\.3 s from any of "):
                await call(reader)
            await reader.close()
        for peer in nodes.peers.values():
            peer.stop()

    asyncio.run(main())


@pytest.mark.parametrize("silenced", [ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.LIST_OFFSETS])
def test_starting_ends_in_time(silenced: ApiKey) -> None:
    check(silenced, CALLS["start"], "t")


@pytest.mark.parametrize("silenced", [ApiKey.METADATA, ApiKey.LIST_OFFSETS])
@pytest.mark.parametrize("name", ["assign", "end_offsets", "offsets_at"])
def test_asking_for_offsets_ends_in_time(name: str, silenced: ApiKey) -> None:
    check(silenced, CALLS[name])
