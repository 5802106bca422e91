"""A producer and a leader that has moved: the refusal names the new one (KIP-951)."""

from dataclasses import replace
from typing import Any
from uuid import UUID

from dlog.client.producer import Producer
from dlog.errors import NotLeaderOrFollowerError
from dlog.wire import produce
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from tests.fakes.harmed_cluster import POLICY, World, check

HINT_VERSION = 10
MOVED = (2, 5)  # node, epoch
PATIENT = replace(POLICY, patience_s=10.0)
"""Other nodes are asked for the leader only when one does not answer, however slow it is."""


def test_the_leader_that_a_refusal_names_gets_the_batch_without_a_look_up() -> None:
    async def work(world: World) -> None:
        asked: list[int] = []

        def answers(node_id: int) -> Any:
            def answer(header: RequestHeader, _frame: memoryview) -> bytes:
                asked.append(node_id)
                moved = node_id != MOVED[0]
                error = NotLeaderOrFollowerError.code if moved else 0
                row = (0, error, -1 if moved else 7, -1, -1, None)
                hint: Any = {("t", 0): MOVED} if moved else {}
                return produce.encode_response(
                    header.api_version, header.correlation_id, [("t", [row])], 0, hint
                )

            return answer

        for node_id, peer in world.nodes.peers.items():
            peer.raw[ApiKey.PRODUCE] = answers(node_id)
            peer.versions[ApiKey.PRODUCE] = (3, HINT_VERSION)
        async with Producer(
            [world.proxies[1].address], acks="leader", idempotent=False, policy=PATIENT
        ) as producer:
            await producer.send_many("t", [])  # knows the topic now
            before = world.seen(ApiKey.METADATA)
            written = await producer.write("t", b"v", partition=0)
            assert (written.partition, written.offset) == (0, 7)
            assert asked == [1, 2]
            assert producer.cluster.counters.leader_hints == 1
            assert world.seen(ApiKey.METADATA) == before

    check(work)


def test_a_leader_of_a_life_that_is_over_is_not_followed() -> None:
    """Its epoch is greater than any of the topic that was made anew: nobody would be believed."""

    async def work(world: World) -> None:
        refused: list[int] = []

        def answer(header: RequestHeader, _frame: memoryview) -> bytes:
            error, hint = 0, {}
            if not refused:
                refused.append(1)
                view = producer.cluster.known_topic("t")
                assert view is not None
                producer.cluster._cache._topics["t"].view = replace(view, topic_id=UUID(int=5))
                error, hint = NotLeaderOrFollowerError.code, {("t", 0): MOVED}
            row = (0, error, -1 if error else 7, -1, -1, None)
            return produce.encode_response(
                header.api_version, header.correlation_id, [("t", [row])], 0, hint
            )

        peer = world.nodes.peers[1]
        peer.raw[ApiKey.PRODUCE] = answer
        peer.versions[ApiKey.PRODUCE] = (3, HINT_VERSION)
        async with Producer(
            [world.proxies[1].address], acks="leader", idempotent=False, policy=POLICY
        ) as producer:
            assert (await producer.write("t", b"v", partition=0)).offset == 7
            assert producer.cluster.counters.leader_hints == 0

    check(work)
