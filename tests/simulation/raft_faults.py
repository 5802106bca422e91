"""What is done to a cluster of the Raft simulation: faults, and an administrator's changes."""

import asyncio
import errno
import random
from collections.abc import Mapping, Sequence

from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.image import Applied, Refused
from tests.fakes.faults import DiskFault
from tests.simulation.loop import NS
from tests.simulation.raft_checks import Registry
from tests.simulation.raft_cluster import PORT, RaftHost, describe

MS = 1_000_000

FAULTS = (
    *("crash", "power_cut", "power_all", "crash_all", "die_at", "pause", "one_way", "isolate"),
    *("split", "cut_links", "slow", "disk_error", "disk_full", "wipe"),
    *("add", "remove", "transfer"),
)


class RaftFaults:
    """The faults of one run; `step` causes one and comes again."""

    def __init__(
        self,
        kinds: Sequence[str],
        every_ns: int,
        hosts: Mapping[int, RaftHost],
        registry: Registry,
        rng: random.Random,
    ) -> None:
        self.kinds = kinds
        self.every_ns = every_ns
        self.hosts = hosts
        self.registry = registry
        self.rng = rng
        any_host = next(iter(hosts.values()))
        self.world, self.network, self.trace = any_host.world, any_host.network, any_host.trace
        self.counts: dict[str, int] = {}
        self.ended = False
        self._changed_ns = -(10 * NS)

    def step(self) -> None:
        """Cause one fault, and come again until the run ends."""
        if self.ended:
            return
        if self.kinds:
            fault = self.rng.choice(self.kinds)
            self.counts[fault] = self.counts.get(fault, 0) + 1
            self.trace("fault", fault)
            getattr(self, f"_fault_{fault}")()
        pause_ns = int(self.rng.expovariate(1 / self.every_ns))
        self.world.at(pause_ns, self.step)

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
            self.registry.violate(
                f"node {host.node_id} could not be replaced: {describe(self.hosts.values())}"
            )
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
        host.graveyard.append(asyncio.Task(work, loop=host.loop, name="admin"))

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
        self.counts[name] = self.counts.get(name, 0) + 1

    def _fault_add(self) -> None:
        if not any(host.wiped for host in self.hosts.values()):
            self._administer((Operation.ADD, self._any().node_id))

    def _fault_remove(self) -> None:
        if not any(host.wiped for host in self.hosts.values()):
            self._administer((Operation.REMOVE, self._any().node_id))

    def _fault_transfer(self) -> None:
        self._administer((Operation.TRANSFER, self._any().node_id))
