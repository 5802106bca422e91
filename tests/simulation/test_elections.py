"""How long a quorum is without a leader after one dies, in virtual time."""

import logging
import random
from collections.abc import Iterator

import pytest

from tests.simulation.loop import NS, World
from tests.simulation.network import Network
from tests.simulation.raft_checks import Registry
from tests.simulation.raft_cluster import RaftHost
from tests.simulation.raft_faults import MS
from tests.simulation.trace import Trace
from tests.simulation.transport import NetworkConfig

KILLS = 60
CONFIG = {
    "log_bytes_max": 4 << 20,
    "entries_kept": 50,
    "append_bytes_max": 1 << 20,
    "chunk_bytes": 256 << 10,
}


class Quorum:
    """Voters whose leader is killed again and again."""

    def __init__(self, count: int, latency: NetworkConfig, seed: str) -> None:
        self.world = World()
        self.registry = Registry()
        self._rng = random.Random(seed)
        network = Network(self.world, random.Random(f"{seed}/network"), latency)
        trace = Trace(lambda: self.world.now_ns, None)
        voters = tuple(range(1, count + 1))
        self.hosts = [
            RaftHost(
                node_id,
                voters,
                seed=seed,
                world=self.world,
                network=network,
                trace=trace,
                registry=self.registry,
                config=CONFIG,
            )
            for node_id in voters
        ]
        for host in self.hosts:
            self.world.at(0, host.boot)

    @property
    def leader(self) -> RaftHost | None:
        """Who leads and has applied what was committed before."""
        active = [h for h in self.hosts if h.store is not None and h.store.core.is_active_leader]
        return active[0] if active else None

    def _is_whole(self) -> bool:
        leader, others = self.leader, len(self.hosts) - 1
        return leader is not None and all(
            host.store is not None
            and host.store.leader_id == leader.node_id
            and len(host.store.core.connected) == others
            for host in self.hosts
        )

    def kill_leader(self) -> float:
        """Kill it at some time; return the seconds until another one leads."""
        world = self.world
        assert world.run(self._is_whole, limit_ns=world.now_ns + 120 * NS)
        at_ns = world.now_ns + self._rng.randrange(500) * MS
        world.at(at_ns - world.now_ns, lambda: None)
        world.run(lambda: world.now_ns >= at_ns)
        doomed = self.leader
        assert doomed is not None
        doomed.crash()
        assert world.run(lambda: self.leader is not None, limit_ns=at_ns + 60 * NS)
        seconds = (world.now_ns - at_ns) / NS
        world.at(100 * MS, doomed.boot)
        return seconds


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize(
    ("latency_ms", "jitter_ms", "at_most_s"), [(0.05, 0.1, 0.25), (1, 5, 0.3), (5, 30, 0.45)]
)
def test_those_who_lose_a_leader_at_once_do_not_split_their_votes(
    count: int, latency_ms: float, jitter_ms: float, at_most_s: float
) -> None:
    """A split vote costs a whole election time-out (0.4 s to 0.9 s) more."""
    wire = NetworkConfig(latency_ns=int(latency_ms * MS), jitter_ns=int(jitter_ms * MS))
    quorum = Quorum(count, wire, f"elections/{count}/{jitter_ms}")
    seconds = [quorum.kill_leader() for _ in range(KILLS)]
    assert not quorum.registry.violations
    assert max(seconds) < at_most_s, sorted(seconds)[-5:]
