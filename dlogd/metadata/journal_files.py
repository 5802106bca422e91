"""Journal and snapshots in one directory: reading at start, appending, compaction. All blocking.

    metadata-<version, 20 digits>.snapshot    the image of that version
    metadata-<version, 20 digits>.journal     the commands after that version
    metadata-version                          a version that was reached (small-files.md)
    *.tmp                                     not finished; removed at start

There is one live journal, the newest; older files go once the newer ones are on stable storage.
Called by `dlogd.metadata.local_store` through `Engine.run`, one call at a time. Errors of the disk
are `OSError`; a directory that must not be used as it is raises `MetadataCorruptError`.
"""

import logging
import re
from dataclasses import dataclass

from dlog.errors import DlogError, StartRefusedError
from dlogd.metadata import journal_format
from dlogd.metadata.journal_format import Journal
from dlogd.metadata.machine import apply
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.encoding import MalformedError
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError
from dlogd.storage.io.files import Directory, File, Lock

log = logging.getLogger(__name__)

LOCK_NAME = "metadata.lock"
_NAME = re.compile(r"metadata-(\d{20})\.(journal|snapshot)\Z")
_TEMPORARY = ".tmp"


class MetadataCorruptError(StartRefusedError):
    """The metadata on disk has a gap or was damaged; starting would lose what was promised."""


class JournalUncertainError(DlogError):
    """Nobody knows what is on the disk now; the daemon must start again and read it."""


@dataclass(slots=True)
class _Live:
    """The journal that is appended to."""

    name: str
    file: File
    end_position: int


def holds_metadata(directory: Directory) -> bool:
    """Whether a node that kept its metadata alone has left any here. Blocking; raises OSError."""
    for name in directory.names():
        found = _NAME.match(name)
        if found is not None:
            if found[2] == "snapshot" or int(found[1]) > 0:
                return True
            file = directory.open(name, read_only=True)
            try:
                if file.size() > journal_format.HEAD_BYTES:
                    return True
            finally:
                file.close()
    return False


def is_file_of_journal(name: str) -> bool:
    """Whether a file is a part of what a node kept alone."""
    return _NAME.match(name) is not None or name == checkpoint_files.METADATA_VERSION


def _name(version: int, kind: str) -> str:
    return f"metadata-{version:020}.{kind}"


