"""Memory of incoming requests, bounded over all connections and for each address.

Pure accounts and buffers: no socket, no clock. Each `Intake` is one holder. Its charge follows the
bytes that have come, never the length that a frame announces: the charge doubles as bytes come.
An address has at most 1/SHARE of the pool. A holder that has not completed a frame yet is new:
the new holders of an address together have at most 1/NEW_SHARE of that share.

A holder that finds no room waits until another one releases memory. One holder at a time may go
beyond the share of its address, and one beyond the pool. So waiting holders never wait for each
other. Buffers of large frames are lent: a frame that has brought LENT_AFTER_BYTES moves into a
buffer of LENT_BYTES that was used before, and is received into it without a further copy.
Owner: the thread of one event loop.
"""

from collections.abc import Callable, Iterator

SHARE = 8
NEW_SHARE = 16
BEGIN_BYTES = 128 * 1024
"""The first buffer of a large frame."""
NEW_BEGIN_BYTES = 16 * 1024
"""The first buffer of a connection's first frame."""
LENT_AFTER_BYTES = 128 * 1024
LENT_BYTES = 2 * 1024 * 1024
LENT_COUNT_MAX = 8
"""Kept for good once they were needed; an address has at most half of them."""
WAKE_SHARES_MAX = 8
"""Addresses whose holders try again when another one has released memory."""
FALL = 4
FALLEN_BYTES_MIN = 8 << 20
"""A smaller peak is not worth giving memory back."""
TIGHT = 0.75
"""From this part of the pool on, a connection reads little at a time."""

Retry = Callable[[], bool]
"""Tries again to get memory; False when there is still none."""


class Fall:
    """Tells when so much less of something is in use that free memory is worth giving back."""

    __slots__ = ("_least", "_peak")

    def __init__(self, least: int) -> None:
        """A peak of less than `least` is not worth it."""
        self._least = least
        self._peak = 0

    def rise_to(self, now: int) -> None:
        """`now` are in use."""
        self._peak = max(self._peak, now)

    def has_come(self, now: int) -> bool:
        """Return whether `now`, in use, is a quarter of the peak; True once for each peak."""
        self.rise_to(now)
        if self._peak < self._least or now * FALL > self._peak:
            return False
        self._peak = now
        return True


class Share:
    """What the connections of one address hold. Life: from the first to the last of them.

    Invariant: used_bytes <= bytes_max, new_bytes <= new_bytes_max, apart from one holder at a time.
    """

    __slots__ = (
        "address",
        "beyond",
        "bytes_max",
        "holders",
        "lent_count",
        "lent_count_max",
        "new_bytes",
        "new_bytes_max",
        "used_bytes",
        "waiting",
    )

    def __init__(self, address: str, bytes_max: int, new_bytes_max: int, lent_count_max: int):
        self.address = address
        self.bytes_max = bytes_max
        self.new_bytes_max = new_bytes_max
        self.lent_count_max = lent_count_max
        self.used_bytes = 0
        self.new_bytes = 0
        self.lent_count = 0
        self.holders = 0
        self.beyond: Holder | None = None
        # In order of arrival. A holder whose frame grows comes first: it gives back the most.
        self.waiting: tuple[dict[Retry, None], dict[Retry, None]] = ({}, {})


class Holder:
    """Who is charged: the receiving half of one connection."""

    __slots__ = ("is_new", "kept_bytes", "share")

    def __init__(self, share: Share, *, is_new: bool) -> None:
        self.share = share
        self.kept_bytes = 0
        """What this holder is charged for."""
        self.is_new = is_new
        """Whether the connection has not completed a frame yet."""


