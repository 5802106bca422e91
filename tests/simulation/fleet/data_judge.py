"""Judges of what clients of a cluster did and heard, by Jepsen's names; pure.

Most are those of one node (`tests.histories.checkers`). Here a log may lose what only its leader
had acknowledged when the leadership changes, and anything where the history excuses it.
"""

from collections.abc import Callable, Iterable, Iterator

from dlog.client.gaps import GapReason
from tests.histories import checkers
from tests.histories.history import LogKey, Outcome, Send
from tests.simulation.fleet.data_clients import Life
from tests.simulation.fleet.data_history import EndSeen, FleetHistory

LEADER, ALL = 1, -1
TRIMS_OUTLIVE_LEADERS = True
"""Whether DeleteRecords waits for followers."""


class FleetView(checkers._View):
    """A history, sorted into logs; a deposed leader may go on for `stale_ns`."""

    history: FleetHistory

    def __init__(self, history: FleetHistory, stale_ns: int) -> None:
        super().__init__(history)
        self.stale_ns = stale_ns

    def acknowledged(self, key: LogKey) -> list[Send]:
        return [send for send in self.sends.get(key, ()) if self._is_promised(send)]

    def _is_promised(self, send: Send) -> bool:
        if send.outcome is not Outcome.OK:
            return False
        if send.acks == ALL:
            return True
        since_ns = send.invoked_ns - self.stale_ns
        return send.acks == LEADER and not self.history.led_anew_since(send.key, since_ns)


def judge(history: FleetHistory, stale_ns: int, lives: Iterable[Life]) -> list[str]:
    """Return everything that is wrong with a history."""
    lives = list(lives)
    _settle_lives(history, lives, stale_ns)
    view = FleetView(history, stale_ns)
    found = list(history.violations)
    for key in history.log_keys():
        for checker in CHECKERS:
            found += [f"{text} log={key}" for text in checker(view, key)]
    return found


def _settle_lives(history: FleetHistory, lives: list[Life], stale_ns: int) -> None:
    """What was sent while a topic's life was in doubt may have gone to another one: take it out.

    So may what was sent to a name just after it was given anew: the leader of the life before, and
    a producer that knows that one only, need not have heard of it for as long as images lag.
    """
    names = {life.name for life in lives if life.churns}
    deleting = {life.topic_id: life.deleting_ns for life in lives}
    sure_ns = {life.topic_id: life.created_ns + stale_ns for life in lives}
    for name in names:
        first = next(life for life in lives if life.name == name)
        sure_ns[first.topic_id] = 0
    for send in history.sends:
        if send.key.topic not in names:
            continue
        end_ns = send.completed_ns or 1 << 62
        key = send.key.topic_id
        in_doubt = end_ns >= deleting[key] or send.invoked_ns < sure_ns[key]
        if in_doubt and send.outcome is Outcome.OK:
            send.outcome = Outcome.UNKNOWN


def _phantoms(view: FleetView, key: LogKey) -> Iterator[str]:
    """Find records that nobody sent to that topic, or that were refused, or resurrected."""
    final = view.history.finals.get(key)
    there = {seen.number: seen.offset for seen in final.records} if final else {}
    for poll in view.polls.get(key, ()):
        there.update({seen.number: seen.offset for seen in poll.records})
    for number, offset in there.items():
        send = view.send_of.get(number)
        if send is None:
            yield f"phantom: record {number} at offset {offset} was never sent"
        elif (send.key.topic, send.key.partition) != (key.topic.partition("@")[0], key.partition):
            yield f"phantom: record {number} at offset {offset} was sent to {send.key}"
        elif send.outcome is Outcome.REFUSED:
            yield f"phantom: record {number} at offset {offset} was refused: {send.error}"
        elif final is not None and send.key != key and _ended_before(view, send, key):
            yield f"resurrected: record {number} at offset {offset} is of an earlier {send.key}"


def _ended_before(view: FleetView, send: Send, key: LogKey) -> bool:
    """Whether a record was over before the first one was sent to this life of its topic."""
    first_ns = min((each.invoked_ns for each in view.sends.get(key, ())), default=0)
    return 0 < send.completed_ns < first_ns and send.outcome is Outcome.OK


