"""Three dlogd with a real Serf agent each: gossip believes what it likes, the metadata stays (H20).

The agents are killed, paused and cut off; the nodes themselves are well all the time. Operators see
where gossip and metadata differ, and that it passes.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.agents import AUTH_KEY, SerfAgent, needs_serf
from tests.cluster.hosts import Hosts, waits_for_hosts
from tests.cluster.nodes import PATIENCE_S, Cluster, Node, cluster_of
from tests.cluster.running import make_topics, run

pytestmark = [needs_serf, pytest.mark.root, waits_for_hosts]


@asynccontextmanager
async def with_agents(folder: Path, hosts: Hosts) -> AsyncIterator[tuple[Cluster, list[SerfAgent]]]:
    """Give a cluster and its agents; only the agents are on hosts that can be cut off."""
    agents = [
        SerfAgent(
            folder / f"agent-{number}",
            f"host{number}",
            host=hosts.address(number),
            rpc_host=hosts.outside(number),
            namespace=hosts.name(number),
        )
        for number in hosts.numbers
    ]
    for agent in agents[1:]:
        agent.join(agents[0].gossip)
    (folder / "serf-key").write_text(f"{AUTH_KEY}\n")
    (folder / "serf-key").chmod(0o600)
    async with cluster_of(folder / "c", start=False) as cluster:
        for node, agent in zip(cluster.nodes, agents, strict=True):
            overrides = {
                "membership.kind": "serf",
                "serf.address": str(agent.rpc),
                "serf.key.file": str(folder / "serf-key"),
            }
            node.write_config({**cluster.overrides_of(node), **overrides})
        try:
            for agent in agents:
                agent.start()
            await cluster.start()
            yield cluster, agents
        finally:
            for agent in agents:
                agent.kill()


GONE, FENCED_ALIVE = "gossip calls it failed", "fenced, but alive"


def differs(status: dict[str, Any], seen: dict[int, str]) -> bool:
    """Return whether a node tells of these differences between gossip and metadata, and no other.

    `seen`: what is said, in part, by the node of which it is said.
    """
    said = status["membership"]["disagreements"]
    return len(said) == len(seen) and all(
        any(each.startswith(f"node {number}:") and part in each for each in said)
        for number, part in seen.items()
    )


async def until_agreed(cluster: Cluster) -> None:
    """Return when all agents know all nodes, and that is what the metadata says."""
    everybody = {"1": "alive", "2": "alive", "3": "alive"}
    await cluster.until(
        lambda statuses: all(
            each["membership"]["problem"] is None
            and each["membership"]["members"] == everybody
            and differs(each, {})
            for each in statuses
        )
    )


async def until_differs(cluster: Cluster, seen: dict[int, dict[int, str]]) -> None:
    """Return when some nodes see these differences; their metric says so too."""
    nodes = [cluster.node(number) for number in seen]
    await cluster.until(
        lambda statuses: all(differs(each, seen[each["node_id"]]) for each in statuses), nodes
    )
    for node in nodes:
        # The page may be a second old.
        async with asyncio.timeout(PATIENCE_S):
            while await disagreements_of(node) != len(seen[node.node_id]):
                await asyncio.sleep(0.1)


async def disagreements_of(node: Node) -> float:
    """Return how many differences a node's metric tells of."""
    page = (await node.page("/metrics"))[1].decode()
    found = re.search(r"^dlog_membership_disagreements (\S+)", page, re.MULTILINE)
    assert found is not None, page
    return float(found[1])


async def expect_voters(cluster: Cluster) -> None:
    """Fail unless all nodes know all for voters, of which the image says nothing."""
    statuses = await cluster.until(lambda _: True)
    assert [each["raft"]["voters"] for each in statuses] == [cluster.voter_ids] * 3


async def expect_metadata(cluster: Cluster, image: dict[str, Any]) -> None:
    """Fail when anything has changed in the metadata, or somebody lost its vote or its lease."""
    assert await cluster.until_equal() == image
    await expect_voters(cluster)
    await cluster.until_well(patience_s=1)


def test_h20_gossip_changes_nothing(tmp_path: Path, hosts: Hosts) -> None:
    async def work() -> None:
        async with with_agents(tmp_path, hosts) as (cluster, agents):
            await make_topics(cluster, "before")
            await until_agreed(cluster)
            image = await cluster.until_equal()

            agents[2].kill()
            await until_differs(cluster, {1: {3: GONE}, 2: {3: GONE}})
            await cluster.until(lambda each: each[0]["membership"]["problem"], [cluster.node(3)])
            await expect_metadata(cluster, image)
            agents[2].start()
            await until_agreed(cluster)

            agents[1].signal(signal.SIGSTOP)
            await until_differs(cluster, {1: {2: GONE}, 3: {2: GONE}})
            await expect_metadata(cluster, image)
            agents[1].signal(signal.SIGCONT)
            await until_agreed(cluster)

            hosts.cut(1)
            others = {2: GONE, 3: GONE}
            await until_differs(cluster, {1: others, 2: {1: GONE}, 3: {1: GONE}})
            await expect_metadata(cluster, image)
            hosts.heal()
            await until_agreed(cluster)
            await expect_metadata(cluster, image)

            # All agents gone: the cluster does its work, and says what is missing.
            for agent in agents:
                agent.kill()
            await cluster.until(lambda statuses: all(e["membership"]["problem"] for e in statuses))
            await make_topics(cluster, "without")
            for agent in agents:
                agent.start()
            await until_agreed(cluster)
            await expect_voters(cluster)
            cluster.expect_no_complaints()

    run(work)


def test_a_node_that_dies_is_seen_by_its_lease_whatever_its_agent_says(
    tmp_path: Path, hosts: Hosts
) -> None:
    async def work() -> None:
        async with with_agents(tmp_path, hosts) as (cluster, _):
            await until_agreed(cluster)
            controller = await cluster.controller()
            assert controller is not None
            victim = next(each for each in cluster.nodes if each is not controller)
            others = [each for each in cluster.nodes if each is not victim]
            await victim.kill()
            seen = {each.node_id: {victim.node_id: FENCED_ALIVE} for each in others}
            await until_differs(cluster, seen)
            # It stays registered: only an operator removes a node.
            await cluster.start([victim])
            await until_agreed(cluster)
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)
