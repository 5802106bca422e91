"""Judges of what the nodes' images said of partitions, and of acknowledgements beside it.

Pure: they take what `tests.cluster.image_journal` holds of all nodes, and return the breaches as
sentences, each beginning with its judge's name.

images-differ: two nodes have the same version otherwise. partition-epoch: it moved back, or did not
move with a change. epoch: a leader epoch moved back, or not with the leader. two-leaders: in one
epoch. isr: not among the replicas, or without the leader, or eligible at the same time.
min-isr: acknowledged by all while fewer than `min.insync.replicas` were in sync.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.cluster.image_journal import PartitionSeen
from tests.histories.history import LogKey, Outcome, Send

GRACE_S = 4.0
"""How long a leader may act by what was so before: its lease, and the drift of its clock."""

Name = tuple[str, int]  # topic id, partition


class Below(NamedTuple):
    """When acks=all could not be said of a log; `start_ns` is some time after it began."""

    start_ns: int
    end_ns: int


def by_partition(seen: Iterable[PartitionSeen]) -> dict[Name, list[PartitionSeen]]:
    """Return what was seen of each partition, by version, then by time."""
    found: dict[Name, list[PartitionSeen]] = {}
    for each in sorted(seen, key=lambda each: (each.version, each.at_ns)):
        found.setdefault((each.topic_id, each.partition), []).append(each)
    return found


def judge_images(partitions: Mapping[Name, Sequence[PartitionSeen]]) -> list[str]:
    """Return what must never be in any image, or become of one."""
    return [text for seen in partitions.values() for text in _judge_one(seen)]


def _judge_one(seen: Sequence[PartitionSeen]) -> Iterator[str]:
    leaders: dict[int, PartitionSeen] = {}
    before: PartitionSeen | None = None
    for each in seen:
        wrong = [*_within(each), *(_after(before, each) if before is not None else ())]
        if each.leader >= 0:
            other = leaders.setdefault(each.leader_epoch, each)
            if other.leader != each.leader:
                wrong.append(f"two-leaders: also {other.leader}, by node {other.node_id}'s image")
        yield from (f"{text}: {each}" for text in wrong)
        before = each


def _within(each: PartitionSeen) -> Iterator[str]:
    members = set(each.isr)
    if len(members) < len(each.isr) or not members <= set(each.replicas):
        yield "isr: no subset of the replicas"
    if each.leader >= 0 and each.leader not in members:
        yield "isr: without the leader"
    if not set(each.elr) <= set(each.replicas) - members:
        yield "isr: eligible and in sync, or no replica"


def _after(before: PartitionSeen, each: PartitionSeen) -> Iterator[str]:
    is_same = _state(before) == _state(each)
    if before.version == each.version:
        if not is_same:
            yield f"images-differ: from {before}"
        return
    if each.leader_epoch < before.leader_epoch:
        yield f"epoch: after {before.leader_epoch}"
    if each.leader != before.leader and each.leader_epoch == before.leader_epoch:
        yield f"epoch: the same as of leader {before.leader}"
    if each.partition_epoch < before.partition_epoch + (not is_same):
        yield f"partition-epoch: after {before}"


def _state(each: PartitionSeen) -> tuple[object, ...]:
    return each[6:13]


def below_minimum(seen: Sequence[PartitionSeen]) -> list[Below]:
    """Return when surely too few replicas of one partition were in sync to acknowledge.

    Who leads knows of a change at once or loses its lease, so what is asked for `GRACE_S` after
    the change, and answered before any node knows of the next one, is judged by it.
    """
    found: list[Below] = []
    since_ns: int | None = None
    for each in _first_seen(seen):
        settled = len(each.replicas) - len(each.adding)
        is_enough = each.leader >= 0 and len(each.isr) >= max(1, min(each.min_isr, settled))
        if is_enough and since_ns is not None:
            found.append(Below(since_ns, each.at_ns))
        if is_enough:
            since_ns = None
        elif since_ns is None:
            since_ns = each.at_ns + int(GRACE_S * 1e9)
    if since_ns is not None:
        found.append(Below(since_ns, 1 << 62))
    return [each for each in found if each.start_ns < each.end_ns]


def _first_seen(seen: Sequence[PartitionSeen]) -> Iterator[PartitionSeen]:
    """Give each state once, when the first node had it; nodes that start see old ones again."""
    firsts: dict[int, PartitionSeen] = {}
    for each in seen:
        known = firsts.get(each.version)
        if known is None or each.at_ns < known.at_ns:
            firsts[each.version] = each
    before: tuple[object, ...] | None = None
    for _, each in sorted(firsts.items()):
        state = (*_state(each), each.min_isr)
        if state != before:
            yield each
        before = state


class MinIsrJudge:
    """Holds acknowledgements against what was in sync. Life: `judge` once, then its counts."""

    def __init__(self, partitions: Mapping[Name, Sequence[PartitionSeen]]) -> None:
        self._below = {name: below_minimum(seen) for name, seen in partitions.items()}
        self.asked = 0
        """Records that were asked for, with acks=all, when nobody could acknowledge them."""

    def judge(self, sends: Iterable[Send]) -> list[str]:
        """Return the acknowledgements that nobody should have given."""
        found = []
        for send in sends:
            below = self._at(send.key, send.invoked_ns) if send.acks == -1 else None
            if below is None:
                continue
            self.asked += 1
            if send.outcome is Outcome.OK and send.completed_ns < below.end_ns:
                found.append(
                    f"min-isr: {send.numbers} of {send.client} acknowledged at offset"
                    f" {send.base_offset} log={send.key}"
                )
        return found

    def _at(self, key: LogKey, at_ns: int) -> Below | None:
        below = self._below.get((key.topic_id.hex, key.partition), [])
        place = bisect_left(below, at_ns, key=lambda each: each.end_ns)
        if place < len(below) and below[place].start_ns <= at_ns < below[place].end_ns:
            return below[place]
        return None
