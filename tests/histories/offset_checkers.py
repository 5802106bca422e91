"""Judges of the offsets, epochs and times that clients were told: high watermark, log start, ends.

`tests.histories.checkers` says what their names mean, and calls them.
"""

from collections.abc import Iterator

from tests.histories.history import History, LogKey, Seen, TimeSeen
from tests.histories.view import View

AGE_MS_MAX = 60
"""So old at most are records when they are sent."""


def watermarks(view: View, key: LogKey) -> Iterator[str]:
    polls = [poll for poll in view.polls.get(key, ()) if poll.high_watermark >= 0]
    told: list[tuple[int, int, str]] = [
        (poll.completed_ns, poll.high_watermark, poll.client) for poll in polls
    ]
    told += [
        (send.completed_ns, send.base_offset + len(send.numbers), f"acks of {send.client}")
        for send in view.acknowledged(key)
        if send.acks == -1 and send.base_offset >= 0
    ]
    told += [
        (each.at_ns, each.high_watermark, each.client)
        for each in view.history.watermarks
        if each.key == key
    ]
    told.sort()
    best: tuple[int, int, str] | None = None
    done = 0
    for poll in sorted(polls, key=lambda poll: poll.invoked_ns):
        if not 0 <= poll.log_start_offset <= poll.high_watermark:
            yield (
                f"offsets-chain: log start {poll.log_start_offset}, high watermark"
                f" {poll.high_watermark} for {poll.client}"
            )
        while done < len(told) and told[done][0] < poll.invoked_ns:
            if best is None or told[done][1] > best[1]:
                best = told[done]
            done += 1
        if best is None or poll.high_watermark >= best[1]:
            continue
        if not view.history.cut_between(key, 0, poll.completed_ns):
            yield (
                f"watermark: {poll.high_watermark} for {poll.client} after {best[1]} for {best[2]}"
            )


def watermarks_of_clients(view: View, key: LogKey) -> Iterator[str]:
    """Judge that what clients knew to be committed is there; `watermarks` asks for it meanwhile."""
    final = view.final(key)
    for each in view.history.watermarks if final is not None else ():
        if each.key != key or view.history.cut_between(key, each.at_ns, 1 << 62):
            continue
        if final is not None and each.high_watermark > final.high_watermark:
            yield (
                f"watermark: {each.client} knew {each.high_watermark}, the end is"
                f" {final.high_watermark}"
            )


def watermarks_fallen_back(history: History) -> int:
    """Count how often a client was told less than before. No breach: see `WatermarkTold`."""
    best: dict[tuple[str, LogKey], int] = {}
    count = 0
    for each in history.watermarks:
        known = best.get((each.client, each.key), -1)
        count += each.high_watermark < known
        best[each.client, each.key] = each.high_watermark
    return count


def trims(view: View, key: LogKey) -> Iterator[str]:
    trims = [trim for trim in view.history.trims if trim.key == key]
    facts = view.history.facts_of(key)
    polls = view.polls.get(key, ())
    for trim in trims:
        for poll in polls:
            early = [seen for seen in poll.records if seen.offset >= poll.fetch_offset]
            if poll.invoked_ns > trim.completed_ns and early and trim.low_watermark > 0:
                if early[0].offset >= trim.low_watermark:
                    continue
                if not view.history.cut_between(key, trim.invoked_ns, poll.completed_ns):
                    yield (
                        f"resurrected: {poll.client} got offset {early[0].offset} after a trim"
                        f" to {trim.low_watermark}"
                    )
    final = view.final(key)
    if final is not None and not facts.retention:
        asked = max((trim.offset for trim in trims), default=0)
        told = max((trim.low_watermark for trim in trims), default=0)
        if final.log_start_offset > max(asked, told):
            yield f"vanished: the log starts at {final.log_start_offset}, trimmed to {asked}"


def epochs(view: View, key: LogKey) -> Iterator[str]:
    seen = [item for item in view.history.epochs if item.key == key]
    for before in seen:
        for after in seen:
            if after.invoked_ns > before.completed_ns and after.leader_epoch < before.leader_epoch:
                yield f"epoch: {after.leader_epoch} after {before.leader_epoch}"
                return


def times(view: View, key: LogKey) -> Iterator[str]:
    final = view.final(key)
    for answer in view.history.times if final is not None else ():
        if answer.key != key or view.history.cut_between(key, answer.invoked_ns, 1 << 62):
            continue
        for seen in final.records if final is not None else ():
            if answer.offset < 0:
                wrong = seen.timestamp_ms >= answer.asked_ms and _is_older(view, seen, answer)
            elif seen.offset == answer.offset:
                wrong = not answer.asked_ms <= answer.timestamp_ms == seen.timestamp_ms
            else:
                wrong = seen.offset < answer.offset and seen.timestamp_ms >= answer.asked_ms
            if wrong:
                yield (
                    f"timestamp: {answer.asked_ms} is found at {answer.offset}"
                    f" ({answer.timestamp_ms}), but {seen.timestamp_ms} is at {seen.offset}"
                )
                return


def _is_older(view: View, seen: Seen, answer: TimeSeen) -> bool:
    """Return whether a record was acknowledged before a time was asked for."""
    send = view.send_of.get(seen.number)
    is_kept = send is not None and send in view.acknowledged(answer.key)
    return is_kept and send is not None and send.completed_ns < answer.invoked_ns


def early_deletions(view: View, key: LogKey) -> Iterator[str]:
    """Judge that retention by time deletes no acknowledged record before the record is due."""
    kept_ms = view.history.facts_of(key).kept_ms
    trims = [trim.offset for trim in view.history.trims if trim.key == key]
    if kept_ms < 0 or view.history.cut_between(key, 0, 1 << 62) or min(trims, default=0) < 0:
        return
    polls = sorted(view.polls.get(key, ()), key=lambda poll: poll.completed_ns)
    for send in view.acknowledged(key):
        due_ns = send.invoked_ns + (kept_ms - AGE_MS_MAX) * 1_000_000
        for poll in polls:
            if poll.completed_ns >= due_ns or send.base_offset < max(trims, default=0):
                break
            if poll.log_start_offset > send.base_offset >= 0:
                yield (
                    f"early: offset {send.base_offset} of {send.client} was deleted before it was"
                    f" {kept_ms} ms old"
                )
                return
