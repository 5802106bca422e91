"""Counts of partitions that are not as they should be, and members beside the metadata."""

import asyncio
import random

import pytest

from dlog.errors import ConfigError
from dlogd.config import load
from dlogd.config.schema import Config
from dlogd.membership.gossip import make_gossip, read_serf_key
from dlogd.membership.members import DisagreementKind
from dlogd.membership.serf import SerfMembership
from dlogd.status.cluster_page import count_partitions
from tests.fakes.metadata_cluster import FakeCluster

CLUSTER = """
node.id: 1
cluster.id: c
cluster.secret.file: /nowhere/secret
controllers: ["1@10.0.0.1:9193"]
"""


def configured(text: str) -> Config:
    return load.load_config(CLUSTER + text, {})


def test_what_is_counted_of_partitions() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3), (2, 1, 3), min_insync_replicas="2")
    cluster.create("alone", (3,))
    assert set(vars_of(cluster).values()) == {0}
    cluster.apply(cluster.isr_change("t", 0, (1, 2)))
    cluster.fence(3)
    found = vars_of(cluster)
    assert found["under_replicated"] == 3  # both of t, and the one that nobody has
    assert found["leaderless"] == found["under_min_isr"] == 1
    cluster.fence(2)
    found = vars_of(cluster)
    assert found["not_preferred"] == 1  # t-1 is led by node 1
    assert found["under_min_isr"] == 3
    assert found["leaderless"] == 1


def vars_of(cluster: FakeCluster) -> dict[str, int]:
    counts = count_partitions(cluster.image)
    return {name: getattr(counts, name) for name in type(counts).__slots__}


def test_members_are_those_of_the_kind_that_is_configured() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()

        def made(text: str) -> object:
            return make_gossip(configured(text), loop=loop, rng=random.Random(1), serf_key=None)

        assert made("") is None  # nobody is listed: there is nothing to compare
        serf = made("membership.kind: serf")
        assert isinstance(getattr(serf, "membership", None), SerfMembership)

    asyncio.run(work())


def test_a_list_of_peers_is_compared_with_the_metadata() -> None:
    async def work() -> None:
        gossip = make_gossip(
            configured('membership.peers: ["2@10.0.0.2:9645", "4@10.0.0.4:9645"]'),
            loop=asyncio.get_running_loop(),
            rng=random.Random(1),
            serf_key=None,
        )
        assert gossip is not None
        await gossip.start(())
        cluster = FakeCluster(3)
        found = {(int(each.node_id), each.kind) for each in gossip.disagreements(cluster.image)}
        assert found == {(3, DisagreementKind.UNHEARD), (4, DisagreementKind.UNREGISTERED)}
        await gossip.stop()

    asyncio.run(work())


def test_the_key_of_the_agent() -> None:
    config = configured("membership.kind: serf\nserf.key.file: /nowhere/key")
    assert read_serf_key(config, lambda path: b"key of " + path.encode()) == "key of /nowhere/key"
    assert read_serf_key(configured("serf.key.file: /nowhere/key"), lambda _: b"x") is None
    with pytest.raises(ConfigError, match="not text"):
        read_serf_key(config, lambda _: b"\xff")
