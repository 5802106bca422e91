"""What a client was told and what is there: whether they agree. Pure."""

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

SHOWN_MAX = 5


class Promise(enum.Enum):
    """What a client promises at the settings that it is run with."""

    EXACT = "each record once, in order"
    IN_ORDER = "each record, in order, perhaps more than once"
    ALL = "each record"


class Ack(NamedTuple):
    """A record that was acknowledged; times are monotonic. Offset -1: the client did not say."""

    number: int
    partition: int
    offset: int
    sent_s: float
    acked_s: float


class Seen(NamedTuple):
    """A record that was read."""

    partition: int
    offset: int
    number: int
    at_s: float


def breaches(
    promise: Promise,
    sent_count: int,
    acks: Sequence[Ack],
    seen: Sequence[Seen],
    log: Sequence[Seen],
) -> list[str]:
    """Return what is wrong, given what the client sent, was told and read, and the log itself."""
    found = _lost(acks, log)
    answered = {each.number for each in acks}
    found += _told("never answered", sorted(set(range(sent_count)) - answered))
    numbers = {part: [each.number for each in rows] for part, rows in by_partition(log).items()}
    for partition, row in numbers.items():
        firsts = list(dict.fromkeys(row))
        if promise is Promise.EXACT:
            repeated = [each for each in firsts if row.count(each) > 1] if row != firsts else []
            found += _told(f"partition {partition}: there more than once", repeated)
        if promise is not Promise.ALL:
            late = [after for before, after in pairwise(firsts) if after < before]
            found += _told(f"partition {partition}: out of order", late)
    return found + _misread(seen, log)


def by_partition(rows: Iterable[Seen]) -> dict[int, list[Seen]]:
    """Return the rows of each partition, in the order in which they came."""
    found: dict[int, list[Seen]] = defaultdict(list)
    for each in rows:
        found[each.partition].append(each)
    return found


def _lost(acks: Sequence[Ack], log: Sequence[Seen]) -> list[str]:
    there = {(each.partition, each.offset): each.number for each in log}
    numbers: dict[int, set[int]] = defaultdict(set)
    for each in log:
        numbers[each.partition].add(each.number)
    lost = [ack.number for ack in acks if ack.number not in numbers[ack.partition]]
    moved = [
        ack.number
        for ack in acks
        if ack.offset >= 0 and there.get((ack.partition, ack.offset)) != ack.number
    ]
    elsewhere = sorted(set(moved) - set(lost))
    return _told("acknowledged and lost", lost) + _told(
        "not at the offset that was told", elsewhere
    )


def _misread(seen: Sequence[Seen], log: Sequence[Seen]) -> list[str]:
    """Compare what the client read meanwhile with what is there in the end."""
    found = []
    read = by_partition(seen)
    for partition, rows in by_partition(log).items():
        wanted = [(each.offset, each.number) for each in rows]
        got = [(each.offset, each.number) for each in read[partition]]
        if got == wanted:
            continue
        odd = [pair for pair in got if pair not in set(wanted)]
        found += _told(f"partition {partition}: read and not there", odd)
        back = [after for before, after in pairwise(got) if after[0] <= before[0]]
        found += _told(f"partition {partition}: read again", back)
        found += _told(f"partition {partition}: not read", sorted(set(wanted) - set(got)))
    return found


def _told(what: str, which: Sequence[object]) -> list[str]:
    if not which:
        return []
    some = ", ".join(map(str, which[:SHOWN_MAX]))
    return [f"{what}: {some}{', ...' if len(which) > SHOWN_MAX else ''} ({len(which)})"]


class Waits(NamedTuple):
    """How long a client waited, in seconds."""

    longest_ack_s: float
    """From `send` to the acknowledgement."""
    longest_pause_s: float
    """Between records that were read."""
    after_kill_s: list[float]
    """For each kill: until a record was acknowledged by each partition that was led there."""


def waits(
    acks: Sequence[Ack], seen: Sequence[Seen], kills: Sequence[tuple[float, Sequence[int]]]
) -> Waits:
    """Return the waits; of each kill its time, and which partitions it hit."""
    after = []
    for killed_s, hit in kills:
        later = [ack for ack in acks if ack.sent_s >= killed_s]
        firsts = [
            min((ack.acked_s for ack in later if ack.partition == partition), default=killed_s)
            for partition in hit
        ]
        if firsts:
            after.append(max(firsts) - killed_s)
    times = sorted(each.at_s for each in seen)
    return Waits(
        max((ack.acked_s - ack.sent_s for ack in acks), default=0.0),
        max((late - early for early, late in pairwise(times)), default=0.0),
        after,
    )
