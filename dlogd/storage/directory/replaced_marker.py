"""Marker of a log that was created while another data directory was out of service.

When that directory works again after a restart it may hold an older copy of the same log. Both have
records and belong to the same life of the node; only this note tells which one was given up. All
functions block: call them by `Engine.run`. docs/formats/small-files.md.
"""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError
from dlogd.storage.io.files import Directory

REPLACES = "replaces"


@dataclass(frozen=True, slots=True)
class ReplacedMarker:
    """Which directories were out of service, and in which life of the node (-1: none)."""

    node_epoch: int = -1
    directory_ids: frozenset[UUID] = frozenset()


def encode(replaced: ReplacedMarker) -> bytes:
    """Return the bytes of a note."""
    lines = [f"node_epoch={replaced.node_epoch}"]
    lines += [f"directory_id={each}" for each in sorted(replaced.directory_ids)]
    return checkpoint_files.encode(REPLACES, "".join(f"{line}\n" for line in lines))


def decode(data: bytes) -> ReplacedMarker:
    """Parse a note; raise MalformedFileError."""
    first, *others = [
        line.partition("=")[::2] for line in checkpoint_files.decode(REPLACES, data).splitlines()
    ] or [("", "")]
    if first[0] != "node_epoch" or any(name != "directory_id" for name, _ in others):
        raise MalformedFileError(f"{REPLACES} file lacks or garbles a field")
    try:
        return ReplacedMarker(int(first[1]), frozenset(UUID(value) for _, value in others))
    except ValueError as error:
        raise MalformedFileError(f"{REPLACES} file garbles a field: {error}") from error


def note(directory: Directory, node_epoch: int | None, directory_ids: Collection[UUID]) -> None:
    """Note in a new log's directory what is out of service; on stable storage on return."""
    replaced = ReplacedMarker(-1 if node_epoch is None else node_epoch, frozenset(directory_ids))
    checkpoint_files.replace_file(directory, REPLACES, encode(replaced))


def noted(directory: Directory) -> ReplacedMarker:
    """Return what was noted in a log's directory; a damaged note says nothing."""
    data = checkpoint_files.load_file(directory, REPLACES)
    try:
        return ReplacedMarker() if data is None else decode(data)
    except MalformedFileError:
        return ReplacedMarker()


def older(ids: tuple[UUID, UUID], notes: tuple[ReplacedMarker, ReplacedMarker]) -> int | None:
    """Return which of two copies was given up, 0 or 1; None when neither note tells.

    `ids` are the directories of the copies. Each may name the other: then the later life is right.
    """
    names_other = ids[1] in notes[0].directory_ids, ids[0] in notes[1].directory_ids
    if names_other == (True, True):
        epochs = notes[0].node_epoch, notes[1].node_epoch
        return None if epochs[0] == epochs[1] else int(epochs[0] > epochs[1])
    if not any(names_other):
        return None
    return int(names_other[0])
