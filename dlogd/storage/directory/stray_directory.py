"""Directory `stray/` of a data directory: logs that no topic of the metadata claims.

A start sets them aside and never deletes them: `dlogd.node.stray_removal` does, much later. The
methods block.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dlogd.storage.directory.log_names import DELETED, LogKey, free_name, parse_log_name
from dlogd.storage.io.files import Directory


class SortedLogs(NamedTuple):
    """Directories of logs by what becomes of them."""

    names: dict[LogKey, str]
    strays: list[str]
    deleted: list[str]


def sort_logs(names: Iterable[str], is_wanted: Callable[[LogKey], bool]) -> SortedLogs:
    """Say which directories are logs of this node, which are strays, which are going. Pure."""
    found = SortedLogs({}, [], [])
    for name in names:
        key = parse_log_name(name)
        if name.endswith(DELETED):
            found.deleted.append(name)
        elif key is None or key in found.names or not is_wanted(key):
            found.strays.append(name)
        else:
            found.names[key] = name
    return found


def parse_stray_name(name: str) -> LogKey | None:
    """Do the same for a name in `stray/`, which may have got a number."""
    front, _, number = name.rpartition(".")
    return parse_log_name(front if number.isdecimal() else name)


class StrayDirectory:
    """The logs that were set aside."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def set_aside(self, topics: Directory, names: Sequence[str]) -> None:
        """Move directories of no known log here, under a free name."""
        if not names:
            return
        for name in filter(topics.exists, names):  # unless an attempt that failed has moved it
            topics.move(name, self._directory, free_name(self._directory, name))
        self._directory.sync()
        topics.sync()

    def logs(self) -> dict[str, LogKey]:
        """Return what was set aside and whose logs it is, by names."""
        found = {name: parse_stray_name(name) for name in self._directory.names()}
        return {name: key for name, key in found.items() if key is not None}

    def remove(self, name: str) -> None:
        """Remove a log that was set aside."""
        self._directory.remove_tree(name)
