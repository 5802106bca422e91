"""Data directory of a node: identity, logs, service state.

    <data_dir>/identity, life, clean-shutdown, ...  dlogd.storage.io.checkpoint_files
    <data_dir>/lock                                    held by flock while a daemon runs
    <data_dir>/topics/<topic>-<partition>.<topic id>/  one log; `.deleted` behind it: going
    <data_dir>/spare                                   dlogd.storage.io.emergency_space
    <data_dir>/stray/                                  logs that no topic claims, untouched

docs/formats/data-directory.md. The methods block: `dlogd.storage.log_manager` calls them by
`Engine.run`, several directories at once; only the blocking half of a directory is here.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from uuid import UUID

from dlog.errors import ConfigError
from dlog.types import NodeId, Offset
from dlogd.storage.directory.log_names import DELETED, LogKey, free_name
from dlogd.storage.directory.stray_directory import StrayDirectory, sort_logs
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import Identity, Incarnation, MalformedFileError
from dlogd.storage.io.emergency_space import EmergencySpace
from dlogd.storage.io.errnos import NO_SPACE
from dlogd.storage.io.files import Directory, DiskUsage, Lock
from dlogd.storage.log.log_recovery import LOG_START

TOPICS = "topics"
STRAY = "stray"
LOCK = "lock"
WEAK = "weak"
"""An empty file of a log whose flush policy was not `always` at some time since it ended well."""
_PROBE = "probe.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What was found when a directory was locked."""

    path: str
    identity: Identity | None
    has_logs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The logs of a directory and what its small files say about them."""

    names: dict[LogKey, str]
    # Log end offsets of an orderly stop; empty after a crash.
    clean_ends: Mapping[str, Offset]
    high_watermarks: Mapping[str, Offset]
    promised_offsets: Mapping[str, Offset]
    strays: Sequence[str]
    deleted: Sequence[str]
    # Small files that were there but could not be used.
    complaints: Sequence[str]
    life: Incarnation
    has_checkpoint: bool  # the promised offsets could be read
    was_clean: bool  # an orderly stop has left its marker


class DataDirectory:
    """A data directory. Life: claim, adopt, survey, (logs come and go), release."""

    def __init__(self, root: Directory) -> None:
        self._root = root
        self.spare = EmergencySpace(root)
        self._lock: Lock | None = None
        self._topics: Directory | None = None
        self._strays: StrayDirectory | None = None
        self._deleted: dict[str, str] = {}  # new names of logs that were marked

    @property
    def path(self) -> str:
        """Path for messages."""
        return self._root.path

    @property
    def root(self) -> Directory:
        """The directory itself."""
        return self._root

    @property
    def topics(self) -> Directory:
        """Where the logs are; there after `adopt`."""
        assert self._topics is not None
        return self._topics

    @property
    def strays(self) -> StrayDirectory:
        """Logs that were set aside; there after `adopt`."""
        assert self._strays is not None
        return self._strays

    # -- start

    def claim(self, *, direct_required: bool = False) -> Claim:
        """Lock the directory and see whose it is.

        Raises ConfigError when it cannot be this daemon's, OSError when it does not work.
        """
        try:
            self._lock = self._root.lock(LOCK)
        except BlockingIOError as error:
            raise ConfigError(
                f"{self.path} is in use by another process: stop the other dlogd, or give this "
                "one its own data.directories"
            ) from error
        direct = self._probe()
        if direct_required and not direct:
            raise ConfigError(
                f"The file system of {self.path} cannot do direct I/O: use direct_io auto or off"
            )
        try:
            data = checkpoint_files.load_own(self._root, checkpoint_files.IDENTITY)
            identity = None if data is None else checkpoint_files.decode_identity(data)
        except MalformedFileError as error:
            raise ConfigError(
                f"{self.path}/{checkpoint_files.IDENTITY} is damaged ({error}): restore it, or "
                "move the whole directory away and start with an empty one"
            ) from error
        has_logs = self._root.exists(TOPICS) and bool(self._root.directory(TOPICS).names())
        return Claim(path=self.path, identity=identity, has_logs=has_logs)

    def _probe(self) -> bool:
        """Write and flush a file: a broken or read-only disk shows; return whether direct works."""
        try:
            file = self._root.open(_PROBE, create=True, direct=True)
            try:
                file.pwrite(b"probe", 0)
                file.sync()
            finally:
                file.close()
                self._root.unlink(_PROBE)
        except OSError as error:
            # A full disk is read from, and becomes less full by what is deleted here.
            if error.errno not in NO_SPACE:
                raise
            return True
        return file.direct

    def adopt(self, identity: Identity, *, is_new: bool) -> None:
        """Make the directory this node's; `identity` is written when `is_new`."""
        if is_new:
            checkpoint_files.replace_file(
                self._root, checkpoint_files.IDENTITY, checkpoint_files.encode_identity(identity)
            )
        self._topics = self._root.directory(TOPICS, create=True)
        self._strays = StrayDirectory(self._root.directory(STRAY, create=True))
        self._root.sync()
        self.spare.keep()

    def survey(self, is_wanted: Callable[[LogKey], bool]) -> Survey:
        """Find the logs, set strays aside, read the small files and remove the clean marker.

        From here on a crash means recovery, so this comes before the first log is opened.
        """
        complaints: list[str] = []
        # A killed process may have made entries that only the system's memory holds.
        self.topics.sync()
        clean_ends = self._load_offsets(checkpoint_files.CLEAN_SHUTDOWN, complaints)
        high_watermarks = self._load_offsets(checkpoint_files.HIGH_WATERMARKS, complaints)
        promised_offsets = self._load_offsets(checkpoint_files.PROMISED_OFFSETS, complaints)
        life = self._load_life(complaints)
        checkpoint_files.remove_file(self._root, checkpoint_files.CLEAN_SHUTDOWN)
        found = sort_logs(self.topics.names(), is_wanted)
        self.set_aside(found.strays)
        return Survey(
            names=found.names,
            clean_ends=clean_ends or {},
            high_watermarks=high_watermarks or {},
            promised_offsets=promised_offsets or {},
            has_checkpoint=promised_offsets is not None,
            strays=found.strays,
            deleted=found.deleted,
            complaints=complaints,
            life=life,
            was_clean=clean_ends is not None,
        )

    def _load_offsets(self, kind: str, complaints: list[str]) -> dict[str, Offset] | None:
        try:
            data = checkpoint_files.load_own(self._root, kind)
            return None if data is None else checkpoint_files.decode_offsets(kind, data)
        except MalformedFileError as error:
            complaints.append(f"{self.path}/{kind} is not used: {error}")
            return None

    def _load_life(self, complaints: list[str]) -> Incarnation:
        try:
            data = checkpoint_files.load_own(self._root, checkpoint_files.LIFE)
            return Incarnation() if data is None else checkpoint_files.decode_life(data)
        except MalformedFileError as error:
            complaints.append(f"{self.path}/{checkpoint_files.LIFE} is not used: {error}")
            return Incarnation()

    def open_log(self, name: str, *, durable: bool) -> tuple[Directory, bool]:
        """Return a log's directory, and whether what it promised may not be on stable storage.

        Without `durable` that is so from now on, which the directory remembers until `forget_weak`.
        """
        directory = self.topics.directory(name)
        was_weak = directory.exists(WEAK)
        if not durable and not was_weak:
            note_weak(directory)
        return directory, was_weak

    def forget_weak(self, name: str) -> None:
        """All that the log promises is on stable storage from now on."""
        checkpoint_files.remove_file(self.topics.directory(name), WEAK)

    def holds_records(self, name: str) -> bool:
        """Return whether a log's directory has a segment that is not empty, or had one."""
        directory = self.topics.directory(name)
        for entry in directory.names():
            if entry == LOG_START:
                return True  # what was deleted has counted
            if entry.endswith(".log"):
                with closing(directory.open(entry, read_only=True)) as file:
                    if file.size():
                        return True
        return False

    def set_aside(self, names: Sequence[str]) -> None:
        """Move directories of no known log to `stray/`."""
        self.strays.set_aside(self.topics, names)

    # -- logs

    def make_log_directories(self, names: Sequence[str]) -> None:
        """Make the directories of new logs, with one flush for all of them."""
        for name in names:
            self.topics.directory(name, create=True)
        self.topics.sync()

    def deleted_name(self, name: str) -> str:
        """Return the name that `mark_deleted` gave last to a log's directory."""
        return self._deleted.pop(name, name + DELETED)

    def mark_deleted(self, names: Sequence[str]) -> None:
        """Rename directories of logs so that no start opens them, with one flush for all."""
        marked: list[str] = []
        try:
            for name in filter(self.topics.exists, names):
                self._deleted[name] = free_name(self.topics, name, DELETED)
                self.topics.rename(name, self._deleted[name])
                marked.append(name)
            self.topics.sync()
        except OSError:
            # Whoever wants them again before this is tried again finds them.
            for name in marked:
                self.topics.rename(self._deleted[name], name)
            raise

    def remove_deleted(self, name: str) -> None:
        """Remove what `mark_deleted` has renamed."""
        if not name.endswith(DELETED):
            raise ValueError(f"{name} is not marked as deleted")
        if self.topics.exists(name):
            self.topics.remove_tree(name)

    # -- small files, space

    def save_offsets(self, kind: str, offsets: Mapping[str, Offset]) -> None:
        """Replace the file of high watermarks or promised offsets, by names of log directories."""
        checkpoint_files.replace_file(
            self._root, kind, checkpoint_files.encode_offsets(kind, offsets)
        )

    def save_life(self, life: Incarnation) -> None:
        """Say which life of the node uses the directory from now on."""
        checkpoint_files.save_life(self._root, life)

    def save_clean_shutdown(self, ends: Mapping[str, Offset]) -> None:
        """Say that these logs are closed and whole; the last write of an orderly stop."""
        kind = checkpoint_files.CLEAN_SHUTDOWN
        checkpoint_files.replace_file(self._root, kind, checkpoint_files.encode_offsets(kind, ends))

    def measure(self) -> DiskUsage:
        """Return the space of the file system."""
        return self._root.usage()

    def release(self) -> None:
        """Let go of the lock. Idempotent."""
        if self._lock is not None:
            with suppress(OSError):
                self._lock.release()
            self._lock = None


