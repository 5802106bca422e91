"""Reading from the follower that a leader names for a rack (KIP-392), and from the leader again."""

from dataclasses import replace
from typing import Any

import pytest

from dlog.client.consumer import Consumer
from dlog.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    ReplicaNotAvailableError,
    UnknownLeaderEpochError,
    WireError,
)
from tests.fakes.batches import batch
from tests.fakes.log_consumers import POLICY, consumer, offsets, read, run
from tests.fakes.log_nodes import LogNodes

LEADER, FOLLOWER = 0, 1


def racked(servers: LogNodes, **changes: Any) -> Consumer:
    """Return a consumer in the follower's rack."""
    servers.logs[0].follower = FOLLOWER
    return consumer(servers, rack="a", **changes)


def asked_since(servers: LogNodes, count: int) -> list[tuple[int, str]]:
    """Return (node, rack that it was told) of each fetch but the first `count`."""
    pairs = zip(servers.asked_nodes, servers.requests, strict=True)
    return [(node, request.rack_id) for node, request in pairs][count:]


async def read_more(servers: LogNodes, reader: Consumer) -> list[tuple[int, str]]:
    """Write a batch, read it, and return who was asked."""
    count, end = len(servers.requests), servers.logs[0].end
    servers.logs[0].append(batch(end, leader_epoch=servers.logs[0].leader_epoch))
    servers.notify()
    assert offsets(await read(reader, 3)) == [end, end + 1, end + 2]
    return asked_since(servers, count)


def test_the_follower_is_read_that_the_leader_names() -> None:
    async def work(servers: LogNodes) -> None:
        async with racked(servers) as reader:
            assert offsets(await read(reader, 9)) == list(range(9))
            assert asked_since(servers, 0)[:2] == [(LEADER, "a"), (FOLLOWER, "a")]
            assert {node for node, _ in await read_more(servers, reader)} == {FOLLOWER}
            assert reader.counters.follower_moves == 1

    run(work, nodes=2)


def test_without_a_rack_the_leader_is_read() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].follower = FOLLOWER
        async with consumer(servers) as reader:
            await read(reader, 9)
            assert set(asked_since(servers, 0)) == {(LEADER, "")}

    run(work, nodes=2)


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderOrFollowerError,
        ReplicaNotAvailableError,
        UnknownLeaderEpochError,
        OffsetNotAvailableError,
        OffsetOutOfRangeError,
        KafkaStorageError,
    ],
)
def test_after_an_error_of_the_follower_the_leader_is_read(error: type[WireError]) -> None:
    """Not told the rack for a while: it would name the same follower again."""

    async def work(servers: LogNodes) -> None:
        async with racked(servers) as reader:
            await read(reader, 9)
            servers.logs[0].follower_errors = [error]
            assert (LEADER, "") in await read_more(servers, reader)
            assert set(await read_more(servers, reader)) == {(LEADER, "")}
            assert reader.counters.follower_moves == 1

    run(work, nodes=2)


def test_a_follower_that_lags_is_no_gap() -> None:
    """Out of range there, though not at the leader: read as if nothing had happened."""

    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        async with racked(servers) as reader:
            await read(reader, 9)
            log.follower_end = 3
            assert (LEADER, "") in await read_more(servers, reader)
            assert reader.counters.gaps == 0

    run(work, nodes=2)


def test_a_follower_that_diverges_is_not_believed() -> None:
    async def work(servers: LogNodes) -> None:
        async with racked(servers) as reader:
            await read(reader, 9)
            servers.logs[0].diverging = (0, 3)
            assert (LEADER, "") in await read_more(servers, reader)
            assert reader.counters.gaps == 0

    run(work, nodes=2)


def test_a_follower_that_vanishes_is_left() -> None:
    async def work(servers: LogNodes) -> None:
        async with racked(servers) as reader:
            await read(reader, 9)
            servers.stop(FOLLOWER)
            assert (LEADER, "") in await read_more(servers, reader)

    run(work, nodes=2)


def test_a_follower_that_nobody_knows_is_not_waited_for() -> None:
    async def work(servers: LogNodes) -> None:
        async with racked(servers) as reader:
            servers.logs[0].follower = 77
            assert offsets(await read(reader, 9)) == list(range(9))
            assert set(asked_since(servers, 1)) == {(LEADER, "")}

    run(work, nodes=2)


def test_a_follower_that_became_the_leader_is_read_on() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        async with racked(servers) as reader:
            await read(reader, 9)
            log.leader, log.leader_epoch, log.follower = FOLLOWER, 1, LEADER
            asked = await read_more(servers, reader)
            # The new leader is asked with the rack: no follower has failed.
            assert (FOLLOWER, "a") in asked
            assert asked[-1] == (LEADER, "a")

    run(work, nodes=2)


def test_the_leader_is_asked_again_after_a_while() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        policy = replace(POLICY, metadata_age_s_max=0.2)
        async with racked(servers, policy=policy) as reader:
            await read(reader, 9)
            log.follower = 2
            asked = []
            while (2, "a") not in asked:
                asked += await read_more(servers, reader)
            assert (LEADER, "a") in asked
            assert reader.counters.partition_errors == 0
            assert reader.counters.follower_moves >= 2

    run(work, nodes=3)


def test_a_seek_stays_at_the_follower() -> None:
    async def work(servers: LogNodes) -> None:
        async with racked(servers) as reader:
            await read(reader, 9)
            count = len(servers.requests)
            await reader.seek(("t", 0), 4)
            assert offsets(await read(reader, 5)) == [4, 5, 6, 7, 8]
            assert {node for node, _ in asked_since(servers, count)} == {FOLLOWER}

    run(work, nodes=2)
