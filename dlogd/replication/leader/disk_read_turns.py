"""Turns of partitions of a stream that need a read from disk.

Pure. Part of `dlogd.replication.leader.follower_session`. One read at a time from each data
directory: a disk that hangs then holds up its own partitions, and neither the stream nor those of
the other disks.
"""

from dlogd.replication.leader.follower_partition import FollowerPartition


class DiskReadTurns:
    """Those of one directory come in the order in which they began to wait."""

    __slots__ = ("_reading", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[object, dict[FollowerPartition, None]] = {}
        """By directory; none is empty."""
        self._reading: set[object] = set()

    def may_read(self, fed: FollowerPartition) -> bool:
        """Whether nobody of its directory is being read or was there before."""
        disk = fed.disk
        if disk in self._reading:
            return False
        waiting = self.waiting.get(disk)
        return waiting is None or next(iter(waiting)) is fed

    def next_ones(self) -> list[FollowerPartition]:
        """Return whose turn it is, of each directory that nothing is being read from.

        Not all who wait: there may be thousands, and each that looks in vain costs time.
        """
        reading = self._reading
        return [next(iter(each)) for disk, each in self.waiting.items() if disk not in reading]

    def wait(self, fed: FollowerPartition) -> None:
        """Wait behind the others; who waits already keeps its place."""
        self.waiting.setdefault(fed.disk, {})[fed] = None

    def leave(self, fed: FollowerPartition) -> None:
        """It does not wait any more."""
        waiting = self.waiting.get(fed.disk)
        if waiting is not None and fed in waiting:
            del waiting[fed]
            if not waiting:
                del self.waiting[fed.disk]

    def begin(self, fed: FollowerPartition) -> None:
        """It is being read; nothing else of it is sent before."""
        self.leave(fed)
        fed.is_resting = True
        self._reading.add(fed.disk)

    def end(self, fed: FollowerPartition) -> None:
        """The read has ended."""
        self._reading.discard(fed.disk)

    def clear(self) -> None:
        """Nobody waits; reads end by themselves."""
        self.waiting.clear()
