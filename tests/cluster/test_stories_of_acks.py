"""When a producer hears yes, and when it must not (H4, H5, H6, H8, H9, L1, L8)."""

import asyncio
import time

import pytest

from dlog.client.cluster.node import NodeClient
from dlog.errors import (
    DlogError,
    InvalidRequiredAcksError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    ProtocolError,
    RequestTimedOutError,
)
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import FetchRequest
from dlog.wire.fetch_client import encode_request
from tests.cluster.internal_socket import impostor
from tests.cluster.nodes import LOOK_S, Node
from tests.cluster.stage import Log, Stage, connected, kill, standing_still, start

LEASE_S = 3.0


def test_h4_all_is_not_said_by_one_alone(stage: Stage) -> None:
    """All other replicas die. The leader refuses acks all, and consumers see nothing of what it
    takes alone, until there are enough again.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        await log.write(b"three")
        await kill(b, c)
        with pytest.raises(
            (NotEnoughReplicasError, NotEnoughReplicasAfterAppendError, RequestTimedOutError)
        ):
            await log.send(a, b"perhaps", timeout_ms=8_000)
        await log.until(lambda view: view.isr == (1,))
        with pytest.raises(NotEnoughReplicasError):
            await log.send(a, b"refused")
        offset = await log.send(a, b"alone", acks=1)
        assert await log.end(a) == 1
        await start(b, c)
        await log.until_whole()
        values = await log.values()
        assert values in ([b"three", b"perhaps", b"alone"], [b"three", b"alone"])
        assert values[offset] == b"alone"
        await log.until_same([a, b, c])

    stage.play(story)


def test_h5_who_was_deposed_acknowledges_nothing(stage: Stage) -> None:
    """A producer waits for acks all while the followers stand still; then the leader stands still,
    and they go on under another one. Back again, it may say anything but yes.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        before = await log.view()
        with standing_still(b, c):
            waiting = asyncio.create_task(log.send(a, b"waits", timeout_ms=60_000))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            still = standing_still(a)
            still.__enter__()
        after = await log.until(lambda view: view.leader in (2, 3))
        assert after.leader_epoch > before.leader_epoch
        await log.write(b"others")
        still.__exit__(None, None, None)
        with pytest.raises(NotLeaderOrFollowerError):
            await waiting
        await log.until_whole()
        await log.until_same([a, b, c])
        assert (await log.values())[-1] == b"others"

    stage.play(story)


def test_h6_a_shrink_that_nobody_committed_acknowledges_nothing(stage: Stage) -> None:
    """A follower stands still, and so does the quorum: the leader cannot leave the follower out. It
    waits, or says that it does not know; it does not say yes.
    """

    async def story(stage: Stage) -> None:
        a, b, c, d, e = stage.nodes(1, 2, 3, 4, 5)
        # So short that the leader tries to leave it out while it has its lease.
        log = await stage.topic(replica_lag_time_max_ms="300")
        tries = rf"(Removing lagging followers .*partition={log.topic}-0 nodes=\[3\])"
        tried = False
        while not tried:  # where processors are scarce, its lease may end before it looks
            await log.until_whole()
            before = len(a.said(tries))
            with standing_still(c):
                with standing_still(d, e):
                    waiting = asyncio.create_task(log.send(a, b"waits", timeout_ms=60_000))
                    await asyncio.sleep(2 * LEASE_S)
                    tried = len(a.said(tries)) > before
                    if waiting.done():
                        assert isinstance(waiting.exception(), DlogError), waiting
                # The quorum is back: now it may be left out.
                await log.until(lambda view: set(view.isr) == {1, 2})
                await log.write(b"two are enough")
                await asyncio.wait([waiting])
        await log.until_whole()
        await log.until_same([a, b, c])
        values = await log.values()
        assert values[-1] == b"two are enough"
        assert waiting.exception() is not None or b"waits" in values

    stage.play(story)


def test_h8_what_is_sent_to_a_follower_is_not_yet_there(stage: Stage) -> None:
    """The follower's socket has the record, but the follower stands still, shorter than its lease:
    no yes before it goes on.
    """

    async def story(stage: Stage) -> None:
        a, b = stage.nodes(1, 2)
        log = await stage.topic((1, 2), min_isr=1)
        await log.write(b"warm")
        with standing_still(b):
            waiting = asyncio.create_task(log.send(a, b"sent", timeout_ms=30_000))
            await asyncio.sleep(LEASE_S / 3)
            assert not waiting.done(), waiting
            assert await log.end(a) == 1
        assert await asyncio.wait_for(waiting, 10) == 1

    stage.play(story)


