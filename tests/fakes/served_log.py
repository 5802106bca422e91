"""A log in memory that `tests.fakes.log_nodes` serve, and what can be wrong with it."""

from dataclasses import dataclass, field

from dlog.batch.header import decode_header
from dlog.errors import OffsetOutOfRangeError, WireError
from dlog.types import TopicPartition


@dataclass(slots=True)
class FakeLog:
    """One partition: its batches, who leads it, and what is wrong with it."""

    key: TopicPartition
    leader: int
    leader_epoch: int = 0
    start: int = 0
    end: int = 0
    last_stable: int | None = None
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)  # first, next, bytes
    aborted: list[tuple[int, int]] = field(default_factory=list)
    errors: list[type[WireError]] = field(default_factory=list)  # one per fetch, then none
    damaged_reads: int = 0  # so many fetches bring a flipped bit
    diverging: tuple[int, int] | None = None  # (epoch, end): told once to who has read batches
    foreign_epoch: int | None = None  # then it is told to who has read that, as often as it asks
    follower: int = -1  # named to who tells a rack, and may be read
    follower_errors: list[type[WireError]] = field(default_factory=list)  # of that one
    follower_end: int | None = None  # where that one ends, if not where the leader does

    def append(self, data: bytes) -> None:
        """Add a batch where its head says that it belongs; holes may be made so."""
        header = decode_header(data)
        self.batches.append((header.base_offset, header.next_offset, data))
        self.end = header.next_offset

    def trim(self, offset: int) -> None:
        """Drop what is before `offset`."""
        self.start = offset
        self.end = max(self.end, offset)
        self.batches = [each for each in self.batches if each[1] > offset]

    def cut(self, offset: int) -> None:
        """Drop what is from `offset` on."""
        self.end = offset
        self.batches = [each for each in self.batches if each[1] <= offset]

    def read(self, offset: int, bytes_max: int, *, at_least_one: bool) -> bytes:
        """Return whole batches from the one that holds `offset` on."""
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRangeError(f"{offset} is not in {self.start}..{self.end}")
        data = b""
        stable = self.end if self.last_stable is None else self.last_stable
        for _, after, each in self.batches:
            if after <= offset or after > stable:
                continue
            if len(data) + len(each) > bytes_max and (data or not at_least_one):
                break
            data += each
        return data
