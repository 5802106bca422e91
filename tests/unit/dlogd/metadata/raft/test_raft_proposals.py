"""When a proposal may be sent again, and what a leader takes."""

from dlogd.metadata.raft import proposals
from dlogd.metadata.raft.entries import ITEMS_BYTES_MAX, Item, What
from dlogd.metadata.raft.proposals import Intake, Outbox
from dlogd.metadata.state.image import Applied, Outcome, Refused, Unknown


def _item(number: int, size: int = 16) -> Item:
    return Item(What.BARRIER, number.to_bytes(16, "big") + bytes(size - 16))


def _outbox(deadline_ms: int = 1_000_000) -> tuple[Outbox, list[Outcome]]:
    """Return an outbox with one proposal, and the list of what it was told."""
    outbox = Outbox()
    told: list[Outcome] = []
    outbox.add(_item(1), deadline_ms, told.append)
    return outbox, told


def test_in_a_new_term_nothing_is_sent_before_an_entry_of_it_is_applied() -> None:
    """An older copy may still be in the log of the new leader, not yet applied here."""
    outbox, _ = _outbox()
    assert outbox.due(term=3, applied_term=2, now_s=1.0) == [_item(1)]
    assert outbox.due(term=4, applied_term=3, now_s=9.0) == []
    assert outbox.due(term=4, applied_term=4, now_s=9.0) == [_item(1)]
    assert outbox.due(term=4, applied_term=4, now_s=9.1) == []


def test_within_a_term_it_is_sent_again_after_a_while_or_a_refusal() -> None:
    outbox, _ = _outbox()
    outbox.due(term=3, applied_term=3, now_s=1.0)
    assert outbox.due(term=3, applied_term=3, now_s=1.4) == []
    assert outbox.due(term=3, applied_term=3, now_s=1.6) == [_item(1)]
    outbox.refuse((_item(1),), term=3, now_s=1.6)
    assert outbox.due(term=3, applied_term=3, now_s=1.6) == []
    assert outbox.due(term=3, applied_term=3, now_s=1.66) == [_item(1)]
    outbox.refuse((_item(1),), term=2, now_s=1.66)
    assert outbox.due(term=3, applied_term=3, now_s=1.9) == []


def test_what_is_new_is_sent_at_once_and_each_in_its_own_time_again() -> None:
    outbox, _ = _outbox()
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == [_item(1)]
    outbox.add(_item(2), 1_000_000, lambda _: None)
    outbox.add(_item(3), 1_000_000, lambda _: None)
    outbox.settle(_item(3).key, Applied(version=1))
    assert outbox.due(term=3, applied_term=3, now_s=1.3) == [_item(2)]
    assert outbox.due(term=3, applied_term=3, now_s=1.6) == [_item(1)]
    assert outbox.due(term=3, applied_term=3, now_s=1.81) == [_item(2)]
    assert outbox.due(term=3, applied_term=3, now_s=2.0) == []
    assert outbox.due(term=3, applied_term=3, now_s=2.11) == [_item(1)]


def test_behind_a_snapshot_only_what_was_sent_is_unknown() -> None:
    outbox, told = _outbox()
    outbox.give_up_sent()
    assert not told
    outbox.due(term=3, applied_term=3, now_s=1.0)
    outbox.give_up_sent()
    assert [type(each) for each in told] == [Unknown]
    outbox.settle(_item(1).key, Applied(version=1))  # nobody waits any more
    assert len(told) == 1


def test_what_was_given_up_and_is_proposed_again_may_be_in_the_log() -> None:
    """Then it would be applied twice, when its outcome is remembered no longer."""
    outbox, told = _outbox(deadline_ms=100)
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == [_item(1)]
    outbox.expire(100)
    assert [type(each) for each in told] == [Unknown]
    outbox.add(_item(1), 1_000, told.append)
    outbox.add(_item(2), 1_000_000, told.append)
    assert outbox.due(term=4, applied_term=3, now_s=2.0) == [_item(2)]
    outbox.expire(1_000)
    outbox.add(_item(1), 1_000_000, told.append)
    assert outbox.due(term=4, applied_term=3, now_s=2.2) == []
    assert outbox.due(term=4, applied_term=4, now_s=4.0) == [_item(2), _item(1)]
    # Its copies are dead then, and it is as new as any other.
    outbox.settle(_item(1).key, Applied(version=1))
    outbox.add(_item(1), 1_000_000, told.append)
    assert outbox.due(term=4, applied_term=4, now_s=4.1) == [_item(1)]


def test_what_a_snapshot_may_hide_and_is_proposed_again_may_be_in_the_log() -> None:
    """The snapshot may end before it: then its copy comes yet."""
    outbox, told = _outbox()
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == [_item(1)]
    outbox.give_up_sent()
    outbox.add(_item(1), 1_000, told.append)
    assert outbox.due(term=4, applied_term=3, now_s=2.0) == []
    outbox.expire(1_000)
    # Never: it was not and will not be applied.
    assert [type(each) for each in told] == [Unknown, Unknown]
    outbox.add(_item(1), 1_000_000, told.append)
    assert outbox.due(term=4, applied_term=4, now_s=2.1) == [_item(1)]


