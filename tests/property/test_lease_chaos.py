"""The whole exchange under random faults in virtual time: whatever happens, then all is well again.

`Cluster.check` looks every few milliseconds that nobody holds what the controller takes for
expired, and that nobody acts whose fence is in the metadata.
"""

import random

import pytest

from dlogd.controller.leases import Condemned
from tests.fakes.lease_cluster import TIMINGS, Cluster, Node

SEEDS = 12
NODE_IDS = (1, 2, 3)


class Chaos:
    """One run of ten to twenty seconds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        drift = self.rng.choice((0, TIMINGS.clock_drift_ppm))
        self.cluster = Cluster(drift_ppm=drift)
        self.happened: list[str] = []

    def run(self) -> None:
        rng, cluster = self.rng, self.cluster
        kills = (self.kill, self.cut_power, self.pause)
        acts = (*kills, self.block, self.cut, self.depose, self.deny)
        for _ in range(rng.randint(4, 12)):
            act = rng.choice(acts)
            self.happened.append(act.__name__)
            act()
            self.steer(rng.randint(10, 3_000))
        self.heal()
        self.steer(3 * TIMINGS.held_ms)
        for node_id in NODE_IDS:
            node = cluster.nodes[node_id]
            assert node.holds(), f"node {node_id} has no lease after {self.happened}"
            assert cluster.condemned(node_id) is None

    def steer(self, ms: int) -> None:
        """Let time pass while the planner's part is played: fence the condemned, readmit others."""
        cluster = self.cluster
        for _ in range(ms // 100 + 1):
            cluster.run(100)
            controller = cluster.nodes[cluster.watching]
            if controller.loop.dead or controller.loop.parked is not None or not controller.proven:
                continue
            assert controller.watch is not None
            for node_id, known in controller.watch.table.liveness(controller.now_ms()).items():
                fenced = cluster.registered[node_id].fenced
                if known.condemned is not None and not fenced:
                    cluster.commit(node_id, fenced=True)
                elif fenced and known.caught_up:
                    cluster.commit(node_id, fenced=False)

    def pick(self) -> Node:
        return self.cluster.nodes[self.rng.choice(NODE_IDS)]

    def kill(self) -> None:
        node = self.pick()
        if not node.loop.dead:
            node.kill()
            self.revive(node)

    def cut_power(self) -> None:
        node = self.pick()
        if not node.loop.dead:
            node.cut_power()
            self.revive(node)

    def revive(self, node: Node) -> None:
        """Let another lead when the controller died; start the node anew after a while."""
        if node.node_id == self.cluster.watching:
            self.depose()
        self.steer(self.rng.choice((0, 50, 1_000, 6_000)))
        self.start(node)

    def start(self, node: Node) -> None:
        epoch = self.cluster.registered[node.node_id].node_epoch + 1  # type: ignore[index]
        node.begin(-1)
        self.cluster.run(self.rng.choice((1, 300)))
        self.cluster.commit(node.node_id, node_epoch=epoch, fenced=True)
        node.lease.begin(epoch)

    def pause(self) -> None:
        node = self.pick()
        node.loop.pause()
        self.steer(self.rng.choice((200, 1_000, 5_000)))
        node.loop.resume()

    def block(self) -> None:
        source, target = self.rng.sample(NODE_IDS, 2)
        self.cluster.network.block(f"10.0.0.{source}", f"10.0.0.{target}")
        if self.rng.random() < 0.5:
            self.cluster.network.block(f"10.0.0.{target}", f"10.0.0.{source}")

    def cut(self) -> None:
        self.cluster.network.cut_some(self.rng.random())
        if self.rng.random() < 0.5:
            self.cluster.network.unblock_all()

    def depose(self) -> None:
        """Elect another; the deposed may believe in itself for a while, and so may one node."""
        cluster = self.cluster
        old = cluster.nodes[cluster.watching]
        alive = [n for n in NODE_IDS if not cluster.nodes[n].loop.dead and n != old.node_id]
        if alive:
            old.proven = False
            new = self.rng.choice(alive)
            cluster.nodes[new].proven = True
            cluster.lead(new)
            if self.rng.random() < 0.5:
                cluster.believes[self.rng.choice(NODE_IDS)] = old.node_id

    def deny(self) -> None:
        """Let the controller be without a quorum for a while."""
        node = self.cluster.nodes[self.cluster.watching]
        node.proven = False
        self.steer(self.rng.choice((300, 2_000)))
        node.proven = True

    def heal(self) -> None:
        cluster = self.cluster
        cluster.network.unblock_all()
        for node_id in NODE_IDS:
            cluster.nodes[node_id].loop.resume()
            cluster.believes[node_id] = cluster.watching
        cluster.nodes[cluster.watching].proven = True


@pytest.mark.parametrize("seed", range(SEEDS))
def test_leases_hold_through_chaos(seed: int) -> None:
    Chaos(seed).run()


def test_the_chaos_is_one() -> None:
    """The faults of the seeds above do condemn nodes, for each reason that they can."""
    reasons: set[Condemned] = set()
    for seed in range(SEEDS):
        chaos = Chaos(seed)
        chaos.run()
        for node in chaos.cluster.nodes.values():
            reasons |= node.reasons
    assert reasons >= {Condemned.EXPIRED, Condemned.REFUSED, Condemned.REPLACED}
