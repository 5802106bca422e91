"""When a proposal may be sent again, and what a leader takes."""

import asyncio
from collections.abc import Callable

from dlogd.metadata.image import Applied, Unknown
from dlogd.metadata.raft import proposals
from dlogd.metadata.raft.entries import ITEMS_BYTES_MAX, Item, What
from dlogd.metadata.raft.proposals import Intake, Outbox, Pending


def _item(number: int, size: int = 16) -> Item:
    return Item(What.BARRIER, number.to_bytes(16, "big") + bytes(size - 16))


def _with_pending(check: Callable[[Outbox, Pending], None]) -> None:
    async def scenario() -> None:
        outbox = Outbox()
        pending = Pending(_item(1), asyncio.get_running_loop().create_future())
        outbox.pending[_item(1).key] = pending
        check(outbox, pending)

    asyncio.run(scenario())


def test_in_a_new_term_nothing_is_sent_before_an_entry_of_it_is_applied() -> None:
    """An older copy may still be in the log of the new leader, not yet applied here."""

    def check(outbox: Outbox, _: Pending) -> None:
        assert outbox.due(term=3, applied_term=2, now_s=1.0) == [_item(1)]
        assert outbox.due(term=4, applied_term=3, now_s=9.0) == []
        assert outbox.due(term=4, applied_term=4, now_s=9.0) == [_item(1)]
        assert outbox.due(term=4, applied_term=4, now_s=9.1) == []

    _with_pending(check)


def test_within_a_term_it_is_sent_again_after_a_while_or_a_refusal() -> None:
    def check(outbox: Outbox, _: Pending) -> None:
        outbox.due(term=3, applied_term=3, now_s=1.0)
        assert outbox.due(term=3, applied_term=3, now_s=1.4) == []
        assert outbox.due(term=3, applied_term=3, now_s=1.6) == [_item(1)]
        outbox.refuse((_item(1),), term=3, now_s=1.6)
        assert outbox.due(term=3, applied_term=3, now_s=1.6) == []
        assert outbox.due(term=3, applied_term=3, now_s=1.66) == [_item(1)]
        outbox.refuse((_item(1),), term=2, now_s=1.66)
        assert outbox.due(term=3, applied_term=3, now_s=1.9) == []

    _with_pending(check)


def test_behind_a_snapshot_only_what_was_sent_is_unknown() -> None:
    def check(outbox: Outbox, pending: Pending) -> None:
        outbox.give_up_sent()
        assert not pending.settled.done()
        outbox.due(term=3, applied_term=3, now_s=1.0)
        outbox.give_up_sent()
        assert isinstance(pending.settled.result(), Unknown)
        outbox.settle(_item(1).key, Applied(version=1))  # nobody waits any more

    _with_pending(check)


def test_what_is_expected_is_never_sent() -> None:
    def check(outbox: Outbox, _: Pending) -> None:
        outbox.pending.clear()
        outbox.expect(bytes(16), asyncio.get_running_loop().create_future())
        assert outbox.due(term=3, applied_term=3, now_s=1.0) == []
        assert outbox.due(term=4, applied_term=4, now_s=9.0) == []

    _with_pending(check)


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
