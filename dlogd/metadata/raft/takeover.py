"""Takeover: metadata that a node kept alone become those of a quorum of one. Blocking.

    raft-00000000000000000002.snapshot    the image of the journal
    raft.log                              begins behind it; its name is the point of no return
    before-quorum/                        where the files of the journal then go

Until `raft.log` has its name the journal counts, and all of this is done again; from then on it
does not. The index is behind that of an empty log: a node that joins later has to be sent the
snapshot.
"""

import logging

from dlog.errors import StartRefusedError
from dlogd.metadata.journal_files import JournalFiles, is_file_of_journal
from dlogd.metadata.raft import snapshots
from dlogd.metadata.raft.durable_log import NAME, RaftLog
from dlogd.metadata.raft.snapshots import Snapshot, SnapshotFiles
from dlogd.metadata.raft.voters import Voters
from dlogd.metadata.state.image import ClusterImage
from dlogd.runtime.randomness import Entropy
from dlogd.storage.io.files import Directory

log = logging.getLogger(__name__)

BASE_INDEX, BASE_TERM = 2, 1
PUT_AWAY = "before-quorum"


class TakeoverError(StartRefusedError):
    """The journal is not of this cluster, or this node is not to be its only voter."""


def take_over(
    directory: Directory, node_id: int, cluster_id: str, bootstrap: Voters, entropy: Entropy
) -> None:
    """Turn a journal into a log of Raft with `bootstrap` as its voters, and put the journal away.

    Raises TakeoverError, MetadataCorruptError and OSError, before anything is changed that counts.
    """
    if not directory.exists(NAME):
        if bootstrap.node_ids != (node_id,):
            raise TakeoverError(
                f"{directory.path} holds the metadata of a node that was alone: let `controllers`"
                f" name node {node_id} and no other, start it, and add the others by dlogctl"
                " controller add; or remove `controllers` to serve its topics as before, or give"
                " the node new directories (data.directories, metadata.directory)"
            )
        image = _read(directory)
        if image.cluster_id not in ("", cluster_id):
            raise TakeoverError(
                f"{directory.path} holds the metadata of cluster {image.cluster_id}, not of"
                f" {cluster_id}: set cluster.id: {image.cluster_id}"
            )
        _write(directory, node_id, image, bootstrap, entropy)
        log.info(
            "Took over metadata of a node alone path=%s version=%d topics=%d",
            directory.path,
            image.version,
            len(image.topics),
        )
    _put_away(directory)


def _read(directory: Directory) -> ClusterImage:
    archive = JournalFiles(directory)
    try:
        return archive.open()
    finally:
        archive.close()


def _write(
    directory: Directory, node_id: int, image: ClusterImage, voters: Voters, entropy: Entropy
) -> None:
    taken = Snapshot(index=BASE_INDEX, term=BASE_TERM, voters=voters, image=image)
    SnapshotFiles(directory).store(BASE_INDEX, snapshots.encode(taken))
    made = RaftLog.create(
        directory, node_id, entropy.uuid(), voters, base_index=BASE_INDEX, base_term=BASE_TERM
    )
    made.close()


def _put_away(directory: Directory) -> None:
    away = directory.directory(PUT_AWAY, create=True)
    for name in filter(is_file_of_journal, directory.names()):
        if away.exists(name):
            away.unlink(name)
        directory.move(name, away, name)
    away.sync()
    directory.sync()
