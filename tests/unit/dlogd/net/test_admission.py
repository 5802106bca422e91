"""Admission, against a plain model of it and by single cases."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlogd.net.connection_admission import (
    BUCKETS_MAX,
    LEARNED_MAX,
    LINE_ADDRESSES_MAX,
    LINE_US,
    OTHERS,
    Bounds,
    ConnectionAdmission,
    Place,
    Rate,
    Refusal,
    RefusalLines,
    address_of,
)

UNLIMITED = Rate(per_s=1_000_000, burst=1_000_000)
SECOND_US = 1_000_000


def places_of(
    count: int, *, per_address: int = 1000, reserved: int = 0
) -> ConnectionAdmission[int]:
    """Return an admission that no rate limits."""
    return ConnectionAdmission(
        Bounds(
            count_max=count,
            per_address_max=per_address,
            per_address_rate=UNLIMITED,
            rate=UNLIMITED,
            reserved_count=reserved,
        )
    )


def admitted(found: Place[int] | Refusal) -> Place[int]:
    assert isinstance(found, Place), found
    return found


@dataclass
class PlainBucket:
    """Tokens as fractions of one, counted up at each look."""

    rate: Rate
    tokens: float = -1.0
    at_us: int = 0

    def look(self, now_us: int) -> float:
        if self.tokens < 0:
            self.tokens = self.rate.burst
        gained = (now_us - self.at_us) * self.rate.per_s / SECOND_US
        self.tokens = min(float(self.rate.burst), self.tokens + gained)
        self.at_us = now_us
        return self.tokens


@dataclass
class PlainAdmission:
    """All places in one list in the order of their arrival; each question looks at all of them."""

    bounds: Bounds
    known: frozenset[str]
    places: list[tuple[str, bool, int]] = field(default_factory=list)
    buckets: dict[str, PlainBucket] = field(default_factory=dict)
    all: PlainBucket | None = None

    def admit(self, address: str, number: int, now_us: int) -> tuple[Refusal | None, int | None]:
        """Return why not, or None and the number of who is ended."""
        bounds = self.bounds
        bucket = self.buckets.setdefault(address, PlainBucket(bounds.per_address_rate))
        tokens = bucket.look(now_us)
        if tokens < 1 - 1e-9:
            return Refusal.ADDRESS_RATE, None
        used = bounds.per_address_rate.burst - tokens
        bucket.tokens -= 1
        if sum(each[0] == address for each in self.places) >= bounds.per_address_max:
            return Refusal.ADDRESS_FULL, None
        if address in self.known:
            ok, ended = self.enter(address, number, bounds.reserved_count, reserved=True)
            if ok:
                return None, ended
        else:
            self.all = self.all or PlainBucket(bounds.rate)
            if self.all.look(now_us) >= 1 - 1e-9:
                self.all.tokens -= 1
            elif used > max(1, bounds.per_address_rate.burst // 8) - 1 + 1e-9:
                return Refusal.RATE, None
        ok, ended = self.enter(address, number, bounds.count_max, reserved=False)
        return (None if ok else Refusal.FULL), ended

    def enter(
        self, address: str, number: int, count_max: int, *, reserved: bool
    ) -> tuple[bool, int | None]:
        here = [each for each in self.places if each[1] is reserved]
        ended = None
        if len(here) >= count_max:
            counts = {a: sum(each[0] == a for each in here) for a, _, _ in here}
            most = max(counts.values(), default=0)
            if counts.get(address, 0) + 2 > most:
                return False, None
            # Which one of several equally crowded addresses is not said.
            ended = most
        self.places.append((address, reserved, number))
        return True, ended

    def remove(self, number: int) -> str:
        (found,) = (each for each in self.places if each[2] == number)
        self.places.remove(found)
        return found[0]


hosts = st.sampled_from(["a", "b", "c", "d", "v1", "v2"])
steps = st.lists(
    st.tuples(
        st.sampled_from(["admit"] * 6 + ["leave"]),
        hosts,
        st.integers(0, 100).map(lambda tick: tick * tick * 100),
    ),
    max_size=120,
)
# Rates whose interval is a whole number of microseconds, so that both count exactly.
rates = st.builds(Rate, per_s=st.sampled_from([1, 5, 50, 1000]), burst=st.integers(1, 40))
all_bounds = st.builds(
    Bounds,
    count_max=st.integers(1, 12),
    per_address_max=st.integers(1, 12),
    per_address_rate=rates,
    rate=rates,
    reserved_count=st.integers(0, 4),
)


@settings(max_examples=300, deadline=None)
@given(all_bounds, steps)
def test_it_decides_as_the_plain_model_does(
    bounds: Bounds, work: list[tuple[str, str, int]]
) -> None:
    known = frozenset({"v1", "v2"})
    plain, tested = PlainAdmission(bounds, known), ConnectionAdmission[int](bounds)
    tested.set_known(known)
    places: dict[int, Place[int]] = {}
    now_us = SECOND_US
    for number, (what, host, later_us) in enumerate(work):
        now_us += later_us
        if what == "leave":
            if places:
                plain.remove(left := min(places))
                places.pop(left).leave()
            continue
        refused, most = plain.admit(host, number, now_us)
        found = tested.admit(host, now_us)
        if refused is not None:
            assert found is refused
            continue
        place = places[number] = admitted(found)
        place.holder = number
        assert (place.displaced is None) is (most is None)
        if place.displaced is not None:
            ended = place.displaced.holder
            assert ended is not None and places.pop(ended) is place.displaced
            reserved = next(each[1] for each in plain.places if each[2] == ended)
            address = plain.remove(ended)
            # The newest of an address with most, and of no other kind of places.
            of_it = [each[2] for each in plain.places if each[:2] == (address, reserved)]
            assert len(of_it) + 1 == most and all(each < ended for each in of_it)
        assert tested.count == len(plain.places) == len(places)


@settings(max_examples=200, deadline=None)
@given(all_bounds, steps, st.integers(0, 50))
def test_an_address_within_its_share_is_never_refused_because_of_another(
    bounds: Bounds, work: list[tuple[str, str, int]], quiet_s: int
) -> None:
    """Others do what they like; then one comes that has used nothing, as often as its share is."""
    tested = ConnectionAdmission[int](bounds)
    places: dict[str, list[Place[int]]] = {}
    now_us = SECOND_US
    for what, host, later_us in work:
        now_us += later_us
        if what == "leave":
            if places.get(host):
                places[host].pop().leave()
            continue
        found = tested.admit(host, now_us)
        if isinstance(found, Place):
            places.setdefault(host, []).append(found)
            for held in places.values():
                if found.displaced in held:
                    held.remove(found.displaced)
    addresses = sum(bool(held) for held in places.values()) + 1
    share = min(
        bounds.count_max // addresses,
        bounds.per_address_max,
        max(1, bounds.per_address_rate.burst // 8),
    )
    for _ in range(share):
        admitted(tested.admit("honest", now_us))


@given(st.lists(hosts, max_size=60), st.integers(1, 5))
def test_strangers_never_take_reserved_places(strangers: list[str], reserved: int) -> None:
    tested = places_of(3, reserved=reserved)
    tested.set_known(["10.0.0.1"])
    for host in strangers:
        tested.admit(host, 1)
    for _ in range(reserved):
        assert admitted(tested.admit("10.0.0.1", 1)).displaced is None
    for host in strangers:
        found = tested.admit(host, 2)
        displaced = found.displaced if isinstance(found, Place) else None
        assert displaced is None or displaced.address != "10.0.0.1"


def test_the_newest_of_the_most_crowded_address_is_ended_and_the_oldest_stays() -> None:
    tested = places_of(5)
    quiet = admitted(tested.admit("10.0.0.1", 1))
    crowd = [admitted(tested.admit("10.0.0.2", 1)) for _ in range(4)]
    newcomer = admitted(tested.admit("10.0.0.3", 1))
    assert newcomer.displaced is crowd[3]
    assert admitted(tested.admit("10.0.0.3", 1)).displaced is crowd[2]
    # Everybody has a fair share now: nobody is ended for anybody.
    assert tested.admit("10.0.0.3", 1) is Refusal.FULL
    assert tested.admit("10.0.0.2", 1) is Refusal.FULL
    quiet.leave()
    assert admitted(tested.admit("10.0.0.2", 1)).displaced is None


def test_a_place_is_given_back_once() -> None:
    tested = places_of(2)
    place = admitted(tested.admit("a", 1))
    admitted(tested.admit("a", 1))
    place.leave()
    place.leave()
    assert tested.count == 1
    admitted(tested.admit("a", 1))
    assert tested.admit("a", 1) is Refusal.FULL


def test_a_burst_of_one_address_gets_in_and_then_its_rate_holds() -> None:
    rate = Rate(per_s=10, burst=100)
    tested = ConnectionAdmission[int](
        Bounds(count_max=10_000, per_address_max=10_000, per_address_rate=rate, rate=UNLIMITED)
    )
    found = [tested.admit("a", SECOND_US) for _ in range(101)]
    assert found[100] is Refusal.ADDRESS_RATE and Refusal.ADDRESS_RATE not in found[:100]
    second = [tested.admit("a", 2 * SECOND_US) for _ in range(11)]
    assert second[10] is Refusal.ADDRESS_RATE and Refusal.ADDRESS_RATE not in second[:10]
    admitted(tested.admit("b", 2 * SECOND_US))


def test_attempts_of_one_address_over_its_rate_leave_the_rate_over_all_to_the_others() -> None:
    rates = Rate(per_s=10, burst=10), Rate(per_s=15, burst=15)
    tested = ConnectionAdmission[int](
        Bounds(count_max=99, per_address_max=99, per_address_rate=rates[0], rate=rates[1])
    )
    for _ in range(1000):
        tested.admit("flood", SECOND_US)
    assert not tested.rest_us(SECOND_US)
    for _ in range(5):
        admitted(tested.admit("b", SECOND_US))
    assert tested.rest_us(SECOND_US) == SECOND_US // 15
    assert tested.admit("b", SECOND_US) is Refusal.RATE
    admitted(tested.admit("never seen", SECOND_US))


def test_many_addresses_take_bounded_memory_and_give_it_back() -> None:
    tested = ConnectionAdmission[int](
        Bounds(
            count_max=100,
            per_address_max=10,
            per_address_rate=Rate(per_s=1, burst=10),
            rate=Rate(per_s=100, burst=100),
        )
    )
    for number in range(3 * BUCKETS_MAX):
        tested.admit(f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1", SECOND_US)
    assert tested.bucket_count == BUCKETS_MAX
    assert tested.count == 100
    for number in range(BUCKETS_MAX):
        tested.admit("a", (100 + number) * SECOND_US)
    assert tested.bucket_count <= 2


def test_who_floods_is_not_forgotten_for_others_that_come_once() -> None:
    tested = ConnectionAdmission[int](
        Bounds(
            count_max=10,
            per_address_max=10,
            per_address_rate=Rate(per_s=1, burst=2),
            rate=UNLIMITED,
        )
    )
    tested.admit("flood", SECOND_US)
    tested.admit("flood", SECOND_US)
    for number in range(2 * BUCKETS_MAX):
        tested.admit(f"once {number}", SECOND_US)
        assert tested.admit("flood", SECOND_US) is Refusal.ADDRESS_RATE


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("?", "?"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_hosts_count_for_their_address(host: str, address: str) -> None:
    assert address_of(host) == address


def test_a_network_of_ipv6_is_one_address() -> None:
    tested = places_of(100, per_address=2)
    for number in range(2):
        admitted(tested.admit(f"2001:db8::{number}", 1))
    assert tested.admit("2001:db8::ffff", 1) is Refusal.ADDRESS_FULL
    admitted(tested.admit("2001:db8:0:1::1", 1))


def test_who_has_proven_itself_is_known_and_takes_no_place() -> None:
    tested = places_of(1, reserved=1)
    place = admitted(tested.admit("10.0.0.1", 1))
    assert not tested.is_known("10.0.0.1")
    tested.prove(place)
    assert tested.is_known("10.0.0.1") and tested.count == 0
    admitted(tested.admit("stranger", 1))
    admitted(tested.admit("10.0.0.1", 1))


def test_learned_addresses_are_bounded_and_the_configured_ones_stay() -> None:
    tested = places_of(1)
    tested.set_known(["2001:db8::1"])
    for number in range(LEARNED_MAX + 1):
        tested.prove(admitted(tested.admit(f"node {number}", 1)))
    assert not tested.is_known("node 0")
    assert tested.is_known("node 1")
    assert tested.is_known("2001:db8::2")


def test_one_line_a_minute_for_each_address_says_how_many() -> None:
    lines = RefusalLines()
    assert lines.count("a", 5) == ("a", 1)
    for _ in range(10):
        assert lines.count("a", LINE_US) == ("a", 0)
    assert lines.count("b", LINE_US) == ("b", 1)
    assert lines.count("a", LINE_US + 5) == ("a", 11)


def test_lines_about_many_addresses_are_bounded() -> None:
    lines = RefusalLines()
    said = sum(lines.count(f"host {number}", 1)[1] > 0 for number in range(10_000))
    assert said == LINE_ADDRESSES_MAX + 1
    address, count = lines.count("one more", LINE_US + 1)
    assert address == "one more" and count == 1
    assert lines.count("host 4000", 2 * LINE_US)[0] != OTHERS
    assert len(lines._said) <= LINE_ADDRESSES_MAX + 1
