"""The rig: some hosts on one bridge, and a controller's side without a way out."""

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tests.hosts.rig import image, ownership, processes
from tests.hosts.rig.clearing import clear, controller_group
from tests.hosts.rig.commands import COMMAND_S, RigError, run
from tests.hosts.rig.host import BOOT_S, Host
from tests.hosts.rig.image import ADMIN, HOSTS_MAX
from tests.hosts.rig.network import Network
from tests.hosts.rig.ownership import Lock, Record

NAME = "dlog-rig"
NET = "10.77.0"
WAIT_S = 240.0
# Overlayfs reads these characters in paths as its own.
FORBIDDEN = frozenset(',:\\ \t\n"')
JOIN = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


class Rig:
    """Some hosts. Life: a `with` block, or `up` to `down`; one at a time on a machine."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        name: str = NAME,
        net: str = NET,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        if not 1 <= size <= HOSTS_MAX:
            raise RigError(f"A rig has 1 to {HOSTS_MAX} hosts, not {size}.")
        self.folder = folder.resolve()
        if FORBIDDEN & set(str(self.folder)):
            raise RigError(f"Overlayfs cannot use {self.folder}. Choose a folder without , : \\.")
        self.name = name
        self.net = net
        self.size = size
        self.key = self.folder / "key"
        self.hosts: list[Host] = []
        self.is_untouched = False
        """Whether the hosts are new; set to False by who begins to use them."""
        self._wait_s = wait_s
        self._network = Network(name, net)
        self._lock = Lock()

    @classmethod
    def attach(cls) -> Self:
        """Return the rig that is on this machine, whoever made it; raise RigError without one."""
        record = ownership.load()
        if record is None or not record.is_of_this_boot:
            raise RigError("No rig is up. Make one with: python -m tests.hosts.rig up")
        size = max(record.size, 1)
        found = cls(Path(record.folder), size, record.name, record.net, wait_s=0.0)
        found.hosts = [found._host(number) for number in range(1, record.size + 1)]
        return found

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def namespace(self) -> Path:
        """The network namespace of the controller's side."""
        return self._network.path

    def up(self) -> None:
        """Make the hosts and wait until each has booted; clear first what a dead maker left."""
        image.make()
        if not self._lock.is_held:
            self._acquire()
        try:
            left = ownership.load()
            if left is not None:
                clear(left)
            self._make()
        except BaseException:
            self.down()
            raise

    def _acquire(self) -> None:
        """Take the lock when no process has a rig and none was left up on purpose."""
        deadline = time.monotonic() + self._wait_s
        while True:
            self._lock.acquire(max(0.0, deadline - time.monotonic()))
            left = ownership.load()
            if left is None or not left.kept or not left.is_of_this_boot:
                return
            self._lock.release()
            if time.monotonic() > deadline:
                raise RigError(
                    f"A rig was left up in {left.folder} (by pid {left.pid}). "
                    "End it with: python -m tests.hosts.rig down"
                )
            time.sleep(ownership.LOOK_S)

    def _record(self, size: int) -> Record:
        return Record(
            folder=str(self.folder),
            name=self.name,
            net=self.net,
            size=size,
            pid=os.getpid(),
            boot=processes.boot_id(),
        )

    def _make(self) -> None:
        self._record(0).save()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.key.exists():
            kind = ["-q", "-t", "ed25519", "-N", "", "-C", self.name]
            run(["ssh-keygen", *kind, "-f", str(self.key)])
        controller_group(self.name).make()
        self._network.make()
        self.hosts = [self._new_host(number) for number in range(1, self.size + 1)]
        for each in self.hosts:
            self._expect_running(each)
        self.is_untouched = True

    def _host(self, number: int) -> Host:
        return Host(number, self.folder, self._network, self.key)

    def _new_host(self, number: int) -> Host:
        self._network.add(number)
        host = self._host(number)
        host.start()
        self._record(number).save()
        return host

    def _expect_running(self, host: Host) -> None:
        state = host.wait_booted(BOOT_S)
        if state != "running":
            failed = host.enter(["systemctl", "--failed", "--no-legend"]).stdout
            raise RigError(f"{host.name} is {state}:\n{failed}")

    def add_host(self) -> Host:
        """Add one more host and return it when it has booted."""
        if len(self.hosts) == HOSTS_MAX:
            raise RigError(f"A rig has at most {HOSTS_MAX} hosts.")
        host = self._new_host(len(self.hosts) + 1)
        self.hosts.append(host)
        self._expect_running(host)
        return host

    def renew(self) -> None:
        """Replace all hosts by new ones: nothing that was done to them is left."""
        self.remove_hosts()
        self.up()

    def down(self) -> None:
        """End everything of this rig, and leave nothing."""
        if not self._lock.is_held:
            if not self._is_there():
                return
            self._lock.acquire(self._wait_s)
        try:
            self.remove_hosts()
        finally:
            self._lock.release()

    def _is_there(self) -> bool:
        record = ownership.load()
        return record is not None and Path(record.folder) == self.folder

    def remove_hosts(self) -> None:
        """End everything of this rig, and leave nothing but the right to make it again."""
        record = ownership.load()
        if record is not None and Path(record.folder) == self.folder:
            clear(record)
        self.hosts = []

    def keep(self) -> None:
        """Leave the rig up when this process ends."""
        replace(self._record(len(self.hosts)), kept=True).save()
        self._lock.release()

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs in the rig's namespace and ends with the rig at the latest.

        Nothing there has a route out. Not by `ip netns exec`: that holds on to all mounts.
        """
        group = str(controller_group(self.name).unified)
        inside = ["nsenter", f"--net={self.namespace}"]
        return ["sh", "-c", JOIN, group, *inside, *argv]

    def run(
        self, argv: Sequence[str], check: bool = True, timeout: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the rig's namespace, with our environment."""
        return run(self.command(argv), check=check, timeout=timeout, env=os.environ)

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in the rig's namespace; `down` kills it with all its children."""
        return subprocess.Popen(self.command(argv), **options)

    def inventory_lines(self) -> list[str]:
        """Return a line of an Ansible inventory for each host."""
        common = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        return [
            f"{host.name} ansible_host={host.address} ansible_user={ADMIN}"
            f" ansible_ssh_private_key_file={self.key} ansible_ssh_common_args='{common}'"
            " ansible_python_interpreter=/usr/bin/python3"
            for host in self.hosts
        ]
