"""Whole, checked batches of one answer: what is wanted of them, and where they end."""

import pytest

from dlog.batch.decoding import bounds, read_records
from dlog.client.consuming.fetched_batches import FetchedBatches, Hole, scan
from dlog.errors import CorruptMessageError
from tests.fakes.batches import ABORT, COMMIT, batch, damaged, joined, marker


def offsets(chunk: FetchedBatches) -> list[int]:
    """Return the offsets of all records in a chunk."""
    views = chunk.views(len(chunk.batches))
    return [record.offset for record in read_records(views, bounds(0, None, None, None)).records]


def test_batches_follow_each_other() -> None:
    chunk, hole = scan(joined([batch(10), batch(13, leader_epoch=4)]), 10)
    assert hole is None
    assert offsets(chunk) == [10, 11, 12, 13, 14, 15]
    assert (chunk.end_offset, chunk.leader_epoch) == (16, 4)
    assert len(chunk.views(2)) == 1  # side by side: one piece


def test_an_answer_may_begin_in_a_batch_and_end_in_one() -> None:
    data = joined([batch(10), batch(13), batch(16)[:-1]])
    chunk, hole = scan(data, 12)
    assert hole is None
    assert [span.next_offset for span in chunk.batches] == [13, 16]
    chunk, _ = scan(data[:-70], 13)
    assert [span.next_offset for span in chunk.batches] == [16]


def test_control_batches_are_left_out_and_passed_over() -> None:
    chunk, _ = scan(joined([batch(0), marker(3, 7, COMMIT), batch(4), marker(7, 7, ABORT)]), 0)
    assert offsets(chunk) == [0, 1, 2, 4, 5, 6]
    assert chunk.end_offset == 8
    assert len(chunk.views(2)) == 2


def test_aborted_transactions_are_left_out_for_readers_of_committed_records() -> None:
    parts = [
        batch(0, producer_id=7, transactional=True),  # aborted at 9
        batch(3, producer_id=8, transactional=True),  # committed at 10
        batch(6, producer_id=7),  # of the same producer, but no part of the transaction
        marker(9, 7, ABORT),
        marker(10, 8, COMMIT),
        batch(11, producer_id=7, transactional=True),  # the next one, committed
    ]
    chunk, _ = scan(joined(parts), 0, aborted=[(7, 0)])
    assert offsets(chunk) == [3, 4, 5, 6, 7, 8, 11, 12, 13]
    assert chunk.end_offset == 14
    chunk, _ = scan(joined(parts), 0)
    assert offsets(chunk) == [*range(9), 11, 12, 13]


def test_a_transaction_that_is_aborted_later_is_not_dropped_before_its_first_offset() -> None:
    parts = [
        batch(0, producer_id=7, transactional=True),
        marker(3, 7, COMMIT),
        batch(4, producer_id=7, transactional=True),
        marker(7, 7, ABORT),
    ]
    chunk, _ = scan(joined(parts), 0, aborted=[(7, 4)])
    assert offsets(chunk) == [0, 1, 2]


def test_a_hole_ends_a_chunk_and_is_told_when_it_is_the_first_thing() -> None:
    parts = [batch(0), batch(5)]
    chunk, hole = scan(joined(parts), 0)
    assert hole is None
    assert (offsets(chunk), chunk.end_offset) == ([0, 1, 2], 3)
    chunk, hole = scan(joined(parts[1:]), 3)
    assert hole == Hole(3, 5)
    assert not chunk.batches
    chunk, hole = scan(joined(parts), 0, is_sparse=True)
    assert hole is None
    assert offsets(chunk) == [0, 1, 2, 5, 6, 7]


def test_damage_is_told_with_the_offset_and_never_hides_good_batches() -> None:
    good = batch(0)
    chunk, _ = scan(joined([good, damaged(batch(3))]), 0)
    assert (offsets(chunk), chunk.end_offset) == ([0, 1, 2], 3)
    with pytest.raises(CorruptMessageError, match="at 3 fails its CRC"):
        scan(joined([damaged(batch(3))]), 3)
    with pytest.raises(CorruptMessageError, match=r"is cut"):
        scan(joined([good[:-1]]), 0)
    with pytest.raises(CorruptMessageError, match=r"after offset 9: .*magic"):
        scan(memoryview(bytes(100)), 9)


def test_selection_takes_whole_batches_and_one_at_least() -> None:
    chunk, _ = scan(joined([batch(0, 4), batch(4, 4), batch(8, 4)]), 0)
    assert [chunk.select(count) for count in (1, 4, 5, 8, 11, 12, 99)] == [1, 1, 1, 2, 2, 3, 3]
    assert chunk.skip_to(4) == 0
    assert [chunk.select(count) for count in (1, 4, 8, 9)] == [2, 2, 3, 3]
    assert chunk.skip_to(4) == -1
    assert chunk.skip_to(5) == 0
    chunk.skip_to(99)
    assert chunk.is_spent
