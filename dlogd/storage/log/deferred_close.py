"""Deferred close of segment files: reads already in progress finish first.

Owner: the event loop's thread; one for each log, used by `dlogd.storage.log.log_jobs`.
"""

from functools import partial

from dlogd.storage.io.files import File, close_files
from dlogd.storage.log.log_state import LogState
from dlogd.storage.segment.segment import Segment


class DeferredClose:
    """Files that wait for their last reader. Invariant: nothing waits for a segment without one."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._waiting: dict[Segment, list[File]] = {}
        self._ended: set[Segment] = set()

    def close_soon(self, segment: Segment) -> None:
        """Close all files of a sealed or dropped segment."""
        self._ended.add(segment)
        self._look(segment)

    def replace(self, segment: Segment, file: File) -> None:
        """Let a segment have this file and no indexes; those that it had are closed."""
        self._ended.discard(segment)
        self._waiting.setdefault(segment, []).extend(segment.detach_files())
        segment.replace_file(file)
        self._look(segment)

    def _look(self, segment: Segment) -> None:
        if segment.is_acquired:
            segment.on_unused = self._look
            return
        segment.on_unused = None
        files = self._waiting.pop(segment, [])
        if segment in self._ended:
            self._ended.discard(segment)
            files += segment.detach_files()
        if not files or self._state.given_up:
            return  # what was given up may be at work with its file, and must not find another
        if self._state.is_working:
            # Not here: giving back the space of an unlinked file can take long.
            services = self._state.services
            work = services.engine.run(partial(close_files, files))
            services.tasks.spawn(f"close {segment.path}", work)
        else:
            close_files(files)
