"""`dlogd` whose writes of segments never end once the file named by HANG_FILE exists.

    HANG_FILE=... [HANG_BELOW=...] python -m tests.daemon.hanging --config FILE

As on a disk whose controller or network is gone; but of threads that wait in a kernel no signal
could rid us.
"""

import os
import sys
import time
from pathlib import Path

from dlogd.__main__ import main
from dlogd.storage.io.thread_engine import WriteJob


def hang_where_told(path: Path, below: str) -> None:
    """Let the threads that write files below a directory wait, from when `path` exists on."""
    work = WriteJob.work

    def work_or_hang(job: WriteJob) -> None:
        while job.path.startswith(below) and path.exists():
            time.sleep(3600)
        work(job)

    WriteJob.work = work_or_hang  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    hang_where_told(Path(os.environ["HANG_FILE"]), os.environ.get("HANG_BELOW", ""))
    sys.exit(main())
