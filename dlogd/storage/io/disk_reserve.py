"""Reserve of disk space: appends are refused before a file system is full.

Pure bookkeeping: `dlogd.storage.background_tasks` brings the measurements, and while `is_low` holds
`dlogd.storage.directory.log_directory` lets its logs refuse appends. Reads, deletions and retention
go on.
"""

from dlogd.config.units import DiskReserve
from dlogd.storage.io.files import DiskUsage

_MARGIN_MAX_BYTES = 64 << 20


class DiskSpace:
    """Free space as last measured. Owner: the loop's thread.

    Invariant: once low, it stays so until the free space exceeds the reserve by a margin.
    """

    __slots__ = ("_reserve", "free_bytes", "is_low", "measured", "reserve_bytes", "total_bytes")

    def __init__(self, reserve: DiskReserve) -> None:
        self._reserve = reserve
        self.total_bytes = 0
        self.free_bytes = 0
        self.reserve_bytes = 0
        self.measured = False
        self.is_low = False

    def reconfigure(self, reserve: DiskReserve) -> None:
        """Use another reserve from now on."""
        self._reserve = reserve
        if self.measured:
            self._judge()

    def measure(self, usage: DiskUsage) -> bool:
        """Take a new measurement; return whether `is_low` has changed."""
        self.total_bytes = usage.total_bytes
        self.free_bytes = usage.free_bytes
        self.measured = True
        return self._judge()

    def _judge(self) -> bool:
        self.reserve_bytes = self._reserve.of(self.total_bytes)
        limit = self.reserve_bytes
        if self.is_low:
            # Without a margin each small deletion would let in the next few appends.
            limit += min(_MARGIN_MAX_BYTES, self.reserve_bytes // 10)
        before = self.is_low
        self.is_low = self.free_bytes < limit
        return self.is_low != before
