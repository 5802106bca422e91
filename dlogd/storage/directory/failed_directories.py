"""Failed directories: one whose disk fails goes out of service alone, until the next start.

Owner: the event loop's thread; part of `dlogd.storage.log_manager`.
"""

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.io.errnos import is_disk_failure
from dlogd.storage.log.log_state import LogState

log = logging.getLogger(__name__)


class FailedDirectories:
    """Those of a node."""

    def __init__(self, on_failed: Callable[[LogDirectory, OSError], None]) -> None:
        """`on_failed` hears of each directory once, when its logs are out of service."""
        self.log_failures_total = 0  # of logs that were in service
        self.ids: tuple[UUID, ...] = ()
        """Their identities; the same object until another one fails."""
        self._on_failed = on_failed

    def on_log_failure(self, home: LogDirectory, state: LogState, error: OSError) -> None:
        """A log has failed: perhaps it is its disk. The others hear of it a moment later."""
        self.log_failures_total += 1
        if is_disk_failure(error):
            asyncio.get_running_loop().call_soon(self.fail, home, error)

    def on_error(self, home: LogDirectory, error: OSError) -> None:
        """An operation in a directory has failed: perhaps the directory has."""
        if is_disk_failure(error):
            self.fail(home, error)

    def fail(self, home: LogDirectory, error: OSError) -> None:
        """Take a data directory out of service."""
        if home.failure is not None:
            return
        home.failure = error
        if home.directory_id.int:
            self.ids = (*self.ids, home.directory_id)
        log.error(
            "Data directory failed path=%s logs=%d error=%s", home.path, len(home.logs), error
        )
        for opened in list(home.logs.values()):
            opened.fail(error)
        self._on_failed(home, error)
