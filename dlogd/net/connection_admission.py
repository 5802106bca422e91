"""Admission of connections: rates and places, for each address and over all.

Pure: no clock and no socket. Times are microseconds of a monotonic clock, passed in by the caller.
A listener asks `ConnectionAdmission.admit` for each accepted connection before the listener makes
an object.

An address has a rate of its own, a bound on its places, and a fair share of all places. A newcomer
that finds all places taken displaces the newest place of the address with most places, if that
address has at least two places more than the newcomer's. Otherwise the newcomer is refused.
Known addresses (voters, registered nodes) have reserved places that strangers cannot take.

Invariant: an address with fewer than 1/k of all places (k: addresses that have places) and with
less than 1/8 of its burst used is never refused because of another address.
Invariant: memory is bounded by the number of places and by BUCKETS_MAX, whatever addresses come.
Owner: one listener, on the thread of its event loop.
"""

import enum
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

BUCKETS_MAX = 4096
"""Addresses whose rate is remembered; beyond them the longest unused one is forgotten."""
LEARNED_MAX = 256
"""Addresses that are known because a node has proven itself from there."""
BURST_SHARE = 8
"""An address that has used less than 1/8 of its burst is not refused for the rate over all."""
LINE_ADDRESSES_MAX = 256
LINE_US = 60_000_000
OTHERS = "others"
"""Stands for all addresses beyond LINE_ADDRESSES_MAX in log lines."""


class Refusal(enum.Enum):
    """Why a connection was refused or ended; the value is the label of the metric."""

    ADDRESS_RATE = "address_rate"
    """The address opens connections faster than it may."""
    ADDRESS_FULL = "address_full"
    """The address has as many connections as it may have."""
    RATE = "rate"
    """All addresses together open connections faster than they may."""
    FULL = "full"
    """All places are taken, and no address has more of them than a fair share allows."""
    DISPLACED = "displaced"
    """The place was given to an address that had fewer places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """`burst` attempts at once, `per_s` of them again in each second. Both at least 1."""

    per_s: int
    burst: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many connections there may be, and how fast they may come."""

    count_max: int
    """Places for addresses that are not known."""
    per_address_max: int
    per_address_rate: Rate
    rate: Rate
    """Over all addresses that are not known."""
    reserved_count: int = 0
    """Places in addition to `count_max` that only known addresses take."""


