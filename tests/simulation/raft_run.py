"""One run of the Raft simulation: a cluster, clients, an administrator, faults, from one seed.

python -m tests.simulation.raft_run --seed 7 [--seeds 100] [--trace]
"""

import argparse
import asyncio
import gc
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from dlogd.metadata.commands.codec import AllocateProducerIds, RegisterNode
from dlogd.metadata.state.image import Applied, Unknown
from tests.simulation.loop import NS, SimLoop, StalledError, World
from tests.simulation.network import Network
from tests.simulation.raft_checks import Call, Registry
from tests.simulation.raft_cluster import RaftHost, describe
from tests.simulation.raft_faults import FAULTS, MS, RaftFaults
from tests.simulation.sealed import sealed
from tests.simulation.trace import Trace
from tests.simulation.transport import NetworkConfig

CLIENT_NODE = 1_000


class Run:
    """A whole run; `go` returns its violations."""

    def __init__(self, seed: int, print_line: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = rng = random.Random(f"raft/{seed}")
        self.world = World()
        self.trace = Trace(lambda: self.world.now_ns, print_line)
        self.registry = Registry()
        self.network = Network(
            self.world,
            random.Random(f"raft/{seed}/network"),
            NetworkConfig(
                latency_ns=rng.choice((50_000, 500_000, 5 * MS)),
                jitter_ns=rng.choice((100_000, 2 * MS, 30 * MS)),
                slow_probability=rng.choice((0.0, 0.001, 0.02)),
                slow_ns=rng.choice((50, 300)) * MS,
            ),
        )
        count = rng.choice((1, 3, 3, 3, 5, 5))
        extra = rng.choice((0, 1, 2))
        controllers = tuple(range(1, count + 1))
        config = {
            "log_bytes_max": rng.choice((2_000, 8_000, 60_000, 4 << 20)),
            "entries_kept": rng.choice((0, 3, 50)),
            "append_bytes_max": rng.choice((300, 4_000, 1 << 20)),
            "chunk_bytes": rng.choice((100, 5_000, 256 << 10)),
        }
        self.hosts = {
            n: RaftHost(
                n,
                controllers,
                seed=str(seed),
                world=self.world,
                network=self.network,
                trace=self.trace,
                registry=self.registry,
                config=config,
            )
            for n in range(1, count + extra + 1)
        }
        chosen = [fault for fault in FAULTS if rng.random() < 0.5]
        kinds = chosen if count > 1 else [f for f in chosen if f not in ("wipe",)]
        self.length_ns = rng.choice((6, 9, 14)) * NS
        self.faults = RaftFaults(
            kinds, rng.choice((150, 400, 1_000)) * MS, self.hosts, self.registry, rng
        )
        self.client_count = rng.choice((1, 3, 8))
        self.ended = False
        self._calls = 0
        self.loop = SimLoop(self.world, "clients")

    # -- the run

    def go(self) -> list[str]:
        """Run to the end; return what was wrong."""
        gc.disable()
        try:
            with sealed():
                self._go()
        except StalledError as error:
            self.registry.violate(f"stalled: {error}")
        finally:
            for host in self.hosts.values():
                host.forget()
            gc.enable()
        return self.registry.violations

    def _go(self) -> None:
        for host in self.hosts.values():
            self.world.at(self.rng.randrange(500) * MS, host.boot)
        for number in range(self.client_count):
            self.world.at(NS, self._client_step, number)
        self.world.at(2 * NS, self.faults.step)
        self.world.run(self._is_violated, limit_ns=self.length_ns)
        if self._is_violated():
            return
        self.ended = self.faults.ended = True
        self._heal()
        healed_ns = self.world.now_ns
        done = self.world.run(
            lambda: self._is_violated() or self._is_whole(), limit_ns=healed_ns + 60 * NS
        )
        if not done:
            self.registry.violate(f"no convergence: {describe(self.hosts.values())}")
        self.registry.judge()

    def _is_violated(self) -> bool:
        return bool(self.registry.violations)

    def _heal(self) -> None:
        self.trace("heal")
        self.network.unblock_all()
        self.network.config.slow_probability = 0.0
        for host in self.hosts.values():
            host.machine.heal()
            host.machine.spare()
            if host.loop is not None and host.loop.parked is not None:
                host.loop.resume()
            self.world.at(NS, host.boot)

    def _is_whole(self) -> bool:
        """Whether all nodes have applied the same, one leads, and no call is open."""
        stores = [host.store for host in self.hosts.values() if not host.gone]
        if any(store is None for store in stores):
            return False
        if sum(store.core.is_active_leader for store in stores if store) != 1:
            return False
        ends = {(s.core.applied_index, s.log.last_index, s.image.version) for s in stores if s}
        open_calls = any(
            call.outcome is None and call.store in stores for call in self.registry.calls[-300:]
        )
        return len(ends) == 1 and not open_calls

    # -- clients

    def _client_step(self, number: int) -> None:
        if self.ended:
            return
        host = self.rng.choice(list(self.hosts.values()))
        if host.store is not None and host.loop is not None and host.loop.parked is None:
            loop = host.loop
            work = self._propose(host)
            task = asyncio.Task(work, loop=loop, name=f"client{number}")
            host.graveyard.append(task)
            self._ask_contact(host)
        pause_ns = int(self.rng.expovariate(1 / (80 * MS)))
        self.world.at(pause_ns, self._client_step, number)

    async def _propose(self, host: RaftHost) -> None:
        store, clock = host.store, host.clock
        assert store is not None and clock is not None
        node = store.image.nodes.get(CLIENT_NODE)  # type: ignore[call-overload]
        command: Any
        if node is None:
            command = RegisterNode(
                command_id=UUID(int=1),
                cluster_id="c",
                node_id=CLIENT_NODE,  # type: ignore[arg-type]
                directory_ids=(),
                addresses=(),
                rack=None,
                version="1",
            )
            await store.propose(command, clock.now_ms() + 2_000)
            return
        call = Call(self._calls, b"", host.node_id, self.world.now_ns, store)
        self._calls += 1
        command = AllocateProducerIds(
            command_id=UUID(int=self.rng.getrandbits(128), version=4),
            node_id=CLIENT_NODE,  # type: ignore[arg-type]
            node_epoch=node.node_epoch,
            count=1,
        )
        call.key = command.command_id.bytes
        for attempt in range(2):
            self.registry.calls.append(call)
            wait_ms = self.rng.choice((50, 500, 3_000))
            call.outcome = await store.propose(command, clock.now_ms() + wait_ms)
            call.ended_ns = self.world.now_ns
            self.trace("call", call.number, attempt, call.outcome)
            self._check_own_image(store, call)
            if not isinstance(call.outcome, Unknown) or self.rng.random() < 0.5:
                return
            call = Call(call.number, call.key, host.node_id, self.world.now_ns, store)

    def _ask_contact(self, host: RaftHost) -> None:
        """Ask a node for a proof that it leads; who gets one has had no successor at that time."""
        store, clock, registry = host.store, host.clock, self.registry
        assert store is not None and clock is not None
        asked_step = registry.steps

        def on_settled(outcome: Any) -> None:
            self.trace("contact", host.node_id, type(outcome).__name__)
            if not isinstance(outcome, Applied):
                return
            registry.contacts += 1
            for term, step in registry.led_since.items():
                if term > store.core.term and step <= asked_step:
                    registry.violate(f"node {host.node_id} led after the leader of term {term}")

        store.submit_contact(clock.now_ms() + 500, on_settled)

    def _check_own_image(self, store: Any, call: Call) -> None:
        if isinstance(call.outcome, Applied) and store.image.version < call.outcome.version:
            self.registry.violate(f"call {call.number}: the proposer's image is older")


def main() -> int:
    """Run seeds; print what failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed = 0
    began = time.monotonic()
    counts: dict[str, int] = {}
    virtual_s = 0.0
    done = 0
    for seed in range(options.seed, options.seed + options.seeds):
        if time.monotonic() - began > options.seconds:
            break
        run = Run(seed, print if options.trace else None)
        violations = run.go()
        done += 1
        virtual_s += run.world.now_ns / NS
        for name, count in run.faults.counts.items():
            counts[name] = counts.get(name, 0) + count
        if violations:
            failed += 1
            print(f"seed {seed}: {violations[:3]}")
        if options.seeds == 1:
            print(run.trace.digest(), run.registry.summary())
    print(f"{done} seeds, {failed} failed, {virtual_s:.0f} virtual s, {counts}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
