"""Nodes without a quorum, and nodes that stop together: nothing hangs, all say what is wrong."""

import asyncio
import time
from pathlib import Path

from dlog.client.admin import Admin
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlogctl.sandbox.layout import HOST
from tests.cluster.nodes import cluster_of
from tests.cluster.running import dlogctl, make_topics, run

SOON_S = 5.0
TOGETHER_S = 15.0
DLOGCTL_S = 15.0


def test_one_of_three_waits_and_says_for_whom(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, start=False) as cluster:
            lonely = cluster.node(2)
            await lonely.start()
            refused = f"1 ({HOST}:{cluster.node(1).raft_port}: Connection refused), 3 ("
            (status,) = await cluster.until(lambda each: refused in str(each), [lonely])
            assert status["state"] == "starting"
            assert not status["healthy"]
            assert "waiting for the quorum of the metadata: voters 1 (" in status["problems"][0]
            assert (await lonely.page("/readyz"))[0] == 503
            begun_s = time.monotonic()
            code, said = await dlogctl("status", "--bootstrap", lonely.client_address)
            assert code != 0
            assert "Traceback" not in said
            assert time.monotonic() - begun_s < DLOGCTL_S
            begun_s = time.monotonic()
            assert await lonely.stop() == 0
            assert time.monotonic() - begun_s < SOON_S
            # With a second one there is a quorum.
            await asyncio.gather(cluster.node(1).start(), lonely.start())
            await cluster.until_well([cluster.node(1), lonely])
            await make_topics(cluster, "t", nodes=[cluster.node(1), lonely])
            await cluster.start([cluster.node(3)])
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)


def test_a_node_whose_peers_are_gone_does_not_hang(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "t")
            left = cluster.node(1)
            await asyncio.gather(cluster.node(2).kill(), cluster.node(3).kill())
            (status,) = await cluster.until(
                lambda each: not each[0]["lease"]["valid"] and "are away" in str(each), [left]
            )
            assert not status["healthy"]
            assert any("no lease" in each for each in status["problems"]), status["problems"]
            lost = next(each for each in status["problems"] if "are away" in each)
            assert "2 (" in lost and "3 (" in lost and "Connection refused" in lost, lost
            # It still tells what it knows; a change ends with the time that its client gave it.
            policy = RetryPolicy(deadline_s=0)
            async with Admin([left.client_address], policy=policy) as admin:
                assert set((await admin.describe_topics()).topics) == {"t"}
                begun_s = time.monotonic()
                try:
                    await admin.create_topic("u", partitions=1, timeout_ms=2_000)
                except DlogError:
                    pass
                else:
                    raise AssertionError("a topic was made without a quorum")
                assert time.monotonic() - begun_s < SOON_S
            for arguments in (("status",), ("topic", "list"), ("topic", "create", "u")):
                begun_s = time.monotonic()
                code, said = await dlogctl(*arguments, "--bootstrap", left.client_address)
                assert "Traceback" not in said
                assert (code == 0) is (arguments == ("topic", "list")), said
                assert code == 0 or "quorum" in said or "no controller leads" in said, said
                assert time.monotonic() - begun_s < DLOGCTL_S, (arguments, said)
            # Stopping waits for no quorum either, but gives a change that is under way some time.
            async with Admin([left.client_address], policy=policy) as admin:
                change = asyncio.create_task(admin.create_topic("u", timeout_ms=30_000))
                await cluster.until(lambda each: each[0]["connections"] >= 1, [left])
                begun_s = time.monotonic()
                assert await left.stop() == 0
                assert time.monotonic() - begun_s < TOGETHER_S + SOON_S
                await asyncio.wait((change,))
                assert isinstance(change.exception(), DlogError)
            await cluster.start()
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)


def test_all_nodes_are_stopped_together(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            for number in range(3):
                await make_topics(cluster, f"t{number}")
                begun_s = time.monotonic()
                assert await asyncio.gather(*(each.stop() for each in cluster.nodes)) == [0, 0, 0]
                assert time.monotonic() - begun_s < TOGETHER_S
                await cluster.start()
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)
