"""Logs that a start expects and does not find, perhaps on a missing disk."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from dlog.errors import KafkaStorageError
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.directory.log_names import LogKey


class MissingLogs:
    """What must not begin anew, empty, while it may be out of reach."""

    def __init__(self, homes: Sequence[LogDirectory]) -> None:
        self._homes = homes
        self._missing: dict[LogKey, None] = {}
        self._lost_directories: list[UUID] = []

    def note_directories(self, known: Iterable[UUID]) -> None:
        """Compare the directories that are here with those of the last start."""
        present = {home.directory_id for home in self._homes if home.failure is None}
        self._lost_directories = [each for each in known if each not in present]

    def note_logs(self, keys: Iterable[LogKey]) -> None:
        """Take the logs that were found nowhere."""
        self._missing = dict.fromkeys(keys)

    def forget(self, key: LogKey) -> None:
        """It is here now, or wanted no more."""
        self._missing.pop(key, None)

    def check(self, key: LogKey) -> None:
        """Raise rather than begin an empty log in the place of one that is out of reach."""
        if key not in self._missing:
            return
        places = [home.path for home in self._homes if home.failure is not None]
        places += [str(each) for each in self._lost_directories]
        if places:
            raise KafkaStorageError(
                "The log is on none of the directories in service; it may be on "
                + ", ".join(places)
                + ". Put it back and restart the node, or delete the topic"
            )
