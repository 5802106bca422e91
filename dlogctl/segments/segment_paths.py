"""Paths for `dlogctl segment`: a data directory, a partition's directory, a file.

Only looks for names; `dlogctl.segments.segment_files` reads what is in the files.
"""

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import click

from dlogctl.segments.segment_files import segment_bases
from dlogd.storage.directory.data_directory import TOPICS
from dlogd.storage.directory.log_names import parse_log_name
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.segment.segment_names import LOG, file_name, parse_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPath:
    """One file of a segment and what its place tells."""

    directory: PosixDirectory
    partition: str  # "" where the directory does not say
    base_offset: int
    suffix: str
    next_base: int | None
    """Where the next segment begins; None for the last one."""

    @property
    def name(self) -> str:
        """The file's name."""
        return file_name(self.base_offset, self.suffix)

    @property
    def path(self) -> str:
        """The file's path."""
        return str(Path(self.directory.path) / self.name)


def find_segments(path: Path) -> list[SegmentPath]:
    """Return the segments that `path` stands for, in order; raise click.UsageError."""
    if not path.is_dir():
        return [_file(path)]
    if (path / TOPICS).is_dir():
        path = path / TOPICS
    if path.name == TOPICS:
        folders = sorted(each for each in path.iterdir() if parse_log_name(each.name) is not None)
        return [found for folder in folders for found in _partition(folder)]
    found = _partition(path)
    if not found and parse_log_name(path.name) is None:
        raise click.UsageError(
            f"{path} is neither a data directory (it has no {TOPICS}/) nor a partition's directory "
            f"(it has no file like {file_name(0)})"
        )
    return found


def _partition_name(folder: Path) -> str:
    name = folder.resolve().name
    return name.rpartition(".")[0] if parse_log_name(name) is not None else ""


def _partition(folder: Path) -> list[SegmentPath]:
    directory = PosixDirectory(str(folder))
    bases = segment_bases(directory)
    return [
        SegmentPath(
            directory=directory,
            partition=_partition_name(folder),
            base_offset=base_offset,
            suffix=LOG,
            next_base=next_base,
        )
        for base_offset, next_base in zip_longest(bases, bases[1:])
    ]


def _file(path: Path) -> SegmentPath:
    parsed = parse_name(path.name)
    if parsed is None:
        raise click.UsageError(
            f"{path} is not named like a segment's file ({file_name(0)}, or .idx, .tdx)"
        )
    directory = PosixDirectory(str(path.parent))
    above = [base for base in segment_bases(directory) if base > parsed[0]]
    return SegmentPath(
        directory=directory,
        partition=_partition_name(path.parent),
        base_offset=parsed[0],
        suffix=parsed[1],
        next_base=min(above, default=None),
    )
