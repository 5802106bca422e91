"""The base image of all hosts: a bare Debian 12 with systemd, sshd and Python, made once.

The image is a tar file in `.cache/rig` of the checkout, with the unpacked tree next to it. Their
names have a digest of the recipe, so a changed recipe makes others. Hosts lay their own files over
the tree and never change it. Names, addresses and keys are no part of it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.hosts.rig import mounts
from tests.hosts.rig.commands import SHOWN_CHARACTERS, RigError, run

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "rig"
MAKE_S = 900.0
UNPACK_S = 180.0
SUITE = "bookworm"
HOSTS_MAX = 6
ADMIN = "admin"
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "python3",
    "sudo",
    "iproute2",
    "procps",
    "iputils-ping",
    "nftables",
    "e2fsprogs",
    "xfsprogs",
    "acl",
    "util-linux",
)
OPTIONS = (
    "--variant=minbase",
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=force-unsafe-io",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)
# Names are not looked up, because no server of names is there. Timers of apt need a network.
CUSTOMIZE = r"""
set -eu
cd "$1"
chroot . useradd --create-home --shell /bin/bash --password '*' admin
echo 'admin ALL=(ALL:ALL) NOPASSWD: ALL' >etc/sudoers.d/admin
chmod 440 etc/sudoers.d/admin
rm -f etc/ssh/ssh_host_* etc/hostname etc/resolv.conf
: >etc/machine-id
printf '%s\n' 'PermitRootLogin no' 'PasswordAuthentication no' 'UseDNS no' \
    'GSSAPIAuthentication no' >etc/ssh/sshd_config.d/rig.conf
mkdir -p etc/systemd/journald.conf.d var/log/journal
printf '[Journal]\nStorage=persistent\nSystemMaxUse=64M\n' >etc/systemd/journald.conf.d/rig.conf
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer getty@tty1.service systemd-pstore.service; do
    rm -f etc/systemd/system/*.wants/"$unit"
done
ln -sf /dev/null etc/systemd/system/console-getty.service
rm -rf var/cache/apt/*.bin var/lib/apt/lists/*
"""


def archive(cache: Path = CACHE) -> Path:
    """Return where the image is or will be."""
    recipe = "\n".join((SUITE, *PACKAGES, *OPTIONS, CUSTOMIZE))
    return cache / f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar.zst"


def _sources() -> list[str]:
    """Return the machine's own package sources where they are those of the suite."""
    for name in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"):
        path = Path(name)
        if path.is_file() and SUITE in path.read_text() and "debian" in path.read_text():
            return [name]
    return []


def tree(cache: Path = CACHE) -> Path:
    """Return where the unpacked image is or will be."""
    return cache / archive(cache).name.removesuffix(".tar.zst")


def make(cache: Path = CACHE) -> Path:
    """Return the unpacked image; make the image where it is missing.

    That takes a minute and needs the network. Runs that make it at once wait for each other. What
    an ended run left is thrown away.
    """
    packed, unpacked = archive(cache), tree(cache)
    if unpacked.exists():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    cache.chmod(0o700)  # programs in there run as root, whoever starts them
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if unpacked.exists():
            return unpacked
        _discard_old(cache, kept=packed)
        made = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
        try:
            # mmdebstrap works in there, with other users.
            made.chmod(0o755)
            if not packed.exists():
                _bootstrap(made, lock.fileno())
                (made / "base.tar.zst").rename(packed)
            _unpack(packed, made / "base")
            (made / "base").rename(unpacked)
        finally:
            _discard(made)
    return unpacked


def _discard_old(cache: Path, kept: Path) -> None:
    """Delete what ended runs and other recipes left, but no tree that hosts are on."""
    used = " ".join(option for each in mounts.mounts() for option in each.options)
    for path in [*cache.glob("making-*"), *cache.glob("base-*")]:
        if path != kept and str(path) not in used:
            _discard(path)


def _bootstrap(folder: Path, lock: int) -> None:
    """Make the image in a folder. The lock is held until the last process of mmdebstrap ends."""
    command = [
        "mmdebstrap",
        *("--quiet", "--mode=root", f"--include={','.join(PACKAGES)}"),
        *OPTIONS,
        f"--customize-hook={CUSTOMIZE}",
        *(SUITE, str(folder / "base.tar.zst"), *_sources()),
    ]
    try:
        run(command, timeout=MAKE_S, env={**os.environ, "TMPDIR": str(folder)}, pass_fds=[lock])
    except subprocess.CalledProcessError as error:
        said = "\n".join((error.stdout + error.stderr).strip()[-SHOWN_CHARACTERS:].splitlines())
        raise RigError(f"mmdebstrap could not make the base image:\n{said}") from None
    except subprocess.TimeoutExpired:
        raise RigError(f"mmdebstrap did not make the base image in {MAKE_S:.0f} s.") from None


def _discard(path: Path) -> None:
    if path.is_dir():
        mounts.unmount(path)
        if mounts.below(path):
            raise RigError(f"Cannot delete {path}: something in it is mounted. Unmount it.")
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _unpack(packed: Path, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    kept = ("--numeric-owner", "--xattrs", "--xattrs-include=*")
    command = ["tar", "-I", "zstd", *kept, "-C", str(folder), "-xpf", str(packed)]
    run(command, timeout=UNPACK_S)
