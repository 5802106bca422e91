"""Which leaders the client knows, when it looks them up, and what it does about silent ones."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from dlog.errors import (
    BrokerNotAvailableError,
    ConnectFailedError,
    DisconnectedError,
    DlogError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    ProtocolError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from dlog.wire.apis import ApiKey
from tests.fakes.harmed_cluster import OPTIONS, World, ask_versions, check, serve
from tests.fakes.proxy import Proxy

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

    check(work, policy={"patience_s": 30.0})


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
        lines = [line for line in caplog.messages if line.startswith("Partition call failed")]
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
        with pytest.raises(LeaderNotAvailableError, match="not known now"):
            cluster.leader_of("t", 0)
        world.nodes.leaders, world.nodes.leader_epoch = [1, 2], 10
        await cluster.metadata("t")
        assert [cluster.leader_of("t", n).node_id for n in (0, 1)] == [1, 2]

    check(work)


# Silent leaders

ENDLESS = {"lookup_timeout_s": 1000.0, "deadline_s": 1000.0}
"""No time-out has a part in it: with these they would take the whole test."""


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

    check(work, policy=ENDLESS, request_timeout_s=1000.0)


@pytest.mark.parametrize("is_looked_up_by_others", [False, True])
def test_a_host_that_vanished_is_not_waited_for_when_another_one_leads(
    is_looked_up_by_others: bool,
) -> None:
    """Nothing is connected to it, and it does not refuse either."""

    async def work(world: World) -> None:
        cluster = world.client(world.proxies[2].address, policy=ENDLESS, connect_timeout_s=1000.0)
        try:
            await cluster.metadata("t")
            world.proxies[1].swallow()
            waiting = [asyncio.create_task(serve(world, cluster=cluster)) for _ in range(2)]
            await asyncio.sleep(0 if is_looked_up_by_others else 0.2)
            assert not any(each.done() for each in waiting)
            assert cluster.counters.silences == 0
            world.nodes.leaders, world.nodes.leader_epoch = [2, 2], 10
            if is_looked_up_by_others:
                await cluster.metadata("t", refresh=True)
            assert await asyncio.gather(*waiting) == [2, 2]
            counters = cluster.counters
            assert (counters.silences, counters.connections_failed) == (1, 1)
        finally:
            await cluster.close()

    check(work)


@pytest.mark.parametrize("harm", [Proxy.swallow, Proxy.refuse])
def test_a_controller_that_does_not_connect_is_gone_around(harm: Callable[[Proxy], None]) -> None:
    """And asked for again: by the next call it may be another one."""

    async def work(world: World) -> None:
        cluster = world.client(world.proxies[2].address, policy=ENDLESS, connect_timeout_s=1000.0)
        try:
            await cluster.metadata("t")
            harm(world.proxies[1])
            for look_ups in (1, 2):
                assert (await cluster.controller()).address == world.proxies[2].address
                assert cluster.counters.metadata_requests >= look_ups
        finally:
            await cluster.close()

    check(work)


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