def _trims(view: FleetView, key: LogKey) -> Iterator[str]:
    """What was deleted stays so, and nothing else goes."""
    trims = [trim for trim in view.history.trims if trim.key == key]
    final = view.history.finals.get(key)
    for trim in trims:
        low, done_ns = trim.low_watermark, trim.completed_ns
        if view.history.cut_between(key, trim.invoked_ns, 1 << 62):
            continue
        if not TRIMS_OUTLIVE_LEADERS and view.history.led_anew_since(key, trim.invoked_ns):
            continue
        if final is not None and final.log_start_offset < low:
            yield f"resurrected: the log starts at {final.log_start_offset}, trimmed to {low}"
        for poll in view.polls.get(key, ()):
            # Who began before may have had the records at hand.
            if view.history.begun_ns[poll.client] > done_ns and poll.records[0].offset < low:
                offset = poll.records[0].offset
                yield f"resurrected: {poll.client} got offset {offset} after a trim to {low}"
    is_cut = view.history.cut_between(key, 0, 1 << 62)
    if final is not None and not is_cut and not view.history.facts_of(key).retention:
        asked = max((max(trim.offset, trim.low_watermark) for trim in trims), default=0)
        if final.log_start_offset > asked:
            yield f"vanished: the log starts at {final.log_start_offset}, trimmed to {asked}"


def _gaps(view: FleetView, key: LogKey) -> Iterator[str]:
    facts = view.history.facts_of(key)
    trimmed = facts.retention or any(trim.key == key for trim in view.history.trims)
    for seen in view.history.gaps:
        if seen.key != key or view.history.cut_between(key, 0, seen.when_ns):
            continue
        if seen.gap.reason is GapReason.RETENTION and trimmed:
            continue
        if seen.key.topic.partition("@")[1]:
            continue  # of a topic that churns
        yield f"gap: {seen.gap} for {seen.client}"


def _ends_in_order(view: FleetView, key: LogKey) -> Iterator[str]:
    """Where a log ends never goes back, behind no acknowledgement and no record that was read."""
    told = [(end.completed_ns, end.offset, end.client) for end in _ends(view, key)]
    told += [
        (send.completed_ns, send.base_offset + 1, f"acks of {send.client}")
        for send in view.acknowledged(key)
        if send.acks == ALL and send.base_offset >= 0
    ]
    told += [
        (poll.completed_ns, poll.records[-1].offset + 1, poll.client)
        for poll in view.polls.get(key, ())
    ]
    told.sort()
    for end in _ends(view, key):
        for completed_ns, offset, who in told:
            slack_ns = 0 if who == end.client else view.stale_ns
            if completed_ns + slack_ns >= end.invoked_ns:
                if completed_ns >= end.invoked_ns:
                    break
                continue
            if offset > end.offset and not view.history.cut_between(key, 0, end.completed_ns):
                yield f"watermark: {end.offset} for {end.client} after {offset} for {who}"
                return


def _ends(view: FleetView, key: LogKey) -> list[EndSeen]:
    return [end for end in view.history.ends if end.key == key]


def _duplicates(view: FleetView, key: LogKey) -> Iterator[str]:
    """What is written again after a node has said that it forgot producers may be there twice."""
    if not _may_repeat(view, key):
        yield from checkers._duplicates(view, key)


def _session_order(view: FleetView, key: LogKey) -> Iterator[str]:
    """The first ones of what is there twice are in order (seed 200785)."""
    yield from checkers._session_order(view, key, may_repeat=_may_repeat(view, key))


def _may_repeat(view: FleetView, key: LogKey) -> bool:
    return (key.topic_id, key.partition) in view.history.forgetful


CHECKERS: tuple[Callable[[FleetView, LogKey], Iterator[str]], ...] = (
    checkers._lost_writes,
    checkers._lost_reads,
    checkers._inconsistent_offsets,
    _duplicates,
    _phantoms,
    checkers._nonmonotonic_sends,
    _session_order,
    checkers._polls_in_order,
    checkers._unseen,
    _trims,
    checkers._final_is_whole,
    _gaps,
    _ends_in_order,
)
