"""Carries out the schedule of faults on a host and its network, and heals everything in the end.

What each kind means stands in `ACTIONS`; what is drawn for it in `tests.simulation.plan`.
"""

import errno
import random
import re
from collections.abc import Callable
from functools import partial
from uuid import UUID

from tests.fakes.device import Disk
from tests.fakes.faults import DiskFault, read_only
from tests.simulation.cluster import Host
from tests.simulation.plan import CLIENT_ADDRESSES, NODE_ADDRESS, Fault

MS = 1_000_000
_LOG_DIRECTORY = re.compile(r"/(?P<topic>[^/]+)-(?P<partition>\d+)\.(?P<id>[0-9a-f-]+)/")


class Saboteur:
    """Does to a host what the plan says."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._world = host.world
        self._rng = random.Random(f"{host.plan.seed}/saboteur")
        self._over = False

    def schedule(self) -> None:
        """Set a timer for each fault, and for what the system does to its cache by itself."""
        for number, fault in self._host.plan.schedule():
            self._world.at(fault.at_ms * MS, self._strike, number, fault)
        if self._host.plan.write_back_share:
            self._world.at(30 * MS, self._write_back)

    def _strike(self, number: int, fault: Fault) -> None:
        if not self._over:
            self._host.trace("fault", number, fault)
            ACTIONS[fault.kind](self, fault)

    def _write_back(self) -> None:
        if not self._over:
            self._host.machine.write_back(self._host.plan.write_back_share)
            self._world.at(self._rng.randrange(10, 300) * MS, self._write_back)

    def heal(self) -> None:
        """End all faults; the host is started again where it is down."""
        self._over = True
        host = self._host
        host.trace("heal")
        host.reload({})
        host.machine.spare()
        host.network.unblock_all()
        host.network.config.slow_probability = 0.0
        host.machine.heal()
        for disk in host.machine.disks.values():
            disk.capacity_bytes = host.plan.capacity_bytes
        if host.loop is not None:
            host.loop.resume()
        if host.disturbed:
            # Files that had an error are not trusted until the node is started anew.
            host.crash()
            host.disturbed = False
        host.boot_later(0)

    def _later(self, fault: Fault, callback: Callable[[], object]) -> None:
        self._world.at(fault.length_ms * MS, callback)

    # -- processes and power

    def _crash(self, fault: Fault) -> None:
        self._host.crash()
        self._host.boot_later(fault.length_ms * MS)

    def _power_cut(self, fault: Fault) -> None:
        self._host.power_cut(fault.amount if fault.amount >= 0 else None)
        self._host.boot_later(fault.length_ms * MS)

    def _stop(self, fault: Fault) -> None:
        self._host.stop(fault.length_ms * MS)

    def _die(self, fault: Fault) -> None:
        how, operation, path_part = (*fault.detail.split(), "", "")[:3]
        downtime_ns = fault.length_ms * MS
        self._host.die_at(int(fault.amount), how, downtime_ns, operation, path_part)

    def _pause(self, fault: Fault) -> None:
        self._host.pause(fault.length_ms * MS)

    def _set_clock(self, fault: Fault) -> None:
        self._host.set_clock(int(fault.amount))

    def _reload(self, fault: Fault) -> None:
        """Change the configuration file and send SIGHUP; back again after a while."""
        name, value = fault.detail.split()
        self._host.reload({name: value})
        self._later(fault, partial(self._host.reload, {}))

    # -- network

    def _cut_connections(self, fault: Fault) -> None:
        self._host.network.cut_some(fault.amount)

    def _block(self, fault: Fault) -> None:
        network = self._host.network
        for address in CLIENT_ADDRESSES[: self._rng.choice((1, len(CLIENT_ADDRESSES)))]:
            if fault.detail in ("in", "both"):
                network.block(address, NODE_ADDRESS)
            if fault.detail in ("out", "both"):
                network.block(NODE_ADDRESS, address)
        self._later(fault, network.unblock_all)

    def _slow_network(self, fault: Fault) -> None:
        config = self._host.network.config
        before, config.slow_probability = config.slow_probability, 0.5

        def restore() -> None:
            config.slow_probability = before

        self._later(fault, restore)

    # -- disks

    def _disk(self, fault: Fault) -> tuple[Disk, str]:
        mount, _, detail = fault.detail.partition(" ")
        return self._host.machine.disks[mount], detail

    def _slow_disk(self, fault: Fault) -> None:
        disk, _ = self._disk(fault)
        disk.latency.factor = fault.amount

        def restore() -> None:
            disk.latency.factor = 1.0

        self._later(fault, restore)

    def _stuck_disk(self, fault: Fault) -> None:
        disk, _ = self._disk(fault)
        disk.stick()
        self._later(fault, disk.unstick)

    def _disk_errors(self, fault: Fault) -> None:
        disk, operations = self._disk(fault)
        self._add(disk, fault, DiskFault(tuple(operations.split()), probability=fault.amount))

    def _disk_error_once(self, fault: Fault) -> None:
        disk, operations = self._disk(fault)
        self._host.disturbed = True
        disk.faults.append(DiskFault(tuple(operations.split()), count=1, probability=fault.amount))

    def _read_only(self, fault: Fault) -> None:
        disk, _ = self._disk(fault)
        self._add(disk, fault, read_only())

    def _add(self, disk: Disk, fault: Fault, error: DiskFault, disturbs: bool = True) -> None:
        self._host.disturbed = self._host.disturbed or disturbs
        disk.faults.append(error)

        def remove() -> None:
            if error in disk.faults:
                disk.faults.remove(error)

        self._later(fault, remove)

    def _no_descriptors(self, fault: Fault) -> None:
        """Nothing can be opened for a while; a node waits, for no disk is to blame."""
        disk, _ = self._disk(fault)
        error = DiskFault(("open",), errno=errno.EMFILE, probability=fault.amount)
        self._add(disk, fault, error, disturbs=False)
        until_ns = self._world.now_ns + fault.length_ms * MS
        self._host.short_until_ns = max(self._host.short_until_ns, until_ns)

    def _full_disk(self, fault: Fault) -> None:
        disk, _ = self._disk(fault)
        # What is written before the node looks at its free space again meets the real error.
        self._host.disturbed = True
        disk.capacity_bytes = disk.used_bytes() + int(fault.amount)

        def restore() -> None:
            disk.capacity_bytes = self._host.plan.capacity_bytes

        self._later(fault, restore)

    def _flip_bit(self, fault: Fault) -> None:
        disks = list(self._host.machine.disks.values())
        place = self._rng.choice(disks).flip_bit(fault.detail)
        self._host.trace("flip", place)
        found = _LOG_DIRECTORY.search(place or "")
        if found is None or fault.detail != ".log":
            return
        topic_id = UUID(found["id"])
        for key, facts in self._host.history.facts.items():
            if key.topic_id == topic_id and key.partition == int(found["partition"]):
                facts.damaged = True


ACTIONS: dict[str, Callable[[Saboteur, Fault], None]] = {
    "crash": Saboteur._crash,
    "power-cut": Saboteur._power_cut,
    "stop": Saboteur._stop,
    "die": Saboteur._die,
    "pause": Saboteur._pause,
    "set-clock": Saboteur._set_clock,
    "cut-connections": Saboteur._cut_connections,
    "block": Saboteur._block,
    "slow-network": Saboteur._slow_network,
    "slow-disk": Saboteur._slow_disk,
    "stuck-disk": Saboteur._stuck_disk,
    "disk-errors": Saboteur._disk_errors,
    "disk-error-once": Saboteur._disk_error_once,
    "read-only": Saboteur._read_only,
    "full-disk": Saboteur._full_disk,
    "no-descriptors": Saboteur._no_descriptors,
    "reload": Saboteur._reload,
    "flip-bit": Saboteur._flip_bit,
}