class JournalFiles:
    """The metadata directory of one node, locked for this process while it is open."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._lock: Lock | None = None
        self._live: _Live | None = None
        self._noted_version = 0

    @property
    def journal_bytes(self) -> int:
        """Size of the live journal."""
        return 0 if self._live is None else self._live.end_position

    def open(self) -> ClusterImage:
        """Return the image on disk; afterwards commands can be appended."""
        try:
            self._lock = self._directory.lock(LOCK_NAME)
        except BlockingIOError:
            raise MetadataCorruptError(
                f"{self._directory.path} is in use by another process"
            ) from None
        opened = False
        try:
            image = self._open()
            opened = True
        finally:
            if not opened:
                self.close()
        return image

    def _open(self) -> ClusterImage:
        # A killed process may have made names that only the system's memory holds.
        self._directory.sync()
        names = self._directory.names()
        for name in names:
            if name.endswith(_TEMPORARY):
                self._directory.unlink(name)
        self._noted_version = self._read_note()
        found = sorted(match.groups() for name in names if (match := _NAME.match(name)))
        snapshots = [int(version) for version, kind in found if kind == "snapshot"]
        journals = [int(version) for version, kind in found if kind == "journal"]
        image = self._read_snapshot(snapshots[-1]) if snapshots else EMPTY_IMAGE
        if not journals:
            if snapshots:
                raise self._corrupt(_name(snapshots[-1], "journal"), "is missing")
            self._expect_noted(image.version, _name(0, "journal"))
            self._begin_journal(image.version)
            return image
        image = self._replay(image, journals[-1])
        self._remove_others(snapshots[-1] if snapshots else 0)
        return image

    def _corrupt(self, name: str, reason: str) -> MetadataCorruptError:
        return MetadataCorruptError(
            f"{self._directory.path}/{name} {reason}. "
            "Restore the metadata directory from a backup; nothing was changed"
        )

    def _read_note(self) -> int:
        try:
            data = checkpoint_files.load_own(self._directory, checkpoint_files.METADATA_VERSION)
            return 0 if data is None else checkpoint_files.decode_metadata_version(data)
        except MalformedFileError as error:
            log.warning(
                "Ignored a damaged checkpoint file path=%s/%s problem=%r",
                self._directory.path,
                checkpoint_files.METADATA_VERSION,
                str(error),
            )
            return 0

    def _expect_noted(self, version: int, name: str) -> None:
        """Refuse files that have lost changes: a journal cut anywhere reads like a torn end."""
        if version < self._noted_version:
            raise self._corrupt(
                name,
                f"ends with version {version}, but version {self._noted_version} was reached: the "
                "file was cut or replaced by an older one, and topics made since would vanish",
            )

    def note(self, version: int) -> None:
        """Note that `version` was reached, so that a start with less is refused.

        `version` is on stable storage. Raises OSError, which does no harm.
        """
        if version > self._noted_version:
            data = checkpoint_files.encode_metadata_version(version)
            checkpoint_files.replace_file(self._directory, checkpoint_files.METADATA_VERSION, data)
            self._noted_version = version

    def _read(self, file: File) -> bytes:
        return file.pread(file.size(), 0)

    def _read_snapshot(self, version: int) -> ClusterImage:
        name = _name(version, "snapshot")
        file = self._directory.open(name, read_only=True)
        try:
            image = snapshot.decode(self._read(file))
        except MalformedError as error:
            raise self._corrupt(name, f"is not a complete snapshot: {error}") from error
        finally:
            file.close()
        if image.version != version:
            raise self._corrupt(name, f"holds version {image.version}")
        return image

    def _replay(self, image: ClusterImage, base_version: int) -> ClusterImage:
        name = _name(base_version, "journal")
        file = self._directory.open(name)
        self._live = _Live(name, file, 0)
        data = self._read(file)
        try:
            content = journal_format.decode(data)
        except MalformedError as error:
            raise self._corrupt(name, f"cannot be used: {error}") from error
        if content.base_version != base_version:
            raise self._corrupt(name, f"continues from version {content.base_version}")
        if base_version > image.version:
            raise self._corrupt(_name(base_version, "snapshot"), "is missing")
        snapshot_version = image.version
        image = self._apply(image, content, name)
        self._expect_noted(image.version, name)
        self._cut_torn(content)
        # After a failed fsync the system may hold bytes that count as flushed and are not on the
        # disk: what was read is written again, and flushed before the next frame, which
        # must not be found behind one that is torn.
        file.pwrite(data[: content.end_position], 0)
        file.sync()
        if content.end_version < snapshot_version:
            # A crash came between the snapshot and the journal after it.
            file.close()
            self._begin_journal(image.version)
        else:
            self._write(journal_format.encode_frame(content.end_position, image.version + 1, ()))
        return image

    def _apply(self, image: ClusterImage, content: Journal, name: str) -> ClusterImage:
        for frame in content.frames:
            for version, command in enumerate(frame.commands, frame.first_version):
                if version <= image.version:
                    continue
                image, outcome = apply.apply(image, command)
                # Only commands that were applied are in the journal.
                if not isinstance(outcome, Applied) or outcome.version != version:
                    raise self._corrupt(
                        name,
                        f"holds a command for version {version} that does not apply: {outcome}",
                    )
        return image

    def _cut_torn(self, content: Journal) -> None:
        live = self._live
        assert live is not None
        live.end_position = content.end_position
        if content.torn_bytes:
            log.warning(
                "Cut torn end of metadata journal path=%s bytes=%d",
                live.file.path,
                content.torn_bytes,
            )
            live.file.truncate(content.end_position)
            live.file.sync()

    def _write(self, data: bytes) -> None:
        """Append to the live journal and flush."""
        live = self._live
        assert live is not None
        live.file.pwrite(data, live.end_position)
        live.file.sync()
        live.end_position += len(data)

    def append(self, first_version: int, commands: list[bytes]) -> None:
        """Make a frame of commands durable.

        OSError: nothing was written, later appends may succeed. JournalUncertainError: stop.
        """
        live = self._live
        assert live is not None
        data = journal_format.encode_frame(live.end_position, first_version, commands)
        try:
            live.file.pwrite(data, live.end_position)
        except OSError as error:
            self._take_back(error)
            raise
        try:
            live.file.sync()
        except OSError as error:
            # The pages may be marked clean without being on the disk: never try again on this file.
            raise JournalUncertainError(
                f"{live.file.path} could not be flushed: {error}"
            ) from error
        live.end_position += len(data)

    def _take_back(self, cause: OSError) -> None:
        """Remove the part of a frame that was written before the disk refused."""
        live = self._live
        assert live is not None
        try:
            live.file.truncate(live.end_position)
            live.file.sync()
        except OSError as error:
            raise JournalUncertainError(
                f"{live.file.path} could not be written ({cause}) nor cut back: {error}"
            ) from error

    def compact(self, image: ClusterImage) -> None:
        """Write `image` as a snapshot and begin a new journal after it.

        `image` must be what all appended commands have made. OSError: the journal is as before, try
        later; the snapshot may be there, and a start then uses what the journal says behind it.
        JournalUncertainError: stop.
        """
        old = self._live
        assert old is not None
        self._install(_name(image.version, "snapshot"), snapshot.encode(image))
        self._begin_journal(image.version)
        old.file.close()
        try:
            self._remove_others(image.version)
        except OSError as error:
            log.warning(
                "Could not delete old metadata files path=%s error=%s", self._directory.path, error
            )

    def _install(self, name: str, data: bytes) -> None:
        """Write a file that is there as a whole or not at all."""
        self._write_temporary(name, data)
        self._directory.rename(name + _TEMPORARY, name)
        self._directory.sync()

    def _write_temporary(self, name: str, data: bytes) -> None:
        if self._directory.exists(name + _TEMPORARY):
            # Of an attempt that failed: what was not flushed then is not trusted now.
            self._directory.unlink(name + _TEMPORARY)
        file = self._directory.open(name + _TEMPORARY, create=True)
        try:
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()

    def _begin_journal(self, base_version: int) -> None:
        name = _name(base_version, "journal")
        head = journal_format.encode_head(base_version)
        head += journal_format.encode_frame(len(head), base_version + 1, ())
        self._write_temporary(name, head)
        try:
            self._directory.rename(name + _TEMPORARY, name)
            self._directory.sync()
            file = self._directory.open(name)
        except OSError as error:
            # Whether a restart would take the new journal or the old one is not known.
            raise JournalUncertainError(
                f"{self._directory.path}/{name} could not be begun: {error}"
            ) from error
        self._live = _Live(name, file, len(head))

    def _remove_others(self, snapshot_version: int) -> None:
        assert self._live is not None
        kept = (self._live.name, _name(snapshot_version, "snapshot"))
        for name in self._directory.names():
            if _NAME.match(name) and name not in kept:
                self._directory.unlink(name)
        self._directory.sync()

    def seal(self, next_version: int) -> None:
        """Prove that all frames so far were finished, so that damage is told from a torn end."""
        live = self._live
        if live is not None:
            self._write(journal_format.encode_frame(live.end_position, next_version, ()))

    def close(self) -> None:
        """Close the journal and release the directory. Idempotent."""
        if self._live is not None:
            self._live.file.close()
            self._live = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
