"""Batches of an archive in its folder: find, load, claim, publish, clean up.

The rules that make the archive exactly once are here; what is in a batch is the caller's affair.
"""

import dataclasses
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from dlog.spark.pipelines.archives.folders import Folder, is_hidden
from dlog.spark.pipelines.archives.manifest import (
    MANIFEST,
    STAGING,
    DamagedArchiveError,
    Manifest,
    batch_of,
    decode,
    encode,
    folder_of,
)

_UNFINISHED = "_temporary"
"""What Hadoop's FileOutputCommitter calls it."""
_OF_A_RUN = re.compile(r"part-[0-9a-f]{32}-")


@dataclass(frozen=True, slots=True)
class Staged:
    """A batch that is being written: where its files go until it is published."""

    batch: int
    owner: str
    """A random name, of this attempt alone."""
    path: str

    @property
    def base_name(self) -> str:
        """What the names of its files begin with."""
        return f"part-{self.owner}"

    @property
    def attempt(self) -> int:
        """By which Hadoop's committers keep what tasks have not finished apart from others'."""
        return int(self.owner[:7], 16)

    @property
    def unfinished(self) -> str:
        """Where they keep it."""
        return f"{self.path}/{_UNFINISHED}/{self.attempt}"


class Archive:
    """The batches in a folder. Owner: one thread; other processes may publish at the same time."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def batches(self) -> list[int]:
        """Return the numbers of all folders of batches, those without a manifest among them."""
        numbers = [batch_of(name) for name in self.folder.names()]
        return sorted(each for each in numbers if each is not None)

    def load(self, batch: int) -> Manifest | None:
        """Return a batch's manifest; None when it has none: then it is not part of the archive."""
        path = f"{folder_of(batch)}/{MANIFEST}"
        data = self.folder.read(path)
        if data is None:
            return None
        manifest = decode(data, f"{self.folder.uri}/{path}")
        if manifest.batch != batch:
            raise DamagedArchiveError(
                f"{self.folder.uri}/{path} is that of batch {manifest.batch}."
            )
        return manifest

    def last(self) -> Manifest | None:
        """Return the newest manifest; None of an empty archive."""
        for batch in reversed(self.batches()):
            manifest = self.load(batch)
            if manifest is not None:
                return manifest
        return None

    def all(self) -> list[Manifest]:
        """Return all manifests, oldest first."""
        loaded = [self.load(batch) for batch in self.batches()]
        return [each for each in loaded if each is not None]

    def clean(self, batch_next: int) -> None:
        """Delete what dead runs left: files of batches that they can never publish any more.

        Those of `batch_next` itself stay: another run may be about to publish it.
        """
        if not self.folder.has_atomic_moves:
            self._clean_published(batch_next - 1)
        for name in self.folder.names(STAGING):
            number = batch_of(name.partition(".")[0])
            if number is None or number < batch_next:
                self.folder.delete(f"{STAGING}/{name}")

    def _clean_published(self, batch: int) -> None:
        """Delete the files that other runs have put beside those of a published batch."""
        manifest = self.load(batch) if batch >= 0 else None
        if manifest is None:
            return
        path = folder_of(batch)
        for each in self.folder.sizes(path):
            name = each.rpartition("/")[2]
            if each not in manifest.files and _OF_A_RUN.match(name):
                self.folder.delete(f"{path}/{each}")
        self.folder.delete(f"{path}/{_UNFINISHED}")

    def stage(self, batch: int) -> Staged | None:
        """Return a place for the files of a new batch; None when the batch is there.

        Every place has an owner of its own, with which the names of its files begin: where folders
        cannot be moved, several runs may write into the same one, and none touches what is
        another's.
        """
        path, owner = folder_of(batch), uuid.uuid4().hex
        if self.folder.has_atomic_moves:
            return Staged(batch, owner, f"{STAGING}/{path}.{owner}")
        return None if self.load(batch) is not None else Staged(batch, owner, path)

    def data_files(self, staged: Staged) -> dict[str, int]:
        """Return the bytes of each file of a staged batch that readers see."""
        sizes = self.folder.sizes(staged.path)
        return {
            path: size
            for path, size in sizes.items()
            if not is_hidden(path) and path.rpartition("/")[2].startswith(staged.base_name)
        }

    def publish(self, staged: Staged, manifest: Manifest, said: Callable[[str], None]) -> bool:
        """Make a staged batch part of the archive; False when another run took its number.

        The one moment in which it becomes one is the move, or the making of the manifest where
        the file system has no atomic moves.
        """
        if not self.folder.has_atomic_moves:
            self.folder.sync(staged.path)
            said("sealed")
            return self.folder.write_new(f"{staged.path}/{MANIFEST}", encode(manifest))
        self.folder.write_new(f"{staged.path}/{MANIFEST}", encode(manifest))
        self.folder.sync(staged.path)
        said("sealed")
        return self.folder.move(staged.path, folder_of(staged.batch))

    def withdraw(self, staged: Staged) -> None:
        """Delete the files of a batch that another run has published."""
        if self.folder.has_atomic_moves:
            self.folder.delete(staged.path)
            return
        for path in self.data_files(staged):
            self.folder.delete(f"{staged.path}/{path}")

    def differences(self, manifest: Manifest) -> list[str]:
        """Return how a batch's files differ from what its manifest names."""
        return [*self.harm(manifest), *self.foreign(manifest)]

    def foreign(self, manifest: Manifest) -> list[str]:
        """Return which files that readers see its manifest does not name."""
        name = folder_of(manifest.batch)
        there = self.folder.sizes(name)
        foreign = [path for path in there if path not in manifest.files and not is_hidden(path)]
        return [f"{name}/{path} is not in the manifest" for path in foreign]

    def harm(self, manifest: Manifest) -> list[str]:
        """Return which of the files that a manifest names are missing, or have another size."""
        name = folder_of(manifest.batch)
        there = self.folder.sizes(name)
        missing = [path for path in manifest.files if path not in there]
        changed = [path for path, size in manifest.files.items() if there.get(path, size) != size]
        return [
            *(f"{name}/{path} is missing" for path in missing),
            *(f"{name}/{path} has another size than the manifest says" for path in changed),
        ]

    def without_missing(self, manifest: Manifest) -> Manifest:
        """Return the manifest without files that are gone: an audit reads what there is."""
        there = self.folder.sizes(folder_of(manifest.batch))
        files = {path: size for path, size in manifest.files.items() if path in there}
        return dataclasses.replace(manifest, files=files)
