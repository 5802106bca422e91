"""One host: switched on and off, crashed, cut off, frozen, entered, given disks."""

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.hosts.rig import disks, image, mounts, processes
from tests.hosts.rig.commands import (
    COMMAND_S,
    LOOK_S,
    SHOWN_CHARACTERS,
    RigError,
    await_that,
    run,
)
from tests.hosts.rig.disks import Disk
from tests.hosts.rig.groups import Groups
from tests.hosts.rig.image import ADMIN
from tests.hosts.rig.network import Network
from tests.hosts.rig.processes import Process
from tests.hosts.rig.supervision import NSPAWN_ENVIRONMENT, supervisor

BOOT_S = 60.0
STOP_S = 30.0
KILL_S = 10.0
UP = ("running", "degraded")
_HALT = 37  # SIGRTMIN+3, which systemd takes for: switch off
SSH_OPTIONS = (
    *("-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
    *("-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
    # Without these an ssh to a host that was cut off hangs.
    *("-o", "ConnectTimeout=5", "-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=2"),
)

Command = str | Sequence[str]
"""A text for the shell, or words that no shell reads."""


class Host:
    """A host of a rig. Its disk, address and cable stay when it is off; memory and /run do not."""

    def __init__(self, number: int, folder: Path, network: Network, key: Path) -> None:
        self.number = number
        self.name = f"h{number}"
        self.address = network.address(number)
        self.machine = f"{network.name}-{self.name}"
        self._folder = folder / "hosts" / self.name
        self._network = network
        self._key = key
        self._groups = Groups(self.machine)
        self._bytes_per_s: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        """The supervisor, where this process started it: to be reaped."""

    @property
    def root(self) -> Path:
        """The host's file system, seen from outside."""
        return self._folder / "root"

    @property
    def console(self) -> str:
        """What the host has said on its console."""
        with suppress(FileNotFoundError):
            return (self._folder / "console.log").read_text(errors="replace")
        return ""

    @property
    def disks(self) -> list[Disk]:
        """The extra disks, the oldest first."""
        with suppress(FileNotFoundError):
            found = json.loads((self._folder / "disks.json").read_text())
            return [Disk(link, device, Path(image)) for link, device, image in found]
        return []

    @property
    def _supervisor(self) -> Process | None:
        with suppress(FileNotFoundError):
            return Process(*json.loads((self._folder / "supervisor.json").read_text()))
        return None

    @property
    def is_on(self) -> bool:
        """Whether the host has a process; a host that reboots stays on."""
        found = self._supervisor
        return found is not None and found.lives

    @property
    def init(self) -> int | None:
        """The machine's number of the host's process 1; None while there is none."""
        found = self._supervisor
        for nspawn in processes.children(found.pid) if found and found.lives else ():
            for child in processes.children(nspawn):
                numbers = processes.status(child, "NSpid").split()
                if len(numbers) > 1 and numbers[-1] == "1":
                    return child
        return None

    def start(self) -> None:
        """Switch the host on, with its disk as it was; `wait_booted` waits for the rest."""
        if self.is_on:
            return
        self._tidy()
        upper, work = self._folder / "upper", self._folder / "work"
        for path in (upper, work, self.root):
            path.mkdir(parents=True, exist_ok=True)
        if self.root not in mounts.below(self._folder):
            parts = {"lowerdir": image.tree(), "upperdir": upper, "workdir": work}
            options = ",".join(f"{name}={path}" for name, path in parts.items())
            run(["mount", "-t", "overlay", self.machine, "-o", options, str(self.root)])
        self._name()
        self._groups.make()
        if self._bytes_per_s is not None:
            self._throttle(self._bytes_per_s)
        command = supervisor(
            root=self.root,
            machine=self.machine,
            hostname=self.name,
            network=self._network.path_of(self.number),
            groups=self._groups.paths,
        )
        with (self._folder / "console.log").open("ab") as console:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=NSPAWN_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        found = Process.of(self._child.pid)
        if found is not None:
            (self._folder / "supervisor.json").write_text(json.dumps(found))

    def _name(self) -> None:
        """Give a new host its name, its id, its keys, and the names of all hosts."""
        etc = self.root / "etc"
        if (etc / "hostname").exists():
            return
        numbers = range(1, image.HOSTS_MAX + 1)
        names = "".join(f"{self._network.address(number)} h{number}\n" for number in numbers)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        (etc / "machine-id").write_text(secrets.token_hex(16) + "\n")
        kind = ["-q", "-t", "ed25519", "-N", "", "-C", self.name]
        run(["ssh-keygen", *kind, "-f", str(etc / "ssh/ssh_host_ed25519_key")])
        home = self.root / "home" / ADMIN
        keys = home / ".ssh" / "authorized_keys"
        keys.parent.mkdir(mode=0o700, exist_ok=True)
        keys.write_text(self._key.with_suffix(".pub").read_text())
        for path in (keys.parent, keys):
            os.chown(path, home.stat().st_uid, home.stat().st_gid)
        (etc / "hostname").write_text(f"{self.name}\n")

    def wait_booted(self, timeout_s: float = BOOT_S) -> str:
        """Return `running`, or `degraded` where a unit failed, when the boot is complete."""
        deadline = time.monotonic() + timeout_s
        state = ""
        while (left_s := deadline - time.monotonic()) > 0:
            if not self.is_on:
                raise RigError(f"{self.name} is off.{self._said()}")
            if self.init is not None:
                with suppress(subprocess.TimeoutExpired):
                    command = ["systemctl", "is-system-running", "--wait"]
                    done = self.enter(command, check=False, timeout=left_s)
                    state = done.stdout.strip()
                    if state in UP:
                        return state
            time.sleep(LOOK_S)
        raise RigError(f"{self.name} did not boot in {timeout_s:.0f} s: {state}.{self._said()}")

    def _said(self) -> str:
        return f" Its console:\n{self.console[-SHOWN_CHARACTERS:]}"

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Switch the host off in good order; a host that does not end in time is crashed."""
        found = self._supervisor
        if found is None or not found.lives:
            self._tidy()
            return
        self._groups.thaw()
        # A signal that came before systemd handles it would be lost.
        await_that(lambda: not found.lives or self._hears(), KILL_S)
        found.signal(signal.SIGTERM)
        if not found.wait(timeout_s):
            self.crash()
        self._tidy()

    def _hears(self) -> bool:
        init = self.init
        blocked = "" if init is None else processes.status(init, "SigBlk")
        return bool(blocked) and bool(int(blocked, 16) >> (_HALT - 1) & 1)

    def crash(self) -> None:
        """Kill everything in the host at once, as a reset does. The page cache survives.

        To lose what was not flushed on an extra disk, shut its file system down before:
        `enter("xfs_io -x -c shutdown MOUNT_POINT")`.
        """
        found = self._supervisor
        if found is not None:
            found.signal(signal.SIGKILL)
        self._groups.kill()
        if found is not None and not found.wait(KILL_S):
            raise RigError(f"{self.name} survived SIGKILL for {KILL_S:.0f} s.")
        self._tidy()

    def wait_off(self, timeout_s: float = STOP_S) -> None:
        """Wait until a host that switches itself off has done so."""
        found = self._supervisor
        if found is not None and not found.wait(timeout_s):
            raise RigError(f"{self.name} is still on after {timeout_s:.0f} s.{self._said()}")
        self._tidy()

    def _tidy(self) -> None:
        """Remove what a host leaves outside of itself when it ends."""
        if self._child is not None:
            self._child.wait(KILL_S)
            self._child = None
        (self._folder / "supervisor.json").unlink(missing_ok=True)
        self._groups.remove()
        forget(self.machine, self.root)
        for disk in self.disks:
            disks.wait_unmounted(disk.device)

    def reboot(self, timeout_s: float = BOOT_S) -> str:
        """Let the host boot again by itself; return its state when it has."""
        before = self.init
        self.enter(["systemctl", "reboot"])
        if not await_that(lambda: self.init not in (before, None), timeout_s):
            raise RigError(f"{self.name} did not reboot in {timeout_s:.0f} s.{self._said()}")
        return self.wait_booted(timeout_s)

    def enter(
        self, command: Command, check: bool = True, timeout: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host as root, by no network.

        The command is outside of the host's control groups: `freeze` and `slow_disk` spare it.
        """
        init = self.init
        if init is None:
            raise RigError(f"{self.name} is off.{self._said()}")
        words = ["sh", "-c", command] if isinstance(command, str) else list(command)
        kinds = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd")
        return run(["nsenter", f"--target={init}", *kinds, *words], check=check, timeout=timeout)

    def ssh(
        self, command: Command, user: str = ADMIN, check: bool = True, timeout: float = COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the host by ssh from the controller's namespace."""
        line = command if isinstance(command, str) else shlex.join(command)
        words = ["ssh", *SSH_OPTIONS, "-i", str(self._key), f"{user}@{self.address}", "--", line]
        inside = ["nsenter", f"--net={self._network.path}"]
        return run([*inside, *words], check=check, timeout=timeout)

    def cut(self) -> None:
        """Pull the cable. Nothing in the host notices but by silence."""
        self._network.connect(self.number, False)

    def heal(self) -> None:
        """Plug the cable in again."""
        self._network.connect(self.number, True)

    def freeze(self) -> None:
        """Stop every process of the host; its connections stay open and get no answer."""
        self._groups.freeze()

    def thaw(self) -> None:
        """Let the processes go on."""
        self._groups.thaw()

    def mask_ssh(self) -> None:
        """Make the host unreachable by ssh; its other services go on.

        Sessions end too: those of a shared connection (ControlPersist) outlive the stop of sshd.
        """
        self.enter(["systemctl", "mask", "--runtime", "--now", "ssh.service"])
        self.enter(["systemctl", "kill", "--signal=KILL", "ssh.service"], check=False)

    def unmask_ssh(self) -> None:
        """Let ssh in again."""
        self.enter(["systemctl", "unmask", "--runtime", "ssh.service"])
        self.enter(["systemctl", "start", "ssh.service"])

    def slow_disk(self, bytes_per_s: int | None) -> None:
        """Bound reads and writes of each disk of the host; None: no bound. It outlasts a restart.

        It holds for services and ssh, not for `enter`. With cgroup v1 a write into the page cache
        is not slowed, but its flush is.
        """
        if self.is_on:
            self._throttle(bytes_per_s)
        self._bytes_per_s = bytes_per_s

    def _throttle(self, bytes_per_s: int | None) -> None:
        devices = [disk.number for disk in self.disks]
        own = _whole_disk(self._folder)
        if own is not None:
            devices.append(own)
        if not devices:
            raise RigError(f"{self._folder} is on no block device: it cannot be slowed.")
        self._groups.throttle(devices, bytes_per_s)

    def disk(self, megabytes: int) -> Disk:
        """Add an empty disk, at once where the host is on; it stays for the host's life.

        xfs needs 300 MB. Its device is there at each boot, before file systems are mounted.
        """
        found = self.disks
        link = f"rig-{self.name}-disk{len(found) + 1}"
        disk = disks.attach(self._folder / f"{link}.img", link, megabytes)
        found.append(disk)
        (self._folder / "disks.json").write_text(json.dumps([list(map(str, d)) for d in found]))
        lines = "".join(each.tmpfiles() for each in found)
        (self.root / "usr/lib/tmpfiles.d/rig-disks.conf").write_text(lines)
        if self.is_on:
            self.enter(["systemd-tmpfiles", "--create", "--prefix=/dev", "rig-disks.conf"])
            if self._bytes_per_s is not None:
                self._throttle(self._bytes_per_s)
        return disk


def _whole_disk(path: Path) -> str | None:
    """Return `major:minor` of the disk that a path is on; None where it is on none."""
    device = os.stat(path).st_dev
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not folder.exists():
        return None
    folder = folder.resolve()
    folder = folder.parent if (folder / "partition").exists() else folder
    return (folder / "dev").read_text().strip()


def forget(machine: str, root: Path) -> None:
    """Remove what systemd-nspawn keeps in /run of a machine that ended; `root` is mounted."""
    own = Path("/run/systemd/nspawn")
    for path in own.glob(f"*/{machine}"):
        shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        stat = root.stat()
        (own / "locks" / f"inode-{stat.st_dev}:{stat.st_ino}").unlink()
    for path in (*own.glob("*"), own):
        with suppress(OSError):
            path.rmdir()
