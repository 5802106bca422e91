"""Data directories before a start: whose they are, on which disk, with how much room. Blocking."""

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlog.errors import ConfigError
from dlog.types import NodeId
from dlogd.config.choices import DirectIo
from dlogd.config.schema import Config
from dlogd.config.units import format_bytes
from dlogd.metadata.raft.durable_log import NAME as RAFT_LOG
from dlogd.metadata.raft.durable_log import LogCorruptError
from dlogd.metadata.raft.feature_level import UnknownLevelError, expect_known
from dlogd.metadata.raft.snapshots import SnapshotFiles
from dlogd.node.storage_setup import META
from dlogd.preflight.findings import Finding, later, never, note
from dlogd.preflight.processes import holder_of
from dlogd.storage.directory.data_directory import LOCK, TOPICS, Claim, agreed_cluster
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError
from dlogd.storage.io.posix import PosixDirectory

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What was found in all directories together."""

    findings: tuple[Finding, ...]
    log_count: int
    """Logs that lie there."""
    process: int | None
    """The daemon that runs on them."""


def survey(config: Config) -> Surveyed:
    """Look at all directories of a configuration."""
    findings: list[Finding] = []
    claims: list[Claim] = []
    holders: set[int] = set()
    log_count = 0
    for path in config.data.directories:
        missing = _missing(path)
        if missing is not None:
            findings.append(missing)
            continue
        directory = PosixDirectory(os.path.abspath(path))
        holder = holder_of(os.path.join(path, LOCK))
        if holder is not None:
            holders.add(holder)
        findings += _access(path)
        findings += _room(directory, config)
        findings += _direct(path, config)
        try:
            data = checkpoint_files.load_own(directory, checkpoint_files.IDENTITY)
            logs = directory.directory(TOPICS).names() if directory.exists(TOPICS) else []
            identity = None if data is None else checkpoint_files.decode_identity(data)
            claims.append(Claim(path=path, identity=identity, has_logs=bool(logs)))
            log_count += len(logs)
        except MalformedFileError as error:
            findings.append(
                never(f"{path}/{checkpoint_files.IDENTITY} is damaged ({error}): restore it")
            )
        except OSError as error:
            findings.append(never(f"{path} cannot be read: {error.strerror}: look at the disk"))
    findings += _whose(claims, config)
    owned = {claim.path for claim in claims if claim.identity is not None}
    findings += _disks(config.data.directories, owned)
    findings += _level(config)
    if len(holders) > 1:
        named = ", ".join(map(str, sorted(holders)))
        findings.append(later(f"Processes {named} hold these data directories: stop all but one"))
    return Surveyed(tuple(findings), log_count, min(holders, default=None))


def _missing(path: str) -> Finding | None:
    """Say when a directory is not there and the daemon could not make it."""
    if os.path.isdir(path):
        return None
    if os.path.exists(path):
        return never(f"data.directories: {path} is no directory: correct the path")
    parent = Path(path).absolute().parent
    while not parent.is_dir():
        parent = parent.parent
    if os.access(parent, os.W_OK | os.X_OK):
        return note(f"{path} is not there yet: the first start makes it")
    return never(
        f"data.directories: {path} is not there, and {parent} may not be written: mount the disk,"
        f" or make it: install -d -o dlog -g dlog -m 0750 {path}"
    )


def _access(path: str) -> Iterator[Finding]:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        is_mount = os.path.ismount(path)
        cure = (
            f"chown dlog:dlog {path}"
            if is_mount
            else f"mount its disk, or chown dlog:dlog {path} if it has none of its own"
        )
        yield never(f"data.directories: {path} may not be written by this user: {cure}")
    elif os.statvfs(path).f_flag & os.ST_RDONLY:
        yield never(f"data.directories: {path} is mounted read-only: look at the disk, remount it")


def _room(directory: PosixDirectory, config: Config) -> Iterator[Finding]:
    usage = directory.usage()
    reserve = config.disk.reserve_bytes.of(usage.total_bytes)
    if usage.free_bytes < reserve:
        yield note(
            f"{directory.path} has {usage.free_bytes // MIB} MiB free, below disk.reserve.bytes"
            f" ({format_bytes(reserve)}): its logs will refuse appends until there is more room"
        )


def _direct(path: str, config: Config) -> Iterator[Finding]:
    if config.direct_io is DirectIo.OFF or not os.access(path, os.W_OK | os.X_OK):
        return
    try:
        # Without a name, so that nothing is left.
        os.close(os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError:
        if config.direct_io is DirectIo.ON:
            yield never(
                f"The file system of {path} cannot do direct I/O: use direct_io auto or off"
            )
        else:
            yield note(
                f"The file system of {path} cannot do direct I/O: writes go through the page cache"
            )


def _whose(claims: Sequence[Claim], config: Config) -> Iterator[Finding]:
    """Compare what the directories say of themselves, as a start does."""
    try:
        agreed_cluster(claims, NodeId(config.node.id), config.cluster.id)
    except ConfigError as error:
        yield from map(never, error.problems)


def _disks(paths: tuple[str, ...], owned: Container[str]) -> Iterator[Finding]:
    """Two directories on one file system: of one of them the mount is missing."""
    devices: dict[int, list[str]] = {}
    for path in paths:
        if os.path.isdir(path):
            devices.setdefault(os.stat(path).st_dev, []).append(path)
    for together in devices.values():
        if len(together) < 2:
            continue
        named = " and ".join(together)
        lost = [path for path in together if path not in owned]
        if 0 < len(lost) < len(together):
            yield never(
                f"{named} lie on one disk, and {', '.join(lost)} has no data of this node while"
                " the others have: mount its disk"
            )
        else:
            yield note(f"{named} lie on one disk: if it fails, all of them fail")


def _level(config: Config) -> Iterator[Finding]:
    """Ask the newest snapshot of a cluster's metadata, which a start reads first."""
    path = config.metadata.directory or os.path.join(config.data.directories[0], META)
    try:
        if not os.path.isdir(path):
            return
        directory = PosixDirectory(os.path.abspath(path))
        if config.controllers is None and directory.exists(RAFT_LOG):
            yield never(
                f"{path} holds the metadata of a node of a cluster: set `controllers` as on the"
                " other nodes"
            )
        taken = SnapshotFiles(directory).load()
        if taken is not None:
            expect_known(taken.image)
    except (LogCorruptError, UnknownLevelError) as error:
        yield never(str(error))
    except OSError as error:
        yield never(f"{path} cannot be read: {error.strerror}: look at the disk")
