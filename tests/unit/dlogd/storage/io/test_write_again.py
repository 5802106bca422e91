"""What a crash left in memory goes to the disk in steps, each with its own sync and progress."""

from typing import Any

import pytest

from dlogd.storage.io import files
from dlogd.storage.io.files import SYNC_BYTES, write_again

START, END = 5000, 3 * SYNC_BYTES + 70_000


class RecordingFile:
    """A file of zeros of a given size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.unsynced = 0
        self.unsynced_max = 0
        self.written = START

    def pread(self, length: int, position: int) -> bytes:
        return bytes(max(0, min(length, self.size - position)))

    def pwrite(self, data: bytes, position: int) -> None:
        assert position == self.written
        self.written += len(data)
        self.unsynced += len(data)
        self.unsynced_max = max(self.unsynced, self.unsynced_max)

    def sync(self) -> None:
        self.unsynced = 0


@pytest.mark.parametrize("size", [END, END + 1000, SYNC_BYTES, START, 0])
def test_it_is_written_and_synced_in_steps(size: int) -> None:
    file: Any = RecordingFile(size)
    told: list[int] = []

    def on_progress(count: int) -> None:
        # What counts as progress is on the disk but for the rest of a step.
        told.append(count)
        assert file.unsynced < SYNC_BYTES

    write_again(file, START, END, on_progress)
    assert file.written == START + sum(told) == max(START, min(END, size))
    assert file.unsynced == 0
    assert file.unsynced_max <= SYNC_BYTES + files.STEP_BYTES


def test_without_anything_to_write_the_file_is_synced() -> None:
    file: Any = RecordingFile(END)
    file.unsynced = 1
    write_again(file, END, END, pytest.fail)
    assert file.unsynced == 0
