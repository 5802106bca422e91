"""Pages of a segment that may not be on the disk after a crash: written again, in steps.

Blocks; called by recovery only.
"""

from collections.abc import Callable

from dlogd.storage.io.files import File
from dlogd.storage.segment.batch_scan import WINDOW_BYTES

SYNC_BYTES = 16 << 20


def write_again(file: File, start: int, end: int, on_progress: Callable[[int], None]) -> None:
    """Put what lies between two positions on stable storage; raises OSError.

    Pages may count as clean without being on the disk: a failed fsync leaves such pages, and a
    later one does not write them. The bytes stay the same, so that a torn write does no harm.
    `on_progress` is told bytes. One sync of gigabytes on a slow disk would look like a start that
    hangs, so each step has its own.
    """
    unsynced = 0
    while start < end:
        data = file.pread(min(WINDOW_BYTES, end - start), start)
        if not data:
            break
        file.pwrite(data, start)
        start += len(data)
        unsynced += len(data)
        if unsynced >= SYNC_BYTES:
            file.sync()
            unsynced = 0
        on_progress(len(data))
    file.sync()
