"""The verdict over clients in failovers: each breach is found, and what is allowed is not."""

import pytest

from tests.clients.failovers.verdict import Ack, Promise, Seen, breaches, waits


def acks(*numbers: int) -> list[Ack]:
    """Return acknowledgements of partition 0 from offset 0 on."""
    return [Ack(number, 0, offset, 0.0, 1.0) for offset, number in enumerate(numbers)]


def rows(*numbers: int) -> list[Seen]:
    """Return records of partition 0 from offset 0 on."""
    return [Seen(0, offset, number, 0.0) for offset, number in enumerate(numbers)]


@pytest.mark.parametrize("promise", list(Promise))
def test_what_is_as_it_should_be(promise: Promise) -> None:
    assert breaches(promise, 3, acks(0, 1, 2), rows(0, 1, 2), rows(0, 1, 2)) == []


@pytest.mark.parametrize(
    ("log", "exact", "in_order", "everything"),
    [
        ((0, 1), ["acknowledged and lost: 2 (1)"] * 1, 1, 1),
        ((0, 1, 2, 2), ["partition 0: there more than once: 2 (1)"], 0, 0),
        ((0, 1, 2, 1), ["partition 0: there more than once: 1 (1)"], 0, 0),
    ],
)
def test_what_the_log_lacks_or_has_twice(
    log: tuple[int, ...], exact: list[str], in_order: int, everything: int
) -> None:
    there = rows(*log)
    assert breaches(Promise.EXACT, 3, acks(0, 1, 2), there, there) == exact
    assert len(breaches(Promise.IN_ORDER, 3, acks(0, 1, 2), there, there)) == in_order
    assert len(breaches(Promise.ALL, 3, acks(0, 1, 2), there, there)) == everything


def test_order_and_offsets() -> None:
    told = [Ack(1, 0, 1, 0, 1), Ack(0, 0, 0, 0, 1)]
    there = rows(1, 0)
    found = breaches(Promise.EXACT, 2, told, there, there)
    assert found == [
        "not at the offset that was told: 0, 1 (2)",
        "partition 0: out of order: 0 (1)",
    ]
    unknown = [each._replace(offset=-1) for each in told]
    assert breaches(Promise.ALL, 2, unknown, there, there) == []


def test_what_was_never_answered() -> None:
    assert breaches(Promise.ALL, 3, acks(0, 1), rows(0, 1, 2), rows(0, 1, 2)) == [
        "never answered: 2 (1)"
    ]


@pytest.mark.parametrize(
    ("seen", "what"),
    [
        (rows(0, 1), "not read"),
        ([*rows(0, 1, 2), Seen(0, 1, 1, 0.0)], "read again"),
        ([*rows(0, 1), Seen(0, 2, 9, 0.0)], "read and not there"),
    ],
)
def test_what_was_read_meanwhile(seen: list[Seen], what: str) -> None:
    found = breaches(Promise.ALL, 3, acks(0, 1, 2), seen, rows(0, 1, 2))
    assert any(what in each for each in found)


def test_waits() -> None:
    told = [Ack(0, 0, 0, 0.0, 0.1), Ack(1, 0, 1, 1.0, 2.5), Ack(2, 1, 0, 1.0, 1.1)]
    seen = [Seen(0, 0, 0, 0.5), Seen(0, 1, 1, 3.0)]
    found = waits(told, seen, [(0.9, [0])])
    assert found.longest_ack_s == 1.5
    assert found.longest_pause_s == 2.5
    assert [round(each, 3) for each in found.after_kill_s] == [1.6]