def note_weak(directory: Directory) -> None:
    """Note in a log's directory that it may promise what is not on stable storage."""
    directory.open(WEAK, create=True).close()
    directory.sync()


# -- agreement


def agreed_cluster(claims: Sequence[Claim], node_id: NodeId, cluster_id: str | None) -> str | None:
    """Return the one cluster id of all directories, `cluster_id` when all are new.

    Raises ConfigError with every contradiction between directories and configuration.
    """
    problems: list[str] = []
    known = cluster_id
    owner = "cluster.id"
    by_id: dict[UUID, str] = {}
    for claim in claims:
        identity = claim.identity
        if identity is None:
            if claim.has_logs:
                problems.append(
                    f"{claim.path} holds logs but no {checkpoint_files.IDENTITY} file: restore the "
                    f"file, or move {claim.path}/{TOPICS} away"
                )
            continue
        if identity.node_id != node_id:
            problems.append(
                f"{claim.path} belongs to node {identity.node_id}, this is node {node_id}: "
                "correct node.id, or give this node its own data.directories"
            )
        if known is None:
            known, owner = identity.cluster_id, claim.path
        elif identity.cluster_id != known:
            problems.append(
                f"{claim.path} belongs to cluster {identity.cluster_id}, {owner} says {known}: "
                "correct cluster.id or data.directories"
            )
        other = by_id.setdefault(identity.directory_id, claim.path)
        if other != claim.path:
            problems.append(
                f"{claim.path} and {other} are the same data directory "
                f"{identity.directory_id}: one is a copy, take it out of data.directories"
            )
    if problems:
        raise ConfigError(problems)
    return known
