"""Snapshots of the image at one index of the log, on disk and on the wire.

The bytes (docs/formats/raft-log.md):

    raft-<index, 20 digits>.snapshot
    8s magic, u16 format version, u32 CRC-32C of all that follows,
    i64 index, i64 term, voters, then the image as in metadata-snapshot.md

A file is there as a whole or not at all. The same bytes travel to nodes that lag too far behind, in
chunks. Blocking; owner: the thread of the Raft loop.
"""

import re
import struct
from dataclasses import dataclass

from dlog.checksum import crc32c
from dlogd.metadata.raft import voters as voter_sets
from dlogd.metadata.raft.durable_log import LogCorruptError, LogFailedError
from dlogd.metadata.raft.voters import Voters
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer
from dlogd.metadata.state.image import ClusterImage
from dlogd.storage.io.files import Directory

MAGIC = b"dlogrsnp"
FORMAT_VERSION = 1
SNAPSHOT_BYTES_MAX = 1 << 30

_HEAD = struct.Struct(">8sHI")
_NAME = re.compile(r"raft-(\d{20})\.snapshot\Z")
_TEMPORARY = "raft.snapshot.tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The image after the entry of `index`."""

    index: int
    term: int
    voters: Voters
    image: ClusterImage


def encode(taken: Snapshot) -> bytes:
    """Return the bytes of a snapshot."""
    writer = Writer()
    writer.i64(taken.index)
    writer.i64(taken.term)
    voter_sets.write(writer, taken.voters)
    body = bytes(writer.data) + snapshot.encode(taken.image)
    return _HEAD.pack(MAGIC, FORMAT_VERSION, crc32c(body)) + body


def decode(data: bytes) -> Snapshot:
    """Return a snapshot; raise only MalformedError."""
    if len(data) < _HEAD.size:
        raise MalformedError(f"{len(data)} bytes are too few for a snapshot")
    magic, version, crc = _HEAD.unpack_from(data)
    if magic != MAGIC or version != FORMAT_VERSION:
        raise MalformedError(f"it begins with {magic!r}, version {version}")
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise MalformedError("its checksum does not fit")
    reader = Reader(body)
    index, term, voters = reader.i64(), reader.i64(), voter_sets.read(reader)
    image = snapshot.decode(reader.raw(reader.left))
    return Snapshot(index=index, term=term, voters=voters, image=image)


def is_whole(data: bytes) -> bool:
    """Whether these are the bytes of a snapshot as they were written; cheap beside `decode`."""
    if len(data) < _HEAD.size:
        return False
    magic, version, crc = _HEAD.unpack_from(data)
    body = memoryview(data)[_HEAD.size :]
    return (magic, version, crc32c(body)) == (MAGIC, FORMAT_VERSION, crc)


class SnapshotFiles:
    """The snapshots of one node; only the newest is kept."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.index = 0
        """Of the newest one; 0: there is none."""

    def load(self) -> Snapshot | None:
        """Return the newest one; raise LogCorruptError when it cannot be read, and OSError."""
        found = sorted(name for name in self._directory.names() if _NAME.match(name))
        if not found:
            return None
        try:
            taken = decode(self._read(found[-1]))
        except MalformedError as error:
            raise LogCorruptError(
                f"{self._directory.path}/{found[-1]} cannot be used: {error}. Remove this node "
                "from the voters, wipe its metadata directory and add it again"
            ) from error
        self.index = taken.index
        return taken

    def newest(self) -> bytes:
        """Return the bytes of the newest one, for the wire, unchecked; raise LogFailedError."""
        name = _file_name(self.index)
        try:
            return self._read(name)
        except OSError as error:
            raise LogFailedError(
                f"{self._directory.path}/{name} cannot be read: {error}"
            ) from error

    def _read(self, name: str) -> bytes:
        file = self._directory.open(name, read_only=True)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def store(self, index: int, data: bytes) -> None:
        """Make a snapshot durable.

        OSError: nobody may count on it, and `index` is as before. The whole file may be there all
        the same, when only the directory could not be flushed: a start may find it or the one
        before. Either fits the log, which is shortened only behind what was stored.
        """
        if self._directory.exists(_TEMPORARY):
            self._directory.unlink(_TEMPORARY)
        file = self._directory.open(_TEMPORARY, create=True)
        try:
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        self._directory.rename(_TEMPORARY, _file_name(index))
        self._directory.sync()
        self.index = max(self.index, index)

    def remove_old(self) -> None:
        """Remove all but the newest; the log must begin where that is of use."""
        newest = _file_name(self.index)
        for name in self._directory.names():
            if name == _TEMPORARY or (_NAME.match(name) and name < newest):
                self._directory.unlink(name)


def _file_name(index: int) -> str:
    return f"raft-{index:020}.snapshot"
