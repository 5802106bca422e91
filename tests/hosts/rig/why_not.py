"""Whether the rig can run on this machine, found by trying each part of it."""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.hosts.rig import image
from tests.hosts.rig.commands import run
from tests.hosts.rig.groups import hierarchies

PROGRAMS = (
    *("systemd-nspawn", "zstd", "tar", "ip", "nsenter", "unshare", "losetup", "mount"),
    *("bash", "ssh", "ssh-keygen"),
)
INSTALL = "Install it with: scripts/install-host-rig"
OVERLAY = 'cd "$0" && mkdir lower upper work root && mount -t overlay rig -o "$1" root'


def why_not() -> str | None:
    """Return why the rig cannot run here; None where it can."""
    if not sys.platform.startswith("linux"):
        return "The rig needs Linux."
    if os.geteuid() != 0:
        return "The rig needs root."
    wanted = PROGRAMS if image.tree().exists() else (*PROGRAMS, "mmdebstrap")
    for program in wanted:
        if shutil.which(program) is None:
            return f"The program {program} is missing. {INSTALL}"
    return _namespaces() or _overlay() or _groups()


@cache
def _namespaces() -> str | None:
    kinds = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork")
    return _tried("Namespaces are not allowed", ["unshare", *kinds, "true"])


@cache
def _overlay() -> str | None:
    """Try it in the folder of temporary files: one overlay cannot be the upper part of another."""
    with tempfile.TemporaryDirectory(prefix="dlog-rig-") as folder:
        options = "lowerdir=lower,upperdir=upper,workdir=work"
        script = ["sh", "-c", OVERLAY, folder, options]
        return _tried("Overlayfs does not work", ["unshare", "--mount", *script])


@cache
def _groups() -> str | None:
    found = hierarchies()
    if found is None:
        return "Cgroup v2 is not mounted below /sys/fs/cgroup."
    for hierarchy in found.all:
        try:
            group = Path(tempfile.mkdtemp(prefix="dlog-rig-probe-", dir=hierarchy))
        except OSError as error:
            return f"Control groups cannot be made in {hierarchy}: {error.strerror}."
        try:
            for name in ("cgroup.kill", "cgroup.freeze"):
                if hierarchy == found.unified and not (group / name).exists():
                    return f"Cgroup v2 has no {name}: Linux 5.14 or newer is needed."
        finally:
            group.rmdir()
    return None


def _tried(what: str, command: list[str]) -> str | None:
    try:
        run(command)
    except subprocess.CalledProcessError as error:
        return f"{what}: {(error.stdout + error.stderr).strip()}"
    return None
