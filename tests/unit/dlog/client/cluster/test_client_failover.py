"""The client finds the cluster again and its calls end in time: nodes behind bad proxies."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from dlog.client.cluster.node import NodeClient
from dlog.errors import (
    ConnectFailedError,
    DisconnectedError,
    DlogError,
    InconsistentClusterIdError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
)
from dlog.transport import Address
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from tests.fakes.harmed_cluster import OPTIONS, POLICY, World, ask_versions, check, serve
from tests.fakes.peer import HangUpError
from tests.fakes.proxy import Direction, Proxy

# Finding the cluster


def test_a_silent_node_does_not_hold_the_look_up_up() -> None:
    async def work(world: World) -> None:
        await world.cluster.metadata("t")
        await world.cluster.connection(1)
        world.proxies[1].swallow()
        world.nodes.leaders = [2, 2]
        world.nodes.leader_epoch = 4
        await world.cluster.metadata("t", refresh=True)
        assert world.cluster.leader_of("t", 0).node_id == 2

    # No time-out may have a part in it: with these they would take the whole test.
    check(work, policy={"lookup_timeout_s": 1000.0}, request_timeout_s=1000.0)


def test_another_node_than_the_last_one_can_be_asked() -> None:
    async def work(world: World) -> None:
        peers = world.nodes.peers
        await world.cluster.refresh(["t"])
        for asked in (2, 1, 2):
            before = {node_id: len(peer.seen) for node_id, peer in peers.items()}
            await world.cluster.refresh(["t"], elsewhere=True)
            new = [node_id for node_id, peer in peers.items()
                   if ApiKey.METADATA in peer.seen[before[node_id] :]]  # fmt: skip
            assert asked in new  # the last one as well, when this one takes long
        # Where there is no other one, the same is asked again.
        peers[1].stop()
        await world.proxies[1].close()
        for _ in range(2):
            assert (await world.cluster.refresh(["t"], elsewhere=True)).topics["t"]

    check(work)


def test_all_addresses_change_and_bootstrap_finds_the_cluster_again() -> None:
    async def work(world: World) -> None:
        async with Proxy(world.nodes.peers[1].address) as door:
            cluster = world.client(Address("127.0.0.1", 1), door.address)
            try:
                await cluster.metadata("t")
                assert cluster.leader_of("t", 0).address == world.proxies[1].address
                for node_id, peer in world.nodes.peers.items():
                    await world.proxies[node_id].close()
                    world.proxies[node_id] = Proxy(peer.address)
                    await world.proxies[node_id].start()
                    peer.advertised = world.proxies[node_id].address
                world.cluster, own = cluster, world.cluster
                assert [await serve(world, partition=n) for n in (0, 1)] == [1, 2]
                view = await cluster.rediscover()
                assert view.nodes[2].address == world.proxies[2].address
                world.cluster = own
            finally:
                await cluster.close()

    check(work)


def test_the_first_connection_is_given_up_when_the_nodes_themselves_are_reached() -> None:
    async def work(world: World) -> None:
        async with Proxy(world.nodes.peers[1].address) as door:
            cluster = world.client(door.address)
            try:
                await cluster.metadata("t")
                assert door.open_count == 1
                await cluster.connection(1)
                await cluster.connection(2)
                await cluster.rediscover()
                await door.wait_ended()
                assert (await cluster.any_node()).address != door.address
                assert cluster.counters.connections_opened == 3
            finally:
                await cluster.close()

    check(work)


def test_another_cluster_at_the_same_address_is_refused() -> None:
    async def work(world: World) -> None:
        await world.cluster.metadata("t")
        world.nodes.cluster_id = "other"
        with pytest.raises(InconsistentClusterIdError, match="belongs to cluster other, not to c"):
            await world.cluster.metadata("t", refresh=True)
        world.nodes.cluster_id = None
        await world.cluster.metadata("t", refresh=True)

    check(work)


def test_many_callers_share_one_attempt_to_connect() -> None:
    async def work(world: World) -> None:
        await world.cluster.metadata("t")
        world.proxies[2].swallow(Direction.TO_CLIENT)
        calls = [asyncio.ensure_future(world.cluster.connection(2)) for _ in range(50)]
        await world.proxies[2].wait_forwarded(Direction.TO_SERVER, 1)
        calls[0].cancel()  # who leaves does not stop it for the others
        world.proxies[2].cut()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert all(type(result) is DisconnectedError for result in results[1:])
        assert len({id(result) for result in results[1:]}) == 49
        assert world.proxies[2].accepted_count == 1
        world.proxies[2].heal()
        nodes = await asyncio.gather(*(world.cluster.connection(2) for _ in range(50)))
        assert all(node is nodes[0] for node in nodes)
        assert world.proxies[2].accepted_count == 2

    check(work)


def test_closing_ends_look_ups_and_attempts_under_way() -> None:
    async def work(world: World) -> None:
        world.proxies[1].swallow()
        cluster = world.client()
        calls = [
            asyncio.ensure_future(call)
            for call in (
                cluster.metadata("t"),
                cluster.rediscover(),
                cluster.any_node(),
                cluster.run(cluster.any_node, lambda node: cluster.refresh()),
            )
        ]
        await world.proxies[1].wait_accepted(1)
        await cluster.close()
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, DlogError), result
        with pytest.raises(DlogError, match="closed"):
            await cluster.any_node()

    check(work)


# Calls


@pytest.mark.parametrize("harm", ["cut", "reset", "refuse", "swallow", "half_open", "kill"])
def test_a_call_follows_the_leader_whatever_happens_to_the_old_one(harm: str) -> None:
    async def work(world: World) -> None:
        assert await serve(world) == 1
        world.nodes.leaders = [2, 2]
        world.nodes.leader_epoch = 4
        proxy = world.proxies[1]
        if harm == "cut":
            proxy.cut_after(Direction.TO_CLIENT, 5)
        elif harm == "reset":
            proxy.cut(reset=True)
        elif harm == "refuse":
            proxy.refuse()
            proxy.cut()
        elif harm == "swallow":
            proxy.swallow()
        elif harm == "half_open":
            proxy.half_open()
        else:
            world.nodes.peers[1].stop()
        assert await serve(world) == 2
        assert world.cluster.counters.retries >= 1
        assert await serve(world) == 2

    check(work, request_timeout_s=0.3)


@pytest.mark.parametrize("harm", ["swallow", "stall", "half_open", "refuse", "drip"])
def test_no_call_outlives_its_deadline(harm: str) -> None:
    async def work(world: World) -> None:
        assert await serve(world) == 1
        for proxy in world.proxies.values():
            if harm == "drip":
                proxy.drip = (1, 0.05)  # every byte is progress, and none is an answer
            elif harm == "refuse":
                proxy.refuse()
                proxy.cut()
            else:
                getattr(proxy, harm)()
        world.cluster.policy = replace(world.cluster.policy, deadline_s=3.0)
        # Any other limit here is an hour: then the test's own would end it.
        with pytest.raises((ConnectFailedError, RequestTimedOutError)) as caught:
            await serve(world)
        assert "127.0.0.1:" in str(caught.value)
        assert world.cluster.counters.give_ups == 1

    check(work, policy={"lookup_timeout_s": 3600.0}, request_timeout_s=3600.0)


def test_connections_may_come_up_in_any_order() -> None:
    async def work(world: World) -> None:
        await world.cluster.metadata("t")
        other = world.client(world.proxies[2].address)
        world.proxies[2].hold(2)
        nodes = await asyncio.gather(world.cluster.connection(2), other.any_node())
        assert nodes[0] is not nodes[1]
        for node in nodes:
            await node.call(ApiKey.API_VERSIONS, ask_versions)
        await other.close()

    check(work)


def test_what_never_left_is_repeated_although_it_may_not_be_done_twice() -> None:
    async def work(world: World) -> None:
        calls = 0

        async def operation(node: NodeClient) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                node.close()  # it ends before the request is on its way
            await node.call(ApiKey.API_VERSIONS, ask_versions)
            return calls

        cluster = world.cluster
        assert await cluster.run(cluster.any_node, operation, idempotent=False) == 2

        def lose(_request: Any, _module: Any, _header: RequestHeader) -> Any:
            raise HangUpError

        async def lost(node: NodeClient) -> None:
            for peer in world.nodes.peers.values():
                peer.answers[ApiKey.LIST_OFFSETS] = lose
            request = await node.call(
                ApiKey.LIST_OFFSETS,
                lambda m: m.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=()),
            )
            raise AssertionError(request)

        with pytest.raises(DisconnectedError):
            await cluster.run(cluster.any_node, lost, idempotent=False)
        assert world.seen(ApiKey.LIST_OFFSETS) == 1

    check(work)


def test_every_retry_and_the_end_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dlog.client")

    async def work(world: World) -> None:
        async def operation(_node: NodeClient) -> None:
            raise NotLeaderOrFollowerError("moved away")

        world.cluster.policy = replace(POLICY, deadline_s=2.0)
        with pytest.raises(NotLeaderOrFollowerError):
            await world.cluster.run(world.cluster.any_node, operation, topic="t")
        counters = world.cluster.counters
        repeats = [line for line in caplog.messages if line.startswith("Repeated a call")]
        assert len(repeats) == counters.retries >= 1
        assert " attempt=1 " in repeats[0]
        assert "error=NOT_LEADER_OR_FOLLOWER reason='moved away'" in repeats[0]
        (gave_up,) = [line for line in caplog.messages if line.startswith("Gave up a call")]
        assert f" attempt={counters.retries + 1} " in gave_up
        assert counters.give_ups == 1
        assert counters.as_dict()["requests_sent"] > 0

    check(work)


def test_the_first_answer_has_what_is_left_of_the_time_to_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[float] = []
    negotiate = NodeClient.negotiate

    async def note(self: NodeClient, timeout_s: float | None = None) -> None:
        given.append(timeout_s or 0.0)
        await negotiate(self, timeout_s)

    async def authenticate(_: object) -> None:
        await asyncio.sleep(0.1)

    async def work(world: World) -> None:
        monkeypatch.setattr(NodeClient, "negotiate", note)
        await world.cluster.metadata("t")
        assert 0 < given[0] <= OPTIONS.connect_timeout_s - 0.1

    check(work, authenticate=authenticate)
