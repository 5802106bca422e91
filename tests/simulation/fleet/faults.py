"""Carries out the schedule of faults on the hosts of a cluster, and heals everything in the end.

What each kind means stands in `ACTIONS`; what is drawn for it in `tests.simulation.fleet.plan`.
"""

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.image import Applied, Refused
from tests.fakes.device import Disk
from tests.fakes.faults import DiskFault
from tests.simulation.fleet.host import FleetHost
from tests.simulation.fleet.operators import Hands
from tests.simulation.fleet.plan import RAFT_PORT, address_of
from tests.simulation.plan import Fault

MS = 1_000_000


class FleetSaboteur(Hands):
    """Does to the hosts what the plan says."""

    def __init__(self, around: Any) -> None:
        super().__init__(around, "saboteur")
        self._world = around.world
        self._network = around.network
        self._hosts: list[FleetHost] = around.hosts
        self._over = False
        self._voters_changed_ns = -(10**12)
        self._added_ns: dict[int, int] = {}

    def schedule(self) -> None:
        """Set a timer for each fault."""
        for number, fault in self.around.plan.schedule():
            self._world.at(fault.at_ms * MS, self._strike, number, fault)
        if self.around.plan.write_back_share:
            self._world.at(30 * MS, self._write_back)

    def _write_back(self) -> None:
        """Let hosts flush some of what is dirty, as systems do by themselves."""
        if not self._over:
            for host in self._hosts:
                host.machine.write_back(self.around.plan.write_back_share)
            self._world.at(self.rng.randrange(50, 300) * MS, self._write_back)

    def _strike(self, number: int, fault: Fault) -> None:
        if not self._over:
            self.around.trace("fault", number, fault)
            if ACTIONS[fault.kind](self, fault) is not False:
                self.around.count(f"fault {fault.kind}")

    def heal(self) -> None:
        """End all faults; hosts that are down are started, those with a broken disk anew."""
        self._over = True
        self.around.trace("heal")
        self._network.unblock_all()
        self._network.config.slow_probability = 0.0
        for host in self._hosts:
            host.machine.spare()
            if any(disk.stuck for disk in host.machine.disks.values()):
                host.unstuck_ns = self._world.now_ns
            host.machine.heal()
            for disk in host.machine.disks.values():
                disk.capacity_bytes = self.around.plan.capacity_bytes
            host.set_clock(-host.wall_offset_ms)
            if host.loop is not None:
                host.loop.resume()
            if host.disturbed:
                host.crash()
                host.disturbed = False
            host.boot_later(0)

    # -- whom it strikes

    def leader(self) -> FleetHost | None:
        """Return the host that leads the metadata, as it says itself."""
        for host in self._hosts:
            if host.store is not None and host.store.core.is_active_leader:
                return host
        return None

    def _target(self, fault: Fault) -> FleetHost:
        wanted = fault.detail.split()[0]
        leader = self.leader()
        if wanted == "leader" and leader is not None:
            return leader
        if wanted == "data":
            return self._data_leader()
        hosts = self._hosts
        if wanted == "follower":
            hosts = [host for host in hosts if host is not leader] or hosts
        elif wanted == "voter":
            hosts = hosts[: self.around.plan.controllers]
        return self.rng.choice(hosts)

    def _data_leader(self) -> FleetHost:
        """Return a host that leads data, by the newest image."""
        topics = self.around.registry.newest.topics
        led = [
            partition.leader
            for each in self.around.plan.data.topics
            if each.name in topics
            for partition in topics[each.name].partitions
            if partition.has_leader
        ]
        return self._hosts[self.rng.choice(led) - 1] if led else self.rng.choice(self._hosts)

    def _some(self, share: float) -> list[FleetHost]:
        return [host for host in self._hosts if self.rng.random() < share]

    def _later(self, fault: Fault, callback: Callable[[], object]) -> None:
        self._world.at(fault.length_ms * MS, callback)

    # -- processes and power

    def _crash(self, fault: Fault) -> None:
        host = self._target(fault)
        host.crash()
        self._later(fault, host.boot)

    def _crash_many(self, fault: Fault) -> None:
        for host in self._some(fault.amount):
            host.crash()
            self._world.at(int(fault.length_ms * self.rng.random()) * MS, host.boot)

    def _power_cut(self, fault: Fault) -> None:
        host = self._target(fault)
        host.power_cut()
        self._later(fault, host.boot)

    def _power_all(self, fault: Fault) -> None:
        for host in self._hosts:
            host.power_cut()
            self._world.at(int(fault.length_ms * self.rng.random()) * MS, host.boot)

    def _die(self, fault: Fault) -> None:
        how = fault.detail.split()[1]
        self._target(fault).die_at(int(fault.amount), how, fault.length_ms * MS, "", "")

    def _die_writing(self, fault: Fault) -> None:
        how, operation, path_part = fault.detail.split()[1:]
        host = self._target(fault)
        host.die_at(int(fault.amount), how, fault.length_ms * MS, operation, path_part)

    def _stop(self, fault: Fault) -> None:
        self._target(fault).stop(fault.length_ms * MS)

    def _pause(self, fault: Fault) -> None:
        self._target(fault).pause(fault.length_ms * MS)

    def _set_clock(self, fault: Fault) -> None:
        self._target(fault).set_clock(int(fault.amount))

    # -- network

    def _block(self, fault: Fault, pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            self._network.block(source, target)
            self._later(fault, partial(self._network.unblock, source, target))

    def _one_way(self, fault: Fault) -> None:
        source = self._target(fault).address
        targets = [h.address for h in self._hosts if h.address != source]
        if self.rng.random() < 0.5:
            targets = [self.rng.choice(targets)]
        pairs = [(source, each) for each in targets]
        if self.rng.random() < 0.5:
            pairs = [(target, source) for source, target in pairs]
        self._block(fault, pairs)

    def _isolate(self, fault: Fault) -> None:
        alone = self._target(fault).address
        others = [h.address for h in self._hosts if h.address != alone]
        self._block(fault, [(alone, o) for o in others] + [(o, alone) for o in others])

    def _split(self, fault: Fault) -> None:
        side = {host.address for host in self._some(fault.amount)}
        pairs = [
            (a.address, b.address)
            for a in self._hosts
            for b in self._hosts
            if (a.address in side) != (b.address in side)
        ]
        self._block(fault, pairs)

    def _cut_connections(self, fault: Fault) -> None:
        self._network.cut_some(fault.amount)

    def _slow_network(self, fault: Fault) -> None:
        config = self._network.config
        before, config.slow_probability = config.slow_probability, 0.3

        def restore() -> None:
            config.slow_probability = before

        self._later(fault, restore)

    # -- disks

    def _disk(self, fault: Fault) -> tuple[FleetHost, Disk]:
        host = self._target(fault)
        return host, host.machine.disks[fault.detail.split()[1]]

    def _slow_disk(self, fault: Fault) -> None:
        _, disk = self._disk(fault)
        disk.latency.factor = fault.amount

        def restore() -> None:
            disk.latency.factor = 1.0

        self._later(fault, restore)

    def _stuck_disk(self, fault: Fault) -> None:
        host, disk = self._disk(fault)

        def unstick() -> None:
            if disk.stuck:
                disk.unstick()
                host.unstuck_ns = self._world.now_ns

        disk.stick()
        self._later(fault, unstick)

    def _disk_errors(self, fault: Fault) -> None:
        host, disk = self._disk(fault)
        host.disturbed = True
        error = DiskFault(tuple(fault.detail.split()[2:]), probability=fault.amount)
        disk.faults.append(error)

        def remove() -> None:
            if error in disk.faults:
                disk.faults.remove(error)

        self._later(fault, remove)

    def _disk_error_once(self, fault: Fault) -> None:
        host, disk = self._disk(fault)
        host.disturbed = True
        operations = tuple(fault.detail.split()[2:])
        disk.faults.append(DiskFault(operations, count=1, probability=fault.amount))

    def _full_disk(self, fault: Fault) -> None:
        host, disk = self._disk(fault)
        host.disturbed = True
        disk.faults.append(DiskFault(("write", "create", "preallocate"), errno=errno.ENOSPC))
        self._later(fault, disk.faults.clear)

    # -- lost disks, and voters

    def _wipe(self, fault: Fault) -> bool:
        """Lose a host's disks, as far as what is left can know all that was acknowledged."""
        host = self._target(fault)
        if not self._may_lose(host) or self.around.rot.is_needed(host):
            return False
        self._lose(host, fault, host.wipe)
        return True

    def _wipe_directory(self, fault: Fault) -> bool:
        host, disk = self._disk(fault)
        if disk.mount == "/data0" or len(self.around.plan.data_directories) < 2:
            return False  # the metadata are there: that is `wipe`
        if self.around.rot.is_needed(host):
            return False
        host.wipe_disk(disk.mount)
        self._later(fault, host.boot)
        return True

    def _flip_bit(self, fault: Fault) -> bool:
        rot = self.around.rot
        if not rot.strike(fault, self._target(fault)):
            return False
        if fault.length_ms:
            rot.host.crash()
            self._later(fault, rot.host.boot)
        return True

    def _may_lose(self, host: FleetHost) -> bool:
        leader = self.leader()
        if leader is None or leader.store is None or any(h.is_wiped for h in self._hosts):
            return False
        log = leader.store.log
        members = log.voters.members
        long_ns = 6000 * self.around.plan.pace * MS
        if log.voters.get(host.node_id) is None:
            # Nor one that is about to become a voter, with the directory that it has now.
            return self._world.now_ns - self._added_ns.get(host.node_id, -(10**12)) > long_ns
        calm = self._world.now_ns - self._voters_changed_ns > long_ns
        settled = log.voters_index <= leader.store.core.commit_index
        # By all of them: who was away meanwhile takes the new disk for the first one (0020).
        known = all(
            host.node_id in self._hosts[voter.node_id - 1].known_voters() for voter in members
        )
        return len(members) >= 3 and known and calm and settled

    def _lose(self, host: FleetHost, fault: Fault, wipe: Callable[[], None]) -> None:
        leader = self.leader()
        assert leader is not None and leader.store is not None
        is_voter = leader.store.log.voters.get(host.node_id) is not None
        wipe()
        self.around.registry.terms.pop(host.node_id, None)
        self._later(fault, host.boot)
        if is_voter:
            host.is_wiped = True
            self._world.at(int(fault.length_ms + 500) * MS, self._replace, host)

    def _replace(self, host: FleetHost) -> None:
        """Remove a wiped voter and add it again, as an operator does, until it has worked."""
        leader = self.leader()
        pause_ns = int(400 * self.around.plan.pace) * MS
        if leader is None or leader.store is None or host.store is None:
            self._world.at(pause_ns, self._replace, host)
            return
        log = leader.store.log
        voter = log.voters.get(host.node_id)
        settled = log.voters_index <= leader.store.core.commit_index
        if voter is not None and voter.directory_id != host.store.log.directory_id:
            self._change(Operation.REMOVE, host.node_id)
        elif voter is None and host.is_wiped:
            self._change(Operation.ADD, host.node_id)
        elif settled:
            host.is_wiped = False
            self.around.count("voters replaced")
            return
        self._world.at(pause_ns, self._replace, host)

    def expect_removal(self, node_id: int) -> None:
        """An operator is about to ask for the removal of a voter."""
        self._voters_changed_ns = self._world.now_ns
        self.around.registry.voters_asked.add((Operation.REMOVE, node_id))

    def _change(self, operation: Operation, node_id: int) -> None:
        host = self.some_host()
        if host is not None:
            self._voters_changed_ns = self._world.now_ns
            if operation is Operation.ADD:
                self._added_ns[node_id] = self._world.now_ns
            self.around.registry.voters_asked.add((operation, node_id))
            self.do(host, self._change_at(host, operation, node_id))

    async def _change_at(self, host: FleetHost, operation: Operation, node_id: int) -> None:
        assert host.broker is not None and host.clock is not None
        store: Any = host.broker.store
        outcome = await store.change_voters(
            operation,
            node_id,
            host.clock.now_ms() + int(2_000 * self.around.plan.pace),
            host=address_of(node_id),
            port=RAFT_PORT,
        )
        self.around.trace("voters", operation, node_id, outcome)
        kinds = {Applied: "ok", Refused: "refused"}
        self.around.count(f"voters {operation} {kinds.get(type(outcome), 'unknown')}")

    def _add_voter(self, fault: Fault) -> bool:
        if any(host.is_wiped for host in self._hosts):
            return False
        self._change(Operation.ADD, self.rng.choice(self._hosts).node_id)
        return True

    def _remove_voter(self, fault: Fault) -> bool:
        if any(host.is_wiped for host in self._hosts):
            return False
        self._change(Operation.REMOVE, self._target(fault).node_id)
        return True

    def _transfer(self, fault: Fault) -> None:
        self._change(Operation.TRANSFER, self.rng.choice(self._hosts).node_id)


ACTIONS: dict[str, Callable[[FleetSaboteur, Fault], bool | None]] = {
    "crash": FleetSaboteur._crash,
    "crash-many": FleetSaboteur._crash_many,
    "power-cut": FleetSaboteur._power_cut,
    "power-all": FleetSaboteur._power_all,
    "die": FleetSaboteur._die,
    "die-writing": FleetSaboteur._die_writing,
    "stop": FleetSaboteur._stop,
    "pause": FleetSaboteur._pause,
    "one-way": FleetSaboteur._one_way,
    "isolate": FleetSaboteur._isolate,
    "split": FleetSaboteur._split,
    "cut-connections": FleetSaboteur._cut_connections,
    "slow-network": FleetSaboteur._slow_network,
    "slow-disk": FleetSaboteur._slow_disk,
    "stuck-disk": FleetSaboteur._stuck_disk,
    "disk-errors": FleetSaboteur._disk_errors,
    "disk-error-once": FleetSaboteur._disk_error_once,
    "full-disk": FleetSaboteur._full_disk,
    "set-clock": FleetSaboteur._set_clock,
    "wipe": FleetSaboteur._wipe,
    "wipe-directory": FleetSaboteur._wipe_directory,
    "flip-bit": FleetSaboteur._flip_bit,
    "add-voter": FleetSaboteur._add_voter,
    "remove-voter": FleetSaboteur._remove_voter,
    "transfer": FleetSaboteur._transfer,
}
