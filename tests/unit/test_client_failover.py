"""The client finds leaders again: fake nodes, each behind a proxy that does harm.

Every test ends with the same check: no call is left, no task, no socket.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dlog.client.cluster import Cluster
from dlog.client.node import NodeClient
from dlog.client.retry import RetryPolicy
from dlog.errors import (
    BrokerNotAvailableError,
    ConnectFailedError,
    DisconnectedError,
    DlogError,
    FencedLeaderEpochError,
    InconsistentClusterIdError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    ProtocolError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from dlog.transport import Address, ConnectionOptions
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from tests.fakes.peer import HangUpError, PeerCluster
from tests.fakes.proxy import Direction, Proxy

POLICY = RetryPolicy(
    base_s=0.001, cap_s=0.005, deadline_s=30.0, lookup_timeout_s=10.0, patience_s=0.02
)
OPTIONS = ConnectionOptions(request_timeout_s=20, connect_timeout_s=20)


@dataclass
class World:
    """Two fake nodes behind proxies, and a client that knows the first."""

    nodes: PeerCluster
    proxies: dict[int, Proxy]
    cluster: Cluster

    def client(self, *bootstrap: Address, **changes: Any) -> Cluster:
        """Return one more client; the caller closes it."""
        return Cluster(
            bootstrap or [self.proxies[1].address],
            loop=asyncio.get_running_loop(),
            rng=random.Random(5),
            policy=replace(POLICY, **changes.pop("policy", {})),
            options=replace(OPTIONS, **changes),
        )

    def seen(self, api: ApiKey) -> int:
        """Return how many requests of a kind all nodes got."""
        return sum(peer.seen.count(api) for peer in self.nodes.peers.values())


Work = Callable[[World], Awaitable[None]]


def check(work: Work, *, policy: dict[str, Any] | None = None, **options: Any) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        nodes, proxies = PeerCluster(), {}
        for node_id, peer in nodes.peers.items():
            await peer.start()
            proxies[node_id] = Proxy(peer.address)
            await proxies[node_id].start()
            peer.advertised = proxies[node_id].address
        world = World(nodes, proxies, None)  # type: ignore[arg-type]
        world.cluster = world.client(policy=policy or {}, **options)
        try:
            async with asyncio.timeout(60):
                await work(world)
        finally:
            await world.cluster.close()
            await world.cluster.close()
        for proxy in proxies.values():
            proxy.heal()
            async with asyncio.timeout(30):
                if not any(link.is_silent for link in proxy.links):
                    await proxy.wait_ended()  # the client has closed all that it opened
            await proxy.close()
        for peer in nodes.peers.values():
            peer.stop()
        left = [task for task in asyncio.all_tasks() - before if task.get_coro() is not None]
        assert not left, left

    asyncio.run(main())


async def serve(world: World, topic: str = "t", partition: int = 0) -> int:
    """Call the leader of a partition; return the node that answered."""

    async def operation(node: NodeClient) -> int:
        await node.call(ApiKey.API_VERSIONS, ask_versions)
        return next(n for n, proxy in world.proxies.items() if proxy.address == node.address)

    return await world.cluster.run(
        lambda: world.cluster.leader(topic, partition), operation, topic=topic
    )


def ask_versions(module: Any) -> Any:
    return module.ApiVersionsRequest(client_software_name="x", client_software_version="1")


# Knowing leaders


def test_leaders_are_known_once_they_were_looked_up() -> None:
    async def work(world: World) -> None:
        cluster = world.cluster
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.leader_of("t", 0)
        views = await asyncio.gather(*(cluster.metadata("t") for _ in range(20)))
        assert all(view is views[0] for view in views)
        assert world.seen(ApiKey.METADATA) == 1
        leader = cluster.leader_of("t", 1)
        assert (leader.node_id, leader.leader_epoch) == (2, 3)
        assert leader.address == world.proxies[2].address
        assert (await cluster.connection(2)).address == leader.address
        await cluster.metadata("t")
        assert world.seen(ApiKey.METADATA) == 1
        await cluster.metadata("t", refresh=True)
        assert world.seen(ApiKey.METADATA) == 2
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.leader_of("t", 2)
        with pytest.raises(UnknownTopicOrPartitionError):
            await cluster.metadata("missing")

    check(work)


def test_old_metadata_is_asked_for_again() -> None:
    async def work(world: World) -> None:
        await world.cluster.metadata("t")
        await world.cluster.metadata("t")
        assert world.seen(ApiKey.METADATA) == 2

    check(work, policy={"metadata_age_s_max": 0.0})


LEADER_ERRORS: list[DlogError] = [
    NotLeaderOrFollowerError(),
    LeaderNotAvailableError(),
    FencedLeaderEpochError(),
    UnknownLeaderEpochError(),
    UnknownTopicOrPartitionError(),
    BrokerNotAvailableError(),
]
TRANSPORT_ERRORS: list[DlogError] = [
    DisconnectedError("x"),
    ConnectFailedError("x"),
    RequestTimedOutError("x"),
    ProtocolError("x"),
]


@pytest.mark.parametrize("error", LEADER_ERRORS + TRANSPORT_ERRORS, ids=lambda e: type(e).__name__)
def test_after_each_error_the_leader_is_looked_up(
    error: DlogError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dlog.client")

    async def work(world: World) -> None:
        cluster, counters = world.cluster, world.cluster.counters
        await cluster.metadata("t")
        node = await cluster.connection(1)
        world.nodes.leaders = [2, 2]
        world.nodes.leader_epoch = 4
        caplog.clear()
        assert not cluster.on_error("t", 0, 1, error)
        assert not cluster.on_error("t", 0, 1, error)
        lines = [line for line in caplog.messages if line.startswith("Failed at a partition")]
        assert len(lines) == 1  # the second time it was in doubt already
        assert "partition=t-0 node=1" in lines[0]
        with pytest.raises(LeaderNotAvailableError):
            cluster.leader_of("t", 0)
        is_leader_error = error in LEADER_ERRORS
        assert (counters.leader_errors == 2) is is_leader_error
        assert (counters.transport_errors + counters.timeouts == 2) is not is_leader_error
        breaks = isinstance(error, DisconnectedError | ConnectFailedError | ProtocolError)
        assert node.is_open is not breaks
        await cluster.metadata("t")
        assert cluster.leader_of("t", 0).node_id == 2
        assert cluster.leader_of("t", 0).leader_epoch == 4
        assert counters.rediscoveries == 1
        assert counters.leader_changes == 2
        rediscovered = [line for line in caplog.messages if line.startswith("Rediscovered")]
        assert len(rediscovered) == 1
        assert "leader_changes=2" in rediscovered[0]

    check(work)


def test_errors_that_say_nothing_of_the_leader_leave_it() -> None:
    async def work(world: World) -> None:
        cluster = world.cluster
        await cluster.metadata("t")
        for error in (NotEnoughReplicasError(), TopicAuthorizationFailedError(), ValueError("x")):
            assert cluster.on_error("t", 0, 1, error)
        assert cluster.leader_of("t", 0).node_id == 1

    check(work)


def test_a_dead_node_puts_all_that_it_led_in_doubt() -> None:
    async def work(world: World) -> None:
        world.nodes.leaders = [1, 2, 1]
        await world.cluster.metadata("t")
        world.cluster.on_error("t", 0, 1, DisconnectedError("x"))
        for partition in (0, 2):
            with pytest.raises(LeaderNotAvailableError):
                world.cluster.leader_of("t", partition)
        assert world.cluster.leader_of("t", 1).node_id == 2

    check(work)


def test_a_node_that_says_that_it_took_too_long_is_alive() -> None:
    async def work(world: World) -> None:
        world.nodes.leaders = [1, 2, 1]
        await world.cluster.metadata("t")
        node = await world.cluster.connection(1)
        world.cluster.on_error("t", 0, 1, RequestTimedOutError("said the node"))
        assert node.is_open
        assert world.cluster.leader_of("t", 2).node_id == 1
        with pytest.raises(LeaderNotAvailableError):
            world.cluster.leader_of("t", 0)

    check(work)


def test_a_partition_without_leader_is_looked_up_when_it_is_needed() -> None:
    async def work(world: World) -> None:
        cluster = world.cluster
        world.nodes.leaders = [1, -1]
        await cluster.metadata("t")
        await cluster.metadata("t")
        assert world.seen(ApiKey.METADATA) == 1  # nobody needed it
        with pytest.raises(LeaderNotAvailableError, match="no leader"):
            cluster.leader_of("t", 1)
        world.nodes.leaders = [1, 2, 1]
        await cluster.metadata("t")
        assert cluster.leader_of("t", 1).node_id == 2
        world.nodes.leaders = [1, 2, 1, 2]
        with pytest.raises(UnknownTopicOrPartitionError):
            cluster.leader_of("t", 3)
        await cluster.metadata("t")
        assert cluster.leader_of("t", 3).node_id == 2
        known = cluster.known_topic("t")
        assert known is not None
        assert len(known.partitions) == 4
        assert cluster.known_topic("other") is None

    check(work)


def test_the_leader_in_an_answer_is_followed_without_a_look_up() -> None:
    async def work(world: World) -> None:
        cluster, error = world.cluster, NotLeaderOrFollowerError()
        await cluster.metadata("t")
        assert not cluster.on_error("t", 0, 1, error, leader=(2, 3))  # no newer epoch: no news
        await cluster.metadata("t")
        assert cluster.leader_of("t", 0).node_id == 1
        assert not cluster.on_error("t", 0, 1, error, leader=(7, 5))  # nobody knows where it is
        assert cluster.on_error("t", 0, 1, error, leader=(2, 5))
        assert cluster.leader_of("t", 0) == replace(
            cluster.leader_of("t", 1), node_id=2, leader_epoch=5
        )
        endpoint = (7, "127.0.0.1", world.proxies[2].address.port, None)
        assert cluster.on_error("t", 0, 2, error, leader=(7, 6), endpoints=[endpoint])
        assert cluster.leader_of("t", 0).address == world.proxies[2].address
        assert (await cluster.connection(7)).is_open
        assert cluster.counters.leader_hints == 2

    check(work)


def test_a_node_that_lags_does_not_bring_an_old_leader_back() -> None:
    async def work(world: World) -> None:
        cluster = world.cluster
        world.nodes.leaders, world.nodes.leader_epoch = [2, 2], 9
        await cluster.metadata("t")
        world.nodes.leaders, world.nodes.leader_epoch = [1, 1], 8
        await cluster.metadata("t", refresh=True)
        with pytest.raises(LeaderNotAvailableError, match="doubt"):
            cluster.leader_of("t", 0)
        world.nodes.leaders, world.nodes.leader_epoch = [1, 2], 10
        await cluster.metadata("t")
        assert [cluster.leader_of("t", n).node_id for n in (0, 1)] == [1, 2]

    check(work)


# Silent leaders


def test_a_silent_leader_is_given_up_when_another_one_leads() -> None:
    async def work(world: World) -> None:
        cluster = world.cluster
        assert [await serve(world, partition=n) for n in (0, 1)] == [1, 2]
        world.proxies[1].swallow()
        waiting = asyncio.create_task(serve(world))
        await asyncio.sleep(0.2)
        # It is the leader still, as far as anybody knows: it is waited for.
        assert not waiting.done()
        assert cluster.counters.silences == 0
        world.nodes.leaders, world.nodes.leader_epoch = [2, 2], 10
        assert await waiting == 2
        assert cluster.counters.silences == 1

    # No time-out has a part in it: with these they would take the whole test.
    endless = {"lookup_timeout_s": 1000.0, "deadline_s": 1000.0}
    check(work, policy=endless, request_timeout_s=1000.0)


def test_a_slow_leader_is_waited_for() -> None:
    """Others are asked, but it leads, or it had answered when they did."""

    async def work(world: World) -> None:
        cluster = world.cluster
        assert [await serve(world, partition=n) for n in (0, 1)] == [1, 2]
        world.proxies[1].stall()
        before = cluster.counters.metadata_requests
        waiting = asyncio.create_task(serve(world))
        while cluster.counters.metadata_requests < before + 2:
            await asyncio.sleep(0.01)
        world.proxies[1].heal()
        assert await waiting == 1
        assert cluster.counters.silences == cluster.counters.connections_lost == 0

    check(work)


def test_a_fetch_that_waits_for_data_is_no_silence() -> None:
    async def work(world: World) -> None:
        assert [await serve(world, partition=n) for n in (0, 1)] == [1, 2]
        world.proxies[1].stall()
        node = await world.cluster.connection(1)
        before = world.cluster.counters.metadata_requests
        waiting = asyncio.create_task(
            node.call(ApiKey.API_VERSIONS, ask_versions, OPTIONS.request_timeout_s + 1000)
        )
        await asyncio.sleep(0.3)
        assert world.cluster.counters.metadata_requests == before
        world.proxies[1].heal()
        await waiting

    check(work)


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


def hang_up(_request: Any, _module: Any, _header: RequestHeader) -> Any:
    raise HangUpError


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
        world.cluster.policy = replace(world.cluster.policy, deadline_s=0.5)
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

        world.cluster.policy = replace(POLICY, deadline_s=0.05)
        with pytest.raises(NotLeaderOrFollowerError):
            await world.cluster.run(world.cluster.any_node, operation, topic="t")
        counters = world.cluster.counters
        repeats = [line for line in caplog.messages if line.startswith("Repeats a call")]
        assert len(repeats) == counters.retries >= 1
        assert " attempt=1 " in repeats[0]
        assert "error=NOT_LEADER_OR_FOLLOWER reason='moved away'" in repeats[0]
        (gave_up,) = [line for line in caplog.messages if line.startswith("Gave a call up")]
        assert f" attempt={counters.retries + 1} " in gave_up
        assert counters.give_ups == 1
        assert counters.as_dict()["requests_sent"] > 0

    check(work)
