"""Large answers that clients do not read: bounded over all connections, shared by addresses.

An answer of thousands of partitions is megabytes in memory until its client has taken it, and a
client may ask a thousand times and read nothing. Records are not among them: they stay in segments.
When the bound is passed, the address with most of it loses the connection that has kept an answer
for longest. Pure. Owner: the event loop's thread.
"""

from collections import Counter
from collections.abc import Callable
from typing import Protocol

LARGE_BYTES = 64 * 1024
"""A smaller answer is not looked at: so much fits into buffers of the kernel."""


class Reader(Protocol):
    """The answers of one connection."""

    address: str

    @property
    def kept_bytes(self) -> int:
        """What its answers take in memory now; 0 when the connection has ended."""

    def give_up(self) -> None:
        """End the connection."""


class UnreadAnswers:
    """Who may keep large answers. Invariant: within the bound after `note`, or one is left."""

    __slots__ = ("_bytes_max", "_on_given_up", "_readers")

    def __init__(self, bytes_max: int, on_given_up: Callable[[str], object]) -> None:
        """`on_given_up(address)` is called for each connection that is ended."""
        self._bytes_max = bytes_max
        self._on_given_up = on_given_up
        self._readers: dict[Reader, None] = {}  # the one that has kept something for longest first

    def note(self, reader: Reader) -> None:
        """A large answer of `reader` waits to be read: end connections that do not read theirs."""
        self._readers[reader] = None
        kept = {each: size for each in self._readers if (size := each.kept_bytes)}
        self._readers = dict.fromkeys(kept)
        total = sum(kept.values())
        while total > self._bytes_max and len(kept) > 1:
            of_address: Counter[str] = Counter()
            for each, size in kept.items():
                of_address[each.address] += size
            most = max(of_address, key=of_address.__getitem__)
            slowest = next(each for each in kept if each.address == most)
            total -= kept.pop(slowest)
            self.forget(slowest)
            self._on_given_up(most)
            slowest.give_up()

    def forget(self, reader: Reader) -> None:
        """The connection has ended."""
        self._readers.pop(reader, None)
