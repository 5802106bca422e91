"""Boot of Raft: reading a node's Raft directory at the start. Blocking.

Snapshot and log are each whole or absent; a crash may come between the two, and then the snapshot
is the newer one. What no crash can make (a gap, a missing file, damage) is refused.
"""

from dlogd.metadata.journal_files import holds_metadata
from dlogd.metadata.raft.durable_log import LogCorruptError, RaftLog
from dlogd.metadata.raft.feature_level import expect_known
from dlogd.metadata.raft.snapshots import Snapshot, SnapshotFiles
from dlogd.metadata.raft.takeover import take_over
from dlogd.metadata.raft.voters import Voters
from dlogd.runtime.randomness import Entropy
from dlogd.storage.io.files import Directory, Lock

LOCK_NAME = "raft.lock"


class Disk:
    """An opened Raft directory, locked for this process."""

    def __init__(
        self, lock: Lock, raft_log: RaftLog, files: SnapshotFiles, taken: Snapshot | None
    ) -> None:
        self._lock = lock
        self.log = raft_log
        self.files = files
        self.taken = taken

    def close(self) -> None:
        """Close the log and give the directory back. Idempotent."""
        self.log.close()
        self._lock.release()


def open_disk(
    directory: Directory,
    node_id: int,
    bootstrap: Voters,
    entropy: Entropy,
    *,
    cluster_id: str = "",
) -> Disk:
    """Read the directory, or begin one; take over what a node kept alone.

    Raises LogCorruptError, LogFailedError, TakeoverError, MetadataCorruptError, UnknownLevelError
    and OSError.
    """
    try:
        lock = directory.lock(LOCK_NAME)
    except BlockingIOError:
        raise LogCorruptError(f"{directory.path} is in use by another process") from None
    opened = False
    try:
        # A killed process may have made names that only the system's memory holds: what goes into
        # those files from now on would be lost with the names.
        directory.sync()
        if holds_metadata(directory):
            take_over(directory, node_id, cluster_id, bootstrap, entropy)
        files = SnapshotFiles(directory)
        taken = files.load()
        if taken is not None:
            expect_known(taken.image)
        raft_log = _open_log(directory, node_id, bootstrap, entropy, taken)
        disk = Disk(lock, raft_log, files, taken)
        opened = True
    finally:
        if not opened:
            lock.release()
    return disk


def _open_log(
    directory: Directory,
    node_id: int,
    bootstrap: Voters,
    entropy: Entropy,
    taken: Snapshot | None,
) -> RaftLog:
    raft_log = RaftLog.open(directory, node_id)
    if raft_log is None:
        if taken is not None:
            raise LogCorruptError(f"{directory.path} has a snapshot, but raft.log is missing")
        directory_id = entropy.uuid()
        return RaftLog.create(directory, node_id, directory_id, bootstrap)
    snapshot_index = 1 if taken is None else taken.index
    if raft_log.base_index > snapshot_index:
        raft_log.close()
        raise LogCorruptError(
            f"{directory.path}: the log begins behind {raft_log.base_index}, the newest snapshot "
            f"is of {snapshot_index}: entries between them are missing"
        )
    if taken is not None and raft_log.term_at(taken.index) != taken.term:
        raft_log.rebase(taken.index, taken.term, taken.voters)
    return raft_log