class FrameMemory:
    """The pool. `used_bytes` is what all holders are charged for.

    Invariant: used_bytes <= bytes_max, apart from one holder at a time and from the bytes of one
    read for each holder that waits.
    """

    def __init__(self, bytes_max: int, *, has_shares: bool = False) -> None:
        """`has_shares`: whether strangers send, each address of which is bounded by itself."""
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.charged_bytes = 0
        """Of requests that were read and wait for their answer (`Connection.charge`)."""
        self._fall = Fall(FALLEN_BYTES_MIN)
        self.whole = Share("", bytes_max, bytes_max, LENT_COUNT_MAX)
        self._has_shares = has_shares
        self._shares: dict[str, Share] = {}
        self._waiting: dict[Share, None] = {}
        self._beyond: Holder | None = None
        self._free: list[bytearray] = []
        self._lent_count = 0
        self.is_tight = False
        self.on_starved: Callable[[], None] | None = None
        """Called when a holder begins to wait."""

    @property
    def is_over(self) -> bool:
        """Whether requests take more than they may."""
        return self.used_bytes + self.charged_bytes > self.bytes_max

    def has_fallen(self) -> bool:
        """Return whether so much less is in use than before that free memory is worth giving back.

        Called now and then; True once for each fall.
        """
        return self._fall.has_come(self.used_bytes + self.charged_bytes)

    # -- shares

    def join(self, address: str) -> Share:
        """Return the share of an address for one more connection, which calls `leave` once."""
        if not self._has_shares:
            return self.whole
        share = self._shares.get(address)
        if share is None:
            bytes_max = self.bytes_max // SHARE
            share = Share(address, bytes_max, bytes_max // NEW_SHARE, LENT_COUNT_MAX // 2)
            self._shares[address] = share
        share.holders += 1
        return share

    def leave(self, share: Share) -> None:
        """A connection of the share has ended."""
        share.holders -= 1
        if not share.holders:
            self._shares.pop(share.address, None)

    # -- charges

    def may(self, holder: Holder, size: int) -> bool:
        """Return whether `holder` may be charged for `size` bytes; it may then go beyond a bound.

        Who may go beyond the pool may go beyond its share, too: it needs nobody to go on.
        """
        extra = size - holder.kept_bytes
        share = holder.share
        fits = self.used_bytes + extra <= self.bytes_max
        fits_share = share.used_bytes + extra <= share.bytes_max and (
            not holder.is_new or share.new_bytes + extra <= share.new_bytes_max
        )
        if (fits and fits_share) or self._beyond is holder:
            return True
        if not fits_share and share.beyond not in (None, holder):
            return False
        if not fits and self._beyond is not None:
            return False
        if not fits_share:
            share.beyond = holder
        if not fits:
            self._beyond = holder
        return True

    def charge(self, holder: Holder, size: int) -> None:
        """Charge `holder` for `size` bytes in all; at 0 it gives up going beyond a bound."""
        extra = size - holder.kept_bytes
        if not extra:
            return
        share = holder.share
        holder.kept_bytes = size
        share.used_bytes += extra
        self.used_bytes += extra
        if holder.is_new:
            share.new_bytes += extra
        self.is_tight = self.used_bytes > self.bytes_max * TIGHT
        if extra > 0:
            self._fall.rise_to(self.used_bytes)
            return
        if not size:
            if self._beyond is holder:
                self._beyond = None
            if share.beyond is holder:
                share.beyond = None
        if self._waiting:
            self._wake(share)

    def on_completed(self, holder: Holder) -> None:
        """`holder` has completed its first frame."""
        holder.is_new = False
        holder.share.new_bytes -= holder.kept_bytes

    # -- waiting

    def when_available(self, retry: Retry, share: Share, *, grows: bool) -> None:
        """Call `retry` in its turn after memory was released until it returns True."""
        share.waiting[0 if grows else 1][retry] = None
        self._waiting[share] = None
        if self.on_starved is not None:
            self.on_starved()

    def forget(self, retry: Retry, share: Share) -> None:
        """Do not call `retry` any more."""
        share.waiting[0].pop(retry, None)
        share.waiting[1].pop(retry, None)
        if not any(share.waiting):
            self._waiting.pop(share, None)

    def starved(self) -> Iterator[Share]:
        """Return the shares of which some holder waits."""
        return iter(list(self._waiting))

    def _wake(self, share: Share) -> None:
        """Let waiting holders try again, those of `share` first, then those of a few others."""
        others = [each for each in self._waiting if each is not share][:WAKE_SHARES_MAX]
        for each in ([share] if share in self._waiting else []) + others:
            if self._wake_of(each) or each is not share:
                # Whoever had its turn comes after all others.
                self._waiting.pop(each, None)
                if any(each.waiting):
                    self._waiting[each] = None

    def _wake_of(self, share: Share) -> bool:
        has_woken = False
        for line in share.waiting:
            for retry in list(line):
                if not retry():
                    return has_woken
                line.pop(retry, None)
                has_woken = True
        return has_woken

    # -- buffers

    @staticmethod
    def charge_of(holder: Holder, size: int, came: int) -> int:
        """Return the charge for a frame of `size` bytes when `came` of them are there."""
        begin = NEW_BEGIN_BYTES if holder.is_new else BEGIN_BYTES
        return min(size, max(begin, 2 * came))

    def buffer_of(self, holder: Holder, charge: int, came: int) -> bytearray:
        """Return memory for a frame of which `came` bytes are there, and more bytes than these."""
        share = holder.share
        if LENT_AFTER_BYTES <= came < LENT_BYTES and share.lent_count < share.lent_count_max:
            if not self._free and self._lent_count < LENT_COUNT_MAX:
                self._free.append(bytearray(LENT_BYTES))
                self._lent_count += 1
            if self._free:
                share.lent_count += 1
                return self._free.pop()
        return bytearray(charge)

    def put_by(self, holder: Holder, memory: bytearray) -> None:
        """Take back what `buffer_of` returned."""
        # One of this length that was not lent serves as well.
        if len(memory) == LENT_BYTES and holder.share.lent_count:
            holder.share.lent_count -= 1
            self._free.append(memory)
