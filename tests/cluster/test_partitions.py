"""Nodes on hosts of their own, whose cables are pulled. Needs root for network namespaces."""

import asyncio
import random
from pathlib import Path

import pytest

from dlog.client.admin import Admin
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from tests.cluster.chaos import Plan, run_chaos, topics_at
from tests.cluster.hosts import Hosts, waits_for_hosts
from tests.cluster.nodes import cluster_of
from tests.cluster.running import make_topics, run

pytestmark = [pytest.mark.root, waits_for_hosts]


def test_a_controller_that_is_cut_off_does_nothing(tmp_path: Path, hosts: Hosts) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path, hosts=hosts) as cluster:
            await make_topics(cluster, "before")
            lonely = await cluster.controller()
            assert lonely is not None
            others = [each for each in cluster.nodes if each is not lonely]
            hosts.cut(lonely.node_id)
            policy = RetryPolicy(deadline_s=0)
            async with Admin([lonely.client_address], policy=policy) as admin:
                with pytest.raises(DlogError):
                    await admin.create_topic("lonely", partitions=1, timeout_ms=3_000)
            await cluster.until_well(others)
            await make_topics(cluster, "during", nodes=others)
            await cluster.until(lambda each: not each[0]["lease"]["valid"], [lonely])
            # It still tells what it knows, and that is old.
            async with Admin([lonely.client_address], policy=policy) as admin:
                assert "during" not in (await admin.describe_topics()).topics
            hosts.heal()
            await cluster.until_well()
            await cluster.until_equal()
            found = set(await topics_at(lonely))
            # Of a change whose deadline passed nobody knows.
            assert {"before", "during"} <= found <= {"before", "during", "lonely"}
            cluster.expect_no_complaints()

    run(work)


def test_nothing_acknowledged_is_lost_by_cuts(tmp_path: Path, hosts: Hosts) -> None:
    seed = random.randrange(1 << 32)
    print(f"python -m tests.cluster --minutes 1 --only cut --seed {seed}")
    plan = Plan(seed=seed, duration_s=0, only="cut")
    summary = asyncio.run(run_chaos(tmp_path, plan, hosts=hosts))
    print("\n".join(summary.lines()))
    assert len(summary.struck.strikes) == 8
