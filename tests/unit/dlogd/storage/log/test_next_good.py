"""The search for what comes behind a damaged batch, where files are not what a log says."""

from typing import Any, cast

from dlogd.storage.segment.batch_scan import next_good


class _Counted:
    """A file of `size` zeros; beyond, all reads are empty."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.count = 0

    def pread(self, length: int, position: int) -> bytes:
        self.count += 1
        return bytes(max(0, min(length, self.size - position)))


def test_a_search_in_a_file_that_was_cut_meanwhile_ends_with_it() -> None:
    """It went on byte for byte, each with a read: a quarter of a minute for one large batch."""
    file = _Counted(100_000)
    assert next_good(cast("Any", file), 0, 16 << 20, 0, 5) is None
    assert file.count < 10
