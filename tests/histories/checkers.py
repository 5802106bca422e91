"""Judges of a history, by the names that Jepsen gives them where it has the same.

Pure: `check(history)` returns the violations as sentences, each beginning with the checker's name.

lost-write: acknowledged, and not there. lost-read: given to a consumer, and not there any more.
inconsistent-offsets: two records at one offset. duplicate: one record twice. phantom: a record that
nobody sent there, or that was refused. torn-batch: a part of a batch. nonmonotonic-send: the later
call got the lower offset. nonmonotonic-poll, poll-skip: a consumer was led back, or past a record.
unseen: not given to a consumer that has read to the end. resurrected: below an acknowledged
DeleteRecords. vanished: below the log start although nobody asked for it. watermark: the high
watermark moved back, or was behind an acknowledged record, or beyond the end. epoch: a leader epoch
moved back. offsets-chain. timestamp: a search by time found the wrong record. early: deleted by
time before it was due.

Under a weak flush policy a power cut may take the end of a log, and only the end.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.histories.history import History, LogKey, Outcome, Send
from tests.histories.offset_checkers import (
    early_deletions,
    epochs,
    times,
    trims,
    watermarks,
    watermarks_of_clients,
)
from tests.histories.view import View as _View


def check(history: History) -> list[str]:
    """Return everything that is wrong with a history."""
    violations = list(history.violations)
    view = _View(history)
    for key in history.log_keys():
        damaged = history.facts_of(key).damaged
        for checker in DAMAGED_CHECKERS if damaged else CHECKERS:
            violations.extend(f"{text} log={key}" for text in checker(view, key))
    return violations


def _lost_writes(view: _View, key: LogKey) -> Iterator[str]:
    final = view.final(key)
    if final is None:
        return
    at = {seen.offset: seen.number for seen in final.records}
    there = {seen.number for seen in final.records}
    for send in view.acknowledged(key):
        if send.base_offset < 0:
            # The broker knew it as a duplicate and no longer where: all that can be asked is that
            # it is there, or may have been trimmed.
            missing = [number for number in send.numbers if number not in there]
            if missing and not final.log_start_offset and not _may_be_lost(view, send):
                yield f"lost-write: {send.numbers} acknowledged to {send.client} as duplicates"
            continue
        for index, number in enumerate(send.numbers):
            offset = send.base_offset + index
            if offset < final.log_start_offset or at.get(offset) == number:
                continue
            if not _may_be_lost(view, send):
                yield (
                    f"lost-write: record {number} of {send.client} acks={send.acks} acknowledged"
                    f" at offset {offset}, where now is {at.get(offset)}"
                )


def _may_be_lost(view: _View, send: Send) -> bool:
    return view.history.cut_between(send.key, send.invoked_ns, 1 << 62)


def _lost_not_the_end(view: _View, key: LogKey) -> Iterator[str]:
    """Check that what a power cut took from a weak log was its end."""
    final = view.final(key)
    if final is None or view.history.facts_of(key).flush_policy == "always":
        return
    at = {seen.offset: seen.number for seen in final.records}
    cuts_ns = [0, *view.history.power_cuts_ns, 1 << 62]
    for start_ns, end_ns in pairwise(cuts_ns):
        lost_from, kept_to = 1 << 62, -1
        for send in view.acknowledged(key):
            if not start_ns <= send.invoked_ns <= send.completed_ns < end_ns:
                continue
            if send.base_offset < max(0, final.log_start_offset):
                continue
            if at.get(send.base_offset) == send.numbers[0]:
                kept_to = max(kept_to, send.base_offset)
            else:
                lost_from = min(lost_from, send.base_offset)
        if lost_from < kept_to:
            yield f"lost-write: offset {lost_from} is lost, the later {kept_to} is not"


def _lost_reads(view: _View, key: LogKey) -> Iterator[str]:
    final = view.final(key)
    if final is None:
        return
    at = {seen.offset: seen.number for seen in final.records}
    for poll in view.polls.get(key, ()):
        if view.history.cut_between(key, poll.invoked_ns, 1 << 62):
            continue
        for seen in poll.records:
            if seen.offset >= final.log_start_offset and at.get(seen.offset) != seen.number:
                yield (
                    f"lost-read: {poll.client} was given record {seen.number} at offset"
                    f" {seen.offset}, where now is {at.get(seen.offset)}"
                )


class _Claim(NamedTuple):
    """Somebody was told at some time within a call which record is at an offset."""

    start_ns: int
    end_ns: int
    offset: int
    number: int
    who: str


def _inconsistent_offsets(view: _View, key: LogKey) -> Iterator[str]:
    claims: dict[int, _Claim] = {}
    for claim in sorted(_claims(view, key)):
        known = claims.get(claim.offset)
        claims[claim.offset] = claim
        if known is None or known.number == claim.number:
            continue
        end_ns = max(known.end_ns, claim.end_ns)
        if not view.history.cut_between(key, known.start_ns, end_ns):
            yield (
                f"inconsistent-offsets: offset {claim.offset} is {known.number} for {known.who}"
                f" and {claim.number} for {claim.who}"
            )


def _claims(view: _View, key: LogKey) -> Iterator[_Claim]:
    for send in view.acknowledged(key):
        start_ns, end_ns, who = send.invoked_ns, send.completed_ns, send.client
        if send.base_offset >= 0:
            for index, number in enumerate(send.numbers):
                yield _Claim(start_ns, end_ns, send.base_offset + index, number, who)
    for poll in view.polls.get(key, ()):
        start_ns, end_ns, who = poll.invoked_ns, poll.completed_ns, poll.client
        for seen in poll.records:
            yield _Claim(start_ns, end_ns, seen.offset, seen.number, who)
    final = view.history.finals.get(key)
    if final is not None:
        for seen in final.records:
            yield _Claim(1 << 61, 1 << 61, seen.offset, seen.number, "the end")


def _duplicates(view: _View, key: LogKey) -> Iterator[str]:
    final = view.history.finals.get(key)
    if final is None:
        return
    places: dict[int, int] = {}
    for seen in final.records:
        if seen.number in places:
            send = view.send_of.get(seen.number)
            if send is not None and (send.session is not None or send.attempts <= 1):
                yield (
                    f"duplicate: record {seen.number} of {send.client} at offsets"
                    f" {places[seen.number]} and {seen.offset}"
                )
        places[seen.number] = seen.offset


def _phantoms(view: _View, key: LogKey) -> Iterator[str]:
    final = view.history.finals.get(key)
    seen_numbers = {seen.number: seen.offset for seen in final.records} if final else {}
    for poll in view.polls.get(key, ()):
        seen_numbers.update({seen.number: seen.offset for seen in poll.records})
    for number, offset in seen_numbers.items():
        send = view.send_of.get(number)
        if send is None:
            yield f"phantom: record {number} at offset {offset} was never sent"
        elif send.key != key:
            yield f"phantom: record {number} at offset {offset} was sent to {send.key}"
        elif send.outcome is Outcome.REFUSED:
            yield f"phantom: record {number} at offset {offset} was refused: {send.error}"


def _torn_batches(view: _View, key: LogKey) -> Iterator[str]:
    final = view.final(key)
    if final is None:
        return
    numbers = [seen.number for seen in final.records]
    position = 0
    # The first batch may be cut by the log start in its middle.
    first = view.send_of.get(numbers[0]) if numbers else None
    while first is not None and position < len(numbers) and numbers[position] in first.numbers:
        position += 1
    while position < len(numbers):
        send = view.send_of.get(numbers[position])
        count = len(send.numbers) if send is not None else 1
        if send is not None and numbers[position : position + count] != list(send.numbers):
            offset = final.records[position].offset
            yield f"torn-batch: a part of {send.numbers} of {send.client} at offset {offset}"
            return
        position += count


def _nonmonotonic_sends(view: _View, key: LogKey) -> Iterator[str]:
    sends = [send for send in view.acknowledged(key) if send.base_offset >= 0]
    by_completion = sorted(sends, key=lambda send: send.completed_ns)
    done, best = 0, None
    for send in sorted(sends, key=lambda send: send.invoked_ns):
        while done < len(by_completion) and by_completion[done].completed_ns < send.invoked_ns:
            candidate = by_completion[done]
            if best is None or candidate.base_offset > best.base_offset:
                best = candidate
            done += 1
        if best is None or best.base_offset < send.base_offset:
            continue
        if not view.history.cut_between(key, best.invoked_ns, send.completed_ns):
            yield (
                f"nonmonotonic-send: {send.client} got offset {send.base_offset} after"
                f" {best.client} had got {best.base_offset}"
            )


def _session_order(view: _View, key: LogKey, *, may_repeat: bool = False) -> Iterator[str]:
    """`may_repeat`: a record may be there twice, and its place is the first one."""
    final = view.history.finals.get(key)
    if final is None:
        return
    last: dict[tuple[int, int], tuple[int, int]] = {}
    met: set[int] = set()
    for seen in final.records:
        if may_repeat and seen.number in met:
            continue
        met.add(seen.number)
        send = view.send_of.get(seen.number)
        if send is None or send.session is None:
            continue
        producer = send.session[:2]
        before = last.get(producer)
        if before is not None and seen.number < before[0]:
            yield (
                f"nonmonotonic-send: record {seen.number} of the idempotent {send.client} at"
                f" offset {seen.offset} after its record {before[0]}"
            )
        last[producer] = (seen.number, seen.offset)


def _polls_in_order(view: _View, key: LogKey) -> Iterator[str]:
    ends: dict[str, tuple[int, int]] = {}
    for poll in view.polls.get(key, ()):
        offsets = [seen.offset for seen in poll.records]
        if not offsets:
            continue
        for before, after in pairwise(offsets):
            if after <= before:
                yield f"nonmonotonic-poll: {poll.client} got offset {after} after {before}"
            elif after != before + 1:
                yield f"poll-skip: {poll.client} got offset {after} after {before}"
        if not poll.tailing:
            continue
        end, when_ns = ends.get(poll.client, (offsets[0], 0))
        first = next((offset for offset in offsets if offset >= poll.fetch_offset), None)
        ends[poll.client] = (offsets[-1] + 1, poll.invoked_ns)
        if view.history.cut_between(key, when_ns, poll.completed_ns):
            continue
        if first is not None and first < end:
            yield f"nonmonotonic-poll: {poll.client} got offset {first} after {end - 1}"
        elif first is not None and first > max(end, poll.log_start_offset):
            yield f"poll-skip: {poll.client} got offset {first} after {end - 1}"


def _unseen(view: _View, key: LogKey) -> Iterator[str]:
    final = view.final(key)
    if final is None:
        return
    for follower in view.history.followers:
        if follower.key != key:
            continue
        polls = [poll for poll in view.polls.get(key, ()) if poll.client == follower.client]
        given = {seen.offset for poll in polls for seen in poll.records}
        missed = [
            seen.offset
            for seen in final.records
            if seen.offset >= follower.start_offset and seen.offset not in given
        ]
        if missed:
            yield f"unseen: {follower.client} was never given {len(missed)}: {missed[:5]}"


def _final_is_whole(view: _View, key: LogKey) -> Iterator[str]:
    final = view.final(key)
    if final is None:
        return
    expected = list(range(final.log_start_offset, final.high_watermark))
    got = [seen.offset for seen in final.records if seen.offset >= final.log_start_offset]
    if got != expected:
        missing = sorted(set(expected) - set(got))[:5]
        yield f"poll-skip: the end misses offsets {missing} of {expected[:1]}..{expected[-1:]}"


Checker = Callable[[_View, LogKey], Iterator[str]]

CHECKERS: tuple[Checker, ...] = (
    _lost_writes,
    _lost_not_the_end,
    _lost_reads,
    _inconsistent_offsets,
    _duplicates,
    _phantoms,
    _torn_batches,
    _nonmonotonic_sends,
    _session_order,
    _polls_in_order,
    _unseen,
    watermarks,
    watermarks_of_clients,
    trims,
    early_deletions,
    epochs,
    times,
    _final_is_whole,
)

# A flipped bit may cost records, but nobody may be given wrong ones.
DAMAGED_CHECKERS: tuple[Checker, ...] = (_phantoms, epochs)
