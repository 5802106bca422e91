"""Opener of segment files for readers; rebuilds damaged indexes first.

Owner: the event loop's thread; what blocks is run by the engine.
"""

from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

from dlog.errors import KafkaStorageError
from dlogd.storage.io.errnos import NO_SPACE
from dlogd.storage.io.files import close_files
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.log_state import LogState
from dlogd.storage.segment.index_files import BadEntriesError
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_indexes import OpenedSegment

T = TypeVar("T")


async def guarded(state: LogState, work: Awaitable[T], segment: Segment | None = None) -> T:
    """Await I/O; its errors become ours, and those of the disk take the log out of service.

    That files are missing of a `segment` which was dropped meanwhile says nothing of the disk.
    """
    try:
        return await work
    except OSError as error:
        if segment is not None and segment.state is SegmentState.DROPPED:
            raise KafkaStorageError(f"{state.topic_partition}: {error}") from error
        raise state.fail_read(error) from error


class SegmentOpener:
    """Opens the segments of one log for its readers."""

    __slots__ = ("_maintenance", "_state")

    def __init__(self, state: LogState, maintenance: LogJobs) -> None:
        self._state = state
        self._maintenance = maintenance

    async def open(self, segment: Segment) -> None:
        """Open a segment for reading, unless it is; counted in the node's LRU."""
        if segment.file is not None and segment.is_indexed:
            return
        if self._state.failed is not None:
            raise self._state.failed.with_traceback(None)
        if segment.state is SegmentState.SEALED:
            await self._open_sealed(segment)
            return
        maintenance = self._maintenance
        maintenance.shortage.check()
        async with maintenance.lock:
            if segment.state is SegmentState.OPEN and not segment.is_indexed:
                opening = maintenance.open_indexes(segment, writable=True, is_patient=False)
                await guarded(self._state, opening)

    async def _open_sealed(self, segment: Segment) -> None:
        state = self._state
        opened: OpenedSegment | None
        try:
            opened = await self._files_of(segment)
        except BadEntriesError:
            opened = await self._mended(segment)
        if opened is None:
            return
        is_needed = segment.state is SegmentState.SEALED and segment.file is None
        if not is_needed or state.closed or not opened.fits(segment.indexes):
            # Somebody else was faster, or the segment was cut or dropped.
            await state.services.engine.run(partial(close_files, opened.files))
            return
        segment.attach(opened)
        state.services.open_segments.add(
            segment, partial(self._maintenance.unused.close_soon, segment)
        )

    async def _files_of(self, segment: Segment) -> OpenedSegment:
        state = self._state
        return await guarded(state, state.services.engine.run(segment.open_for_reading), segment)

    async def _mended(self, segment: Segment) -> OpenedSegment | None:
        """Make the indexes anew, unless somebody else has, and open the files; None: needless."""
        maintenance = self._maintenance
        maintenance.shortage.check()
        async with maintenance.lock:
            if self._state.failed is not None:
                raise self._state.failed.with_traceback(None)
            if segment.state is not SegmentState.SEALED or self._state.closed:
                return None
            if segment.file is not None:
                return None
            try:
                return await self._files_of(segment)
            except BadEntriesError as error:
                await guarded(self._state, self._reindex(segment, error), segment)
            return await self._files_of(segment)

    async def _reindex(self, segment: Segment, error: BadEntriesError) -> None:
        try:
            await self._maintenance.reindex(segment, error)
        except OSError as lacking:
            if lacking.errno not in NO_SPACE:
                raise
            raise KafkaStorageError(f"The disk of {segment.path} is full") from lacking