@lru_cache(maxsize=BUCKETS_MAX)
def address_of(host: str) -> str:
    """Return the address that `host` counts for: an IPv6 host counts for its network of /64.

    An IPv4 host in IPv6 notation (RFC 4291, 2.5.5.2) counts as the IPv4 host.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class _Bucket:
    """A rate as the generic cell rate algorithm counts it (ITU-T I.371): one int per bucket.

    That int is the time at which the bucket is full again: each attempt moves it by `interval_us`.
    """

    __slots__ = ("_interval_us", "_room_us")

    def __init__(self, rate: Rate) -> None:
        self._interval_us = max(1, 1_000_000 // rate.per_s)
        self._room_us = (rate.burst - 1) * self._interval_us

    def wait_us(self, full_us: int, now_us: int) -> int:
        """Return how long an attempt would have to wait; 0 if there is room now."""
        return max(0, full_us - now_us - self._room_us)

    def after(self, full_us: int, now_us: int) -> int:
        """Return the bucket with one attempt more in it."""
        return max(full_us, now_us) + self._interval_us

    def used(self, full_us: int, now_us: int) -> int:
        """Return how many attempts of the burst are used, rounded up."""
        return max(0, -((now_us - full_us) // self._interval_us))


class _Rates:
    """The rates of all addresses, the address whose attempt is longest ago first."""

    def __init__(self, bounds: Bounds) -> None:
        self._full_us: dict[str, int] = {}
        self._all_full_us = 0
        self.reconfigure(bounds)

    def reconfigure(self, bounds: Bounds) -> None:
        """Take over other rates; what is used stays used."""
        self._each = _Bucket(bounds.per_address_rate)
        self._all = _Bucket(bounds.rate)
        self._share = max(1, bounds.per_address_rate.burst // BURST_SHARE)

    def __len__(self) -> int:
        return len(self._full_us)

    def wait_us(self, now_us: int) -> int:
        """Return for how long the rate over all has no room."""
        return self._all.wait_us(self._all_full_us, now_us)

    def take_own(self, address: str, now_us: int) -> tuple[bool, bool]:
        """Count an attempt; return whether its address may make it, and if within its share."""
        full_us = self._full_us.pop(address, 0)
        may = not self._each.wait_us(full_us, now_us)
        is_within_share = self._each.used(full_us, now_us) < self._share
        self._full_us[address] = self._each.after(full_us, now_us) if may else full_us
        self._forget(now_us)
        return may, is_within_share

    def take_of_all(self, now_us: int) -> bool:
        """Count an attempt over all addresses; return whether there was room for it."""
        if self._all.wait_us(self._all_full_us, now_us):
            return False
        self._all_full_us = self._all.after(self._all_full_us, now_us)
        return True

    def _forget(self, now_us: int) -> None:
        # Two for each one that comes: the table shrinks by itself when an attack is over.
        for _ in range(2):
            oldest = next(iter(self._full_us))
            if len(self._full_us) <= BUCKETS_MAX and self._full_us[oldest] > now_us:
                return
            if len(self._full_us) > 1:
                del self._full_us[oldest]


Holder = TypeVar("Holder")


class Place(Generic[Holder]):
    """The right to one connection: `ConnectionAdmission.admit`, then `leave` or `prove` once."""

    __slots__ = ("_room", "address", "displaced", "holder")

    def __init__(self, address: str, room: "_Room[Holder]") -> None:
        self.address = address
        self.holder: Holder | None = None
        """Set by the caller: what is to be closed when the place is displaced."""
        self.displaced: Place[Holder] | None = None
        """The place that this one was taken from; the caller closes its holder."""
        self._room: _Room[Holder] | None = room

    def leave(self) -> None:
        """Give the place back, and let go of the holder. Idempotent."""
        self.holder = None
        room, self._room = self._room, None
        if room is not None:
            room.remove(self)


class _Room(Generic[Holder]):
    """Places of one kind. Each step takes a constant time, however many addresses there are."""

    def __init__(self) -> None:
        self.count = 0
        self._by_address: dict[str, dict[Place[Holder], None]] = {}
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = 0

    def count_of(self, address: str) -> int:
        """Return how many places an address has."""
        return len(self._by_address.get(address, ()))

    def enter(self, address: str, count_max: int) -> Place[Holder] | None:
        """Take a place, if need be of the address with most; None if there is none."""
        displaced = None
        if self.count >= count_max:
            # With one place less than the most, two addresses would displace each other for ever.
            if self.count_of(address) + 2 > self._most:
                return None
            crowded = next(reversed(self._by_count[self._most]))
            displaced = next(reversed(self._by_address[crowded]))
            holder = displaced.holder
            displaced.leave()
            displaced.holder = holder  # for the caller, who has to close it
        place = Place(address, self)
        place.displaced = displaced
        places = self._by_address.setdefault(address, {})
        self._move(address, len(places), len(places) + 1)
        places[place] = None
        self.count += 1
        return place

    def remove(self, place: Place[Holder]) -> None:
        """Take a place back."""
        places = self._by_address[place.address]
        self._move(place.address, len(places), len(places) - 1)
        del places[place]
        if not places:
            del self._by_address[place.address]
        self.count -= 1

    def _move(self, address: str, before: int, after: int) -> None:
        if before:
            peers = self._by_count[before]
            del peers[address]
            if not peers:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[address] = None
        if after > self._most or self._most not in self._by_count:
            self._most = after


class ConnectionAdmission(Generic[Holder]):
    """Who is let in on one listener."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._rates = _Rates(bounds)
        self._strangers: _Room[Holder] = _Room()
        self._reserved: _Room[Holder] = _Room()
        self._configured: frozenset[str] = frozenset()
        self._learned: dict[str, None] = {}  # the one that proved itself longest ago first

    @property
    def count(self) -> int:
        """How many places are taken."""
        return self._strangers.count + self._reserved.count

    @property
    def bucket_count(self) -> int:
        """Of how many addresses the rate is remembered."""
        return len(self._rates)

    def reconfigure(self, bounds: Bounds) -> None:
        """Take over other bounds; places that are taken stay taken."""
        self._bounds = bounds
        self._rates.reconfigure(bounds)

    def set_known(self, hosts: Iterable[str]) -> None:
        """Say which hosts are known by configuration; those that were learned stay known."""
        self._configured = frozenset(map(address_of, hosts))

    def is_known(self, host: str) -> bool:
        """Whether `host` may take a reserved place."""
        address = address_of(host)
        return address in self._configured or address in self._learned

    def rest_us(self, now_us: int) -> int:
        """Return for how long the rate over all is used up; a listening socket may rest then."""
        return self._rates.wait_us(now_us)

    def admit(self, host: str, now_us: int) -> Place[Holder] | Refusal:
        """Give `host` a place, or say why not.

        Each attempt counts for the rate of its address. Only an attempt that its address may make
        counts for the rate over all.
        """
        address, bounds = address_of(host), self._bounds
        may, is_within_share = self._rates.take_own(address, now_us)
        if not may:
            return Refusal.ADDRESS_RATE
        taken = self._strangers.count_of(address) + self._reserved.count_of(address)
        if taken >= bounds.per_address_max:
            return Refusal.ADDRESS_FULL
        if self.is_known(address):
            place = self._reserved.enter(address, bounds.reserved_count)
            if place is not None:
                return place
        elif not self._rates.take_of_all(now_us) and not is_within_share:
            return Refusal.RATE
        place = self._strangers.enter(address, bounds.count_max)
        return Refusal.FULL if place is None else place

    def prove(self, place: Place[Holder]) -> None:
        """Give the place of a node back that has proven itself, and know its address from now on.

        For listeners whose bounds are on connections without a proof.
        """
        place.leave()
        self._learned.pop(place.address, None)
        self._learned[place.address] = None
        if len(self._learned) > LEARNED_MAX:
            del self._learned[next(iter(self._learned))]


class RefusalLines:
    """When a refusal is worth a log line: once a minute for each address, in bounded memory."""

    def __init__(self) -> None:
        # The address whose last line is oldest comes first.
        self._said: dict[str, tuple[int, int]] = {}

    def count(self, host: str, now_us: int) -> tuple[str, int]:
        """Count a refusal; return for whom a line is due, and of how many refusals; 0: none is.

        The count is of all refusals since the last line.
        """
        address = address_of(host)
        if address not in self._said and len(self._said) >= LINE_ADDRESSES_MAX:
            oldest = next(iter(self._said))
            if now_us - self._said[oldest][0] < LINE_US:
                address = OTHERS
            else:
                del self._said[oldest]
        said_us, unsaid = self._said.get(address, (now_us - LINE_US, 0))
        if now_us - said_us < LINE_US:
            self._said[address] = (said_us, unsaid + 1)
            return address, 0
        self._said.pop(address, None)
        self._said[address] = (now_us, 0)
        return address, unsaid + 1