def test_l1_a_dead_follower_does_not_hold_everybody_up(stage: Stage) -> None:
    """A follower stands still for good. Producers wait for it as long as it may lag, and no longer;
    then the next records take no time at all.
    """

    async def story(stage: Stage) -> None:
        a, _, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        await log.write(b"warm")
        with standing_still(c):
            begun_s = time.monotonic()
            await log.send(a, b"waits", timeout_ms=30_000)
            assert time.monotonic() - begun_s < 3 * LEASE_S
            begun_s = time.monotonic()
            await log.send(a, b"does not wait", timeout_ms=30_000)
            assert time.monotonic() - begun_s < 2
            assert set((await log.view()).isr) == {1, 2}
        await log.until_whole()

    stage.play(story)


def test_l8_what_is_refused_is_refused_before_it_is_there(stage: Stage) -> None:
    """Acks none is never answered, and appended by a leader only; nonsense is refused, and nothing
    of it is in the log.
    """

    async def story(stage: Stage) -> None:
        a, b, _ = stage.nodes(1, 2, 3)
        log = await stage.topic()
        await log.until_end(a, 0)  # it knows that it leads: nobody hears of a refusal
        assert await log.send(a, b"unconfirmed", acks=0) == -1
        await log.until_end(a, 1)
        with pytest.raises(InvalidRequiredAcksError):
            await log.send(a, b"nonsense", acks=7)
        with pytest.raises(NotLeaderOrFollowerError):
            await log.send(b, b"wrong node", acks=1)
        assert await log.send(b, b"wrong node", acks=0) == -1
        assert await log.send(a, b"last") == 1
        assert await log.values() == [b"unconfirmed", b"last"]

    stage.play(story)


async def claim(client: NodeClient, log: Log, replica_id: int, offset: int) -> None:
    """Fetch as if this client were a replica that has everything below an offset."""
    request = FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[(log.topic, [(0, -1, offset, -1, -1, 1 << 20)])],
        forgotten=[],
        rack_id="",
    )
    version = 11
    await client.exchange(
        ApiKey.FETCH,
        version,
        lambda correlation_id: encode_request(version, correlation_id, "impostor", request),
    )


def test_h9_nobody_becomes_a_replica_by_saying_so(stage: Stage) -> None:
    """Both followers stand still. A client claims to be one of them, and to be a third one, and to
    have everything: the producer goes on waiting, and the ISR is what it was.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        with standing_still(b, c):
            waiting = asyncio.create_task(log.send(a, b"waits", timeout_ms=30_000))
            for replica_id in (2, 3, 77):
                async with connected(a) as client:
                    for offset in (0, 1):
                        try:
                            async with asyncio.timeout(1):
                                await claim(client, log, replica_id, offset)
                        except (DlogError, TimeoutError):
                            break  # refused: as good
            await asyncio.sleep(0.3)
            assert not waiting.done(), waiting
            assert await log.end(a) == 0
        assert await asyncio.wait_for(waiting, 10) == 0
        assert set((await log.until_whole()).isr) == {1, 2, 3}

    stage.play(story)


async def until_appended(leader: Node, log: Log) -> None:
    """Return when a leader has a record in its files, acknowledged or not."""
    while not log.on_disk(leader):
        await asyncio.sleep(LOOK_S)


async def node_epochs(node: Node) -> dict[int, int]:
    """Return in which life each node of the cluster is, as one of them tells."""
    status = await node.status()
    assert status is not None
    return {each["node_id"]: each["node_epoch"] for each in status["nodes"]}


def test_h9_nor_by_following_as_a_node_that_has_no_replica(stage: Stage) -> None:
    """The same on the listener for nodes, by who knows the secret: a node of the cluster that has
    no replica, one that nobody knows, and a follower's life before. Who does not know the secret
    gets no stream in a follower's own name.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        log = await stage.topic()
        epochs = await node_epochs(a)
        leader_epoch = (await log.view()).leader_epoch
        with standing_still(b, c):
            waiting = asyncio.create_task(log.send(a, b"waits", timeout_ms=30_000))
            await until_appended(a, log)
            for node_id, epoch in ((4, epochs[4]), (77, 10**9)):
                async with impostor(stage.cluster, a, node_id=node_id, node_epoch=epoch) as stream:
                    for offset in (0, 1):
                        refusal = await stream.claim(log, leader_epoch, offset)
                        assert refusal.error_code == NotLeaderOrFollowerError.code
            with pytest.raises(ProtocolError, match="STALE_BROKER_EPOCH"):
                async with impostor(stage.cluster, a, node_id=2, node_epoch=epochs[2] - 1):
                    pass
            with pytest.raises(asyncio.IncompleteReadError):
                async with impostor(
                    stage.cluster, a, node_id=2, node_epoch=epochs[2], secret=b"another"
                ):
                    pass
            assert not waiting.done(), waiting
            assert await log.end(a) == 0
        assert await asyncio.wait_for(waiting, 10) == 0
        assert set((await log.until_whole()).isr) == {1, 2, 3}

    stage.play(story)
