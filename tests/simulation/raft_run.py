"""One run of the Raft simulation: a cluster, clients, an administrator, faults, from one seed.

python -m tests.simulation.raft_run --seed 7 [--seeds 100] [--trace]
"""

import argparse
import asyncio
import errno
import gc
import logging
import random
import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from dlogd.metadata.commands import AllocateProducerIds, RegisterNode
from dlogd.metadata.image import Applied, Refused, Unknown
from dlogd.metadata.raft.membership import Operation
from tests.fakes.faults import DiskFault
from tests.simulation.loop import NS, SimLoop, StalledError, World
from tests.simulation.network import Network
from tests.simulation.raft_checks import Call, Registry
from tests.simulation.raft_cluster import PORT, RaftHost
from tests.simulation.trace import Trace
from tests.simulation.transport import NetworkConfig

MS = 1_000_000
CLIENT_NODE = 1_000

FAULTS = (
    *("crash", "power_cut", "power_all", "crash_all", "die_at", "pause", "one_way", "isolate"),
    *("split", "cut_links", "slow", "disk_error", "disk_full", "wipe"),
    *("add", "remove", "transfer"),
)


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
        self.faults = chosen if count > 1 else [f for f in chosen if f not in ("wipe",)]
        self.fault_counts: dict[str, int] = {}
        self.length_ns = rng.choice((6, 9, 14)) * NS
        self.fault_every_ns = rng.choice((150, 400, 1_000)) * MS
        self.client_count = rng.choice((1, 3, 8))
        self.ended = False
        self._calls = 0
        self._changed_ns = -(10 * NS)
        self.loop = SimLoop(self.world, "clients")

    # -- the run

    def go(self) -> list[str]:
        """Run to the end; return what was wrong."""
        gc.disable()
        try:
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
        self.world.at(2 * NS, self._fault_step)
        self.world.run(self._is_violated, limit_ns=self.length_ns)
        if self._is_violated():
            return
        self.ended = True
        self._heal()
        healed_ns = self.world.now_ns
        done = self.world.run(
            lambda: self._is_violated() or self._is_whole(), limit_ns=healed_ns + 60 * NS
        )
        if not done:
            self.registry.violate(f"no convergence: {self._describe()}")
        self.registry.judge()

    def _is_violated(self) -> bool:
        return bool(self.registry.violations)

    def _describe(self) -> list[Any]:
        return [
            (
                host.node_id,
                host.state,
                None
                if host.store is None
                else (
                    host.store.role,
                    host.store.term,
                    host.store.leader_id,
                    host.store.core.applied_index,
                    host.store.core.commit_index,
                    host.store.log.base_index,
                    host.store.log.last_index,
                    list(host.store.core.connected),
                    host.store.voters.node_ids,
                ),
            )
            for host in self.hosts.values()
        ]

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
            host._graveyard.append(task)
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

    # -- faults

    def _fault_step(self) -> None:
        if self.ended:
            return
        if self.faults:
            fault = self.rng.choice(self.faults)
            self.fault_counts[fault] = self.fault_counts.get(fault, 0) + 1
            self.trace("fault", fault)
            getattr(self, f"_fault_{fault}")()
        pause_ns = int(self.rng.expovariate(1 / self.fault_every_ns))
        self.world.at(pause_ns, self._fault_step)

    def _any(self) -> RaftHost:
        return self.rng.choice(list(self.hosts.values()))

    def _downtime_ns(self) -> int:
        return self.rng.choice((10, 300, 2_000)) * MS

    def _fault_crash(self) -> None:
        host = self._any()
        host.crash()
        self.world.at(self._downtime_ns(), host.boot)

    def _fault_power_cut(self) -> None:
        host = self._any()
        host.power_cut()
        self.world.at(self._downtime_ns(), host.boot)

    def _fault_power_all(self) -> None:
        for host in self.hosts.values():
            host.power_cut()
            self.world.at(self._downtime_ns(), host.boot)

    def _fault_crash_all(self) -> None:
        for host in self.hosts.values():
            host.crash()
            self.world.at(self._downtime_ns(), host.boot)

    def _fault_die_at(self) -> None:
        host = self._any()
        power = self.rng.random() < 0.5
        host.die_at(self.rng.randrange(1, 15), power=power, downtime_ns=self._downtime_ns())

    def _fault_pause(self) -> None:
        self._any().pause(self.rng.choice((100, 1_000, 3_000)) * MS)

    def _addresses(self) -> list[str]:
        return [host.address for host in self.hosts.values()]

    def _unblock_later(self) -> None:
        self.world.at(self.rng.choice((200, 1_500, 4_000)) * MS, self.network.unblock_all)

    def _fault_one_way(self) -> None:
        source, target = self.rng.choice(self._addresses()), self.rng.choice(self._addresses())
        self.network.block(source, target)
        self._unblock_later()

    def _fault_isolate(self) -> None:
        alone = self.rng.choice(self._addresses())
        leader = next((h for h in self.hosts.values() if h.store and h.store.core.is_leader), None)
        if leader is not None and self.rng.random() < 0.7:
            alone = leader.address
        for other in self._addresses():
            self.network.block(alone, other)
            self.network.block(other, alone)
        self._unblock_later()

    def _fault_split(self) -> None:
        side = [address for address in self._addresses() if self.rng.random() < 0.5]
        for one in side:
            for other in self._addresses():
                if other not in side:
                    self.network.block(one, other)
                    self.network.block(other, one)
        self._unblock_later()

    def _fault_cut_links(self) -> None:
        self.network.cut_some(self.rng.choice((0.3, 1.0)))

    def _fault_slow(self) -> None:
        config = self.network.config
        before = (config.slow_probability, config.slow_ns)
        config.slow_probability, config.slow_ns = 0.3, self.rng.choice((100, 600)) * MS

        def restore() -> None:
            config.slow_probability, config.slow_ns = before

        self.world.at(2 * NS, restore)

    def _hurt_disk(self, fault: DiskFault, length_ns: int) -> None:
        host = self._any()
        host.disturbed = True
        for disk in host.machine.disks.values():
            disk.faults.append(fault)
        self.world.at(length_ns, host.machine.heal)

    def _fault_disk_error(self) -> None:
        operations = self.rng.choice((("sync",), ("write",), ("write", "sync", "rename")))
        self._hurt_disk(DiskFault(operations, count=self.rng.choice((1, 3))), 3 * NS)

    def _fault_disk_full(self) -> None:
        fault = DiskFault(("write", "create"), errno=errno.ENOSPC)
        self._hurt_disk(fault, self.rng.choice((1, 3)) * NS)

    # -- the administrator

    def _fault_wipe(self) -> None:
        """Lose a disk, unless that of another host is not replaced yet."""
        if any(host.wiped for host in self.hosts.values()):
            return
        leader = self._leader()
        if leader is None or leader.store is None:
            return
        # Only what is bound is protected, and only what was acknowledged counts.
        members = leader.store.log.voters.members
        if len(members) < 3 or not all(voter.directory_id.int for voter in members):
            return
        # With a change of the voters under way the quorum may be one that bears no loss.
        if self.world.now_ns - self._changed_ns < 6 * NS:
            return
        host = self._any()
        if self.rng.random() < 0.6 and host is not leader:
            # The worst moment: a third node lags, and the one that has everything goes away.
            others = [each for each in self.hosts.values() if each not in (host, leader)]
            if others:
                self.rng.choice(others).pause(1_500 * MS)
            host.wiped = True
            self.world.at(1_200 * MS, self._lose, host, leader)
        else:
            self._lose(host, None)

    def _lose(self, host: RaftHost, leader: RaftHost | None) -> None:
        host.wipe()
        self.registry.terms.pop(host.node_id, None)
        self.world.at(self.rng.choice((50, 500, 3_000)) * MS, host.boot)
        if leader is not None:
            leader.crash()
            self.world.at(3 * NS, leader.boot)
        self.world.at(4 * NS, self._replace, host, 0)

    def _replace(self, host: RaftHost, attempt: int) -> None:
        """Remove a wiped voter and add it again, as an operator does, until it has worked."""
        if attempt > 200:
            self.registry.violate(f"node {host.node_id} could not be replaced: {self._describe()}")
            return
        self._administer((Operation.REMOVE, host.node_id))
        self.world.at(NS, self._replace_again, host, attempt + 1)

    def _replace_again(self, host: RaftHost, attempt: int) -> None:
        store = host.store
        leader = self._leader()
        if store is not None and leader is not None and leader.store is not None:
            voter = leader.store.log.voters.get(host.node_id)
            done = voter is None or voter.directory_id == store.log.directory_id
            if done and leader.store.log.voters_index <= leader.store.core.commit_index:
                host.wiped = False
                self._add_again(host, 0)
                return
        self._replace(host, attempt)

    def _add_again(self, host: RaftHost, attempt: int) -> None:
        leader = self._leader()
        is_voter = leader is not None and leader.store and leader.store.log.voters.get(host.node_id)
        if attempt < 20 and not is_voter and not self.ended:
            self._administer((Operation.ADD, host.node_id))
            self.world.at(300 * MS, self._add_again, host, attempt + 1)

    def _leader(self) -> RaftHost | None:
        for host in self.hosts.values():
            if host.store is not None and host.store.core.is_active_leader:
                return host
        return None

    def _administer(self, request: tuple[Operation, int]) -> None:
        host = self._any()
        if host.store is None or host.loop is None or host.loop.parked is not None:
            return
        self._changed_ns = self.world.now_ns
        work = self._change(host, *request)
        host._graveyard.append(asyncio.Task(work, loop=host.loop, name="admin"))

    async def _change(self, host: RaftHost, operation: Operation, node_id: int) -> None:
        store, clock = host.store, host.clock
        assert store is not None and clock is not None
        outcome = await store.change_voters(
            operation,
            node_id,
            clock.now_ms() + 2_000,
            host=f"10.0.0.{node_id}",
            port=PORT,
        )
        self.trace("admin", operation, node_id, outcome)
        kind = "ok" if isinstance(outcome, Applied) else "no"
        kind = "refused" if isinstance(outcome, Refused) else kind
        name = f"{operation}:{kind}"
        self.fault_counts[name] = self.fault_counts.get(name, 0) + 1

    def _fault_add(self) -> None:
        if not any(host.wiped for host in self.hosts.values()):
            self._administer((Operation.ADD, self._any().node_id))

    def _fault_remove(self) -> None:
        if not any(host.wiped for host in self.hosts.values()):
            self._administer((Operation.REMOVE, self._any().node_id))

    def _fault_transfer(self) -> None:
        self._administer((Operation.TRANSFER, self._any().node_id))


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
        for name, count in run.fault_counts.items():
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
