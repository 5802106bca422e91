"""The end of a rig, in whatever state: processes, groups, disks, mounts, namespaces, files.

The same for a rig that ends and for one whose maker died. Everything is found by the folder and
the name in its record; no process is found by its name.
"""

import json
import shutil
import signal
from contextlib import suppress
from pathlib import Path

from tests.hosts.rig import disks, host, mounts, ownership
from tests.hosts.rig.commands import RigError
from tests.hosts.rig.groups import Groups
from tests.hosts.rig.image import HOSTS_MAX
from tests.hosts.rig.network import Network
from tests.hosts.rig.ownership import Record
from tests.hosts.rig.processes import Process

EMPTY_S = 20.0


def controller_group(name: str) -> Groups:
    """Return the group of everything that runs on the controller's side."""
    return Groups(f"{name}-controller")


def clear(record: Record) -> None:
    """Remove a rig and its record."""
    folder = Path(record.folder)
    if record.is_of_this_boot:
        _end_processes(record, folder)
        disks.detach_below(folder)
        for number in range(1, HOSTS_MAX + 1):
            host.forget(f"{record.name}-h{number}", folder / "hosts" / f"h{number}" / "root")
        mounts.unmount(folder)
        Network(record.name, record.net).remove()
    if mounts.below(folder):
        raise RigError(f"File systems stay mounted: {', '.join(map(str, mounts.below(folder)))}.")
    for path in (folder / name for name in ("hosts", "key", "key.pub")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    ownership.forget()


def _end_processes(record: Record, folder: Path) -> None:
    """Kill the hosts and the controller's side; remove their groups."""
    for path in folder.glob("hosts/*/supervisor.json"):
        with suppress(ValueError):
            Process(*json.loads(path.read_text())).signal(signal.SIGKILL)
    machines = [f"{record.name}-h{number}" for number in range(1, HOSTS_MAX + 1)]
    groups = [controller_group(record.name), *map(Groups, machines)]
    for each in groups:
        each.kill()
    for each in groups:
        if not each.wait_empty(EMPTY_S):
            raise RigError(f"Processes in {each.unified} survived SIGKILL for {EMPTY_S:.0f} s.")
        each.remove()
