"""`dlogd` with what no configuration can bring: `odd_dlogd SECONDS LOG_BYTES IMAGES [arguments]`.

The wall clock is wrong by so many seconds, and SIGUSR1 puts it back by an hour; the monotonic clock
stays what it is, as on a host. The log of the metadata is replaced by a snapshot when it is larger
than `LOG_BYTES`; 0 leaves that as it is. What becomes of the image is written to the file `IMAGES`
(`tests.cluster.image_journal`), unless that is empty. Producer ids are taken a few at a time, so
that nodes take them at the same moment now and then.
"""

import signal
import sys
import time
from pathlib import Path

from dlogd.__main__ import main
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.server.handlers import producer_ids
from tests.cluster.image_journal import write_images

BACK_S = 3_600
ENTRIES_KEPT = 10
ID_COUNT = 3


class Shift:
    """How wrong the clock is."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def back(self, _number: int, _frame: object) -> None:
        """Put the clock back."""
        self.seconds -= BACK_S


def shift_wall_clock(shift: Shift) -> None:
    """Let everybody in this process see the wrong time."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + shift.seconds
    time.time_ns = lambda: right_ns() + int(shift.seconds * 1e9)


def take_snapshots(log_bytes: int) -> None:
    """Let the log be small, so that snapshots are in the middle of everything."""
    defaults = RaftConfig.__init__.__kwdefaults__
    defaults["log_bytes_max"], defaults["entries_kept"] = log_bytes, ENTRIES_KEPT


if __name__ == "__main__":
    SHIFT = Shift(float(sys.argv.pop(1)))
    shift_wall_clock(SHIFT)
    signal.signal(signal.SIGUSR1, SHIFT.back)
    if LOG_BYTES := int(sys.argv.pop(1)):
        take_snapshots(LOG_BYTES)
    if IMAGES := sys.argv.pop(1):
        write_images(Path(IMAGES))
    producer_ids.BLOCK_COUNT = ID_COUNT
    sys.exit(main())