def test_what_nobody_waits_for_is_withdrawn() -> None:
    outbox, told = _outbox()
    also: list[Outcome] = []
    outbox.add(_item(1), 1_000_000, also.append)
    outbox.due(term=3, applied_term=3, now_s=1.0)
    outbox.withdraw(_item(1).key, told.append)
    assert outbox.due(term=4, applied_term=4, now_s=2.0) == [_item(1)]
    outbox.withdraw(_item(1).key, also.append)
    assert not outbox.pending
    # In no later term, and not before the copy that was sent is dead.
    assert outbox.due(term=5, applied_term=5, now_s=3.0) == []
    outbox.settle(_item(1).key, Applied(version=1))
    outbox.withdraw(_item(1).key, also.append)
    assert (told, also) == ([], [])


def test_what_was_withdrawn_and_is_proposed_again_may_be_in_the_log() -> None:
    outbox, told = _outbox()
    outbox.due(term=3, applied_term=3, now_s=1.0)
    outbox.withdraw(_item(1).key, told.append)
    outbox.add(_item(1), 1_000, told.append)
    assert outbox.due(term=4, applied_term=3, now_s=2.0) == []
    outbox.expire(1_000)
    assert [type(each) for each in told] == [Unknown]


def test_what_is_withdrawn_before_it_was_sent_is_never_sent() -> None:
    outbox, told = _outbox()
    outbox.withdraw(_item(1).key, told.append)
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == []
    outbox.add(_item(1), 100, told.append)
    outbox.expire(100)
    assert [type(each) for each in told] == [Refused]


def test_within_a_term_what_was_given_up_is_taken_once() -> None:
    outbox, told = _outbox(deadline_ms=100)
    outbox.due(term=3, applied_term=3, now_s=1.0)
    outbox.expire(100)
    outbox.add(_item(1), 1_000_000, told.append)
    assert outbox.due(term=3, applied_term=3, now_s=1.1) == []
    assert outbox.due(term=3, applied_term=3, now_s=1.6) == [_item(1)]


def test_a_deadline_tells_whether_it_was_sent() -> None:
    outbox, told = _outbox(deadline_ms=100)
    outbox.expire(99)
    assert not told
    outbox.expire(100)
    assert [type(each) for each in told] == [Refused]
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == []
    outbox, told = _outbox(deadline_ms=100)
    outbox.due(term=3, applied_term=3, now_s=1.0)
    outbox.expire(100)
    assert [type(each) for each in told] == [Unknown]
    assert not outbox.pending


def test_without_a_leader_nothing_is_held_that_nobody_waits_for() -> None:
    outbox = Outbox()
    told: list[Outcome] = []
    for number in range(10_000):
        outbox.add(_item(number), 1, told.append)
    outbox.settle(_item(7).key, Applied(version=1))
    assert (len(outbox.pending), len(outbox._fresh)) == (9_999, 9_999)
    outbox.expire(2)
    assert len(told) == 10_000
    assert (len(outbox.pending), len(outbox._fresh)) == (0, 0)
    outbox.add(_item(1), 5, told.append)
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == [_item(1)]


def test_who_proposes_the_same_shares_what_was_sent_but_not_the_deadline() -> None:
    outbox, told = _outbox(deadline_ms=100)
    later: list[Outcome] = []
    outbox.add(_item(1), 200, later.append)
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == [_item(1)]
    outbox.expire(150)
    assert [type(each) for each in told] == [Unknown]
    assert not later
    outbox.settle(_item(1).key, Applied(version=1))
    assert later == [Applied(version=1)]
    assert len(told) == 1


def test_what_is_expected_is_never_sent() -> None:
    outbox = Outbox()
    outbox.expect(bytes(16), 1_000_000, lambda _: None)
    assert outbox.due(term=3, applied_term=3, now_s=1.0) == []
    assert outbox.due(term=4, applied_term=4, now_s=9.0) == []


def test_a_leader_takes_each_key_once_in_its_term() -> None:
    intake = Intake()
    intake.begin(3)
    assert intake.offer([_item(1), _item(2), _item(1)])
    assert intake.next_entry(0) == [_item(1), _item(2)]
    assert intake.offer([_item(2), _item(3)])
    intake.begin(3)
    assert intake.next_entry(0) == [_item(3)]
    intake.offer([_item(4)])
    intake.begin(5)
    assert intake.next_entry(0) == []
    assert intake.offer([_item(1)])
    assert intake.next_entry(0) == [_item(1)]


def test_what_waits_and_what_is_under_way_is_bounded() -> None:
    intake = Intake()
    intake.begin(1)
    many = [_item(number) for number in range(1, proposals.INTAKE_ITEMS_MAX + 1)]
    assert intake.offer(many)
    assert not intake.offer([_item(0)])
    for index in range(1, proposals.ENTRIES_IN_FLIGHT_MAX + 1):
        assert len(intake.next_entry(0)) == proposals.ENTRY_ITEMS_MAX
        intake.in_flight.append(index)
    assert intake.next_entry(0) == []
    assert intake.next_entry(1) != []


def test_a_large_item_goes_alone() -> None:
    intake = Intake()
    intake.begin(1)
    large = _item(1, size=ITEMS_BYTES_MAX + 1)
    key_of_large = Item(What.COMMAND, large.data)
    assert intake.offer([key_of_large, _item(2)])
    assert intake.next_entry(0) == [key_of_large]
    assert intake.next_entry(0) == [_item(2)]
