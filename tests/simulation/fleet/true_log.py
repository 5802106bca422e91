"""The one true log of a partition: what leaders' watermarks have passed.

After an excused loss it begins anew at the log of the next leader: what that one has is true from
then on, and whoever led before counts no more.
"""

from tests.simulation.fleet.shadows import Head, Shadow


class TrueLog:
    """What is committed of one partition."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.ends: dict[int, int] = {}  # of what is committed, by leader epoch
        self.is_loose = False
        """Something may be lost, and nobody has led since: nothing can be said."""
        self.since_epoch = 0
        """Leaders of earlier epochs led a history that has ended."""
        self._told_end = 0  # of the history before
        self._told_until_ns = 0

    @property
    def end(self) -> int:
        """Up to where it is committed, for all that was seen."""
        return self.heads[-1].next_offset if self.heads else 0

    def end_for(self, leader_epoch: int) -> int:
        """Return what a leader must have; one that is deposed may not know what came later."""
        return max((self.ends[each] for each in self.ends if each <= leader_epoch), default=0)

    def told_end(self, now_ns: int) -> int:
        """Return up to where a reader may have read: for a while also in the history before."""
        return max(self.end, self._told_end if now_ns < self._told_until_ns else 0)

    def judges(self, leader_epoch: int) -> bool:
        """Return whether a replica in that epoch has to agree with it."""
        return not self.is_loose and leader_epoch >= self.since_epoch

    def commit(self, leader_epoch: int, shadow: Shadow, offset: int) -> None:
        """A leader's watermark is at `offset`."""
        if leader_epoch < self.since_epoch and not self.is_loose:
            return
        for head in shadow.from_offset(self.end):
            if head.next_offset > offset:
                break
            self.heads.append(head)
        self.ends[leader_epoch] = min(offset, self.end)

    def loosen(self, since_epoch: int) -> None:
        """Its end may be lost: leaders from that epoch on may have less."""
        self.is_loose = True
        self.since_epoch = since_epoch

    def begin_anew(self, leader_epoch: int, told_until_ns: int) -> None:
        """The first leader leads since the loss: nothing is committed but what it says now."""
        self._told_end, self._told_until_ns = self.told_end(0), told_until_ns
        self.heads, self.ends = [], {}
        self.is_loose, self.since_epoch = False, leader_epoch

    def go_on(self, leader_epoch: int) -> None:
        """Nothing was lost: who led before leads on, and all replicas have what it has."""
        self.is_loose, self.since_epoch = False, leader_epoch
