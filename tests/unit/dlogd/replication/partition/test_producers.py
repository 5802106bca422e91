"""Idempotent producers of a partition, rule by rule."""

import pytest

from dlog.batch.header import BatchHeader
from dlog.errors import InvalidProducerEpochError, OutOfOrderSequenceNumberError
from dlogd.replication.partition.producer_state import (
    BATCHES_REMEMBERED,
    CorruptSnapshotError,
    ProducerStates,
)

LAST = 2**31 - 1
PID = 1000
PID_LOWEST = 1


def states(expiry_ms: int = 1000, producers_max: int = 10) -> ProducerStates:
    return ProducerStates(expiry_ms=expiry_ms, producers_max=producers_max)


def append(
    producers: ProducerStates,
    base_sequence: int,
    base_offset: int,
    count: int = 10,
    *,
    producer_id: int = PID,
    epoch: int = 0,
    now_ms: int = 0,
) -> tuple[int, int, int] | None:
    known = producers.check(producer_id, epoch, base_sequence, count)
    if known is None:
        last_offset = base_offset + count - 1
        producers.update(
            producer_id, epoch, base_sequence, count, base_offset, last_offset, -1, now_ms
        )
    return known


def test_sequences_follow_on() -> None:
    producers = states()
    assert append(producers, 0, 100) is None
    assert append(producers, 10, 110) is None
    for wrong in (21, 30, 15):
        with pytest.raises(OutOfOrderSequenceNumberError):
            append(producers, wrong, 120)
    assert append(producers, 20, 500) is None


def test_the_last_five_batches_are_recognised() -> None:
    producers = states()
    for number in range(7):
        assert append(producers, number * 10, 100 + number * 20) is None
    for number in range(2, 7):
        base_offset = 100 + number * 20
        assert append(producers, number * 10, 0) == (base_offset, base_offset + 9, -1)
    for number in (0, 1):
        with pytest.raises(OutOfOrderSequenceNumberError):
            append(producers, number * 10, 0)
    with pytest.raises(OutOfOrderSequenceNumberError):
        append(producers, 60, 0, count=9)


def test_sequences_wrap() -> None:
    producers = states()
    assert append(producers, LAST - 9, 0) is None
    assert append(producers, 0, 10) is None
    assert append(producers, LAST - 9, 0) == (0, 9, -1)
    producers = states()
    assert append(producers, LAST - 4, 0) is None
    assert append(producers, 5, 10) is None
    assert producers.describe()[0].last_sequence == 14
    producers = states()
    assert append(producers, LAST, 0, count=1) is None
    assert producers.describe()[0].last_sequence == LAST
    assert append(producers, 0, 1, count=1) is None


def test_older_epochs_are_fenced_and_newer_ones_begin_at_zero() -> None:
    producers = states()
    append(producers, 0, 0, epoch=3)
    for sequence in (0, 10):
        with pytest.raises(InvalidProducerEpochError):
            append(producers, sequence, 10, epoch=2)
    with pytest.raises(OutOfOrderSequenceNumberError):
        append(producers, 10, 10, epoch=4)
    assert append(producers, 0, 10, epoch=4) is None
    # The batches of the old epoch are not those of the new one.
    with pytest.raises(InvalidProducerEpochError):
        append(producers, 0, 10, epoch=3)
    assert append(producers, 0, 0, epoch=4) == (10, 19, -1)
    assert append(producers, 10, 20, epoch=4) is None


def test_an_unknown_producer_may_begin_anywhere() -> None:
    producers = states()
    assert append(producers, 777, 0, epoch=5) is None
    assert append(producers, 787, 10, epoch=5) is None


def test_a_refused_batch_changes_nothing() -> None:
    producers = states()
    append(producers, 0, 0)
    before = producers.encode(0)
    with pytest.raises(OutOfOrderSequenceNumberError):
        producers.check(PID, 0, 99, 1)
    assert producers.check(PID, 0, 10, 5) is None
    assert producers.check(PID, 1, 0, 5) is None
    assert producers.check(PID + 1, 0, 7, 5) is None
    assert producers.encode(0) == before


def test_expiry() -> None:
    producers = states(expiry_ms=1000)
    append(producers, 0, 0, producer_id=1, now_ms=5000)
    append(producers, 0, 10, producer_id=2, now_ms=5500)
    assert producers.expire(5999) == 0
    assert producers.expire(6000) == 1
    assert [each.producer_id for each in producers.describe()] == [2]


def test_a_clock_that_is_set_forward_lets_nobody_expire() -> None:
    producers = states(expiry_ms=1000)
    append(producers, 0, 0, producer_id=1, now_ms=5000)
    append(producers, 0, 10, producer_id=2, now_ms=5500)
    append(producers, 0, 20, producer_id=3, now_ms=5_600_000)  # by the new clock already
    producers.shift(5_594_400, 5_600_000)
    assert [each.last_seen_ms for each in producers.describe()] == [5_599_400, 5_599_900, 5_600_000]
    assert producers.expire(5_600_000) == 0
    assert producers.expire(5_600_400) == 1


def test_who_was_seen_last_before_a_stop_counts_from_the_start() -> None:
    producers = states(expiry_ms=1000)
    append(producers, 0, 0, producer_id=1, now_ms=5000)
    append(producers, 0, 10, producer_id=2, now_ms=5500)
    producers.count_from(90_000)
    assert [each.last_seen_ms for each in producers.describe()] == [89_500, 90_000]
    producers.count_from(80_000)  # a clock that was set back: nobody is older by that
    assert [each.last_seen_ms for each in producers.describe()] == [89_500, 90_000]
    states().count_from(1)


def test_the_longest_silent_make_room() -> None:
    producers = states(producers_max=20)
    for number in range(20):
        append(producers, 0, number, 1, producer_id=number, now_ms=100 + number)
    append(producers, 1, 50, 1, producer_id=0, now_ms=500)
    append(producers, 0, 51, 1, producer_id=99, now_ms=501)
    kept = [each.producer_id for each in producers.describe()]
    assert kept == [0, *range(3, 20), 99]
    producers.producers_max = 2
    append(producers, 0, 52, 1, producer_id=100, now_ms=502)
    assert [each.producer_id for each in producers.describe()] == [99, 100]
    assert append(producers, 0, 53, 1, producer_id=99, epoch=1, now_ms=503) is None
    assert len(producers) == 2


def header(
    base_sequence: int,
    base_offset: int,
    *,
    epoch: int = 0,
    producer_id: int = PID,
    attributes: int = 0,
    count: int = 10,
) -> BatchHeader:
    return BatchHeader(
        base_offset=base_offset,
        batch_bytes=100,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp_ms=5,
        max_timestamp_ms=7,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
        record_count=count,
    )


def test_replay_gives_what_the_appends_gave() -> None:
    appended, replayed = states(), states()
    for number in range(8):
        append(appended, number * 10, number * 15, now_ms=42)
        replayed.replay(header(number * 10, number * 15), 42)
    assert replayed.encode(200) == appended.encode(200)


def test_replay_leaves_out_what_is_not_idempotent_and_never_lowers_an_epoch() -> None:
    producers = states()
    producers.replay(header(0, 0, producer_id=-1, epoch=-1), 1)
    producers.replay(header(-1, 1, attributes=0x20), 1)
    assert len(producers) == 0
    producers.replay(header(0, 0, epoch=2), 1)
    producers.replay(header(0, 10, epoch=1), 1)
    assert producers.describe()[0].epoch == 2
    producers.replay(header(10, 20, epoch=2, attributes=0x08), 1)
    assert producers.check(PID, 2, 10, 10) == (20, 29, 7)
    # Seen at the time of the rebuild, however old the records are.
    assert producers.expire(1000) == 0


def test_replay_makes_room_by_the_order_of_the_log() -> None:
    """All of it is seen at once: the id says nothing of who was silent for longest."""
    producers = states(producers_max=10)
    for number, producer_id in enumerate((*range(20, 29), PID_LOWEST, 30)):
        producers.replay(header(0, number * 10, producer_id=producer_id), 42)
    known = [each.producer_id for each in producers.describe()]
    assert known == [PID_LOWEST, *range(21, 29), 30]


def test_snapshots_read_back() -> None:
    producers = states()
    for number in range(BATCHES_REMEMBERED + 1):
        append(producers, number * 10, number * 10, now_ms=number)
    append(producers, LAST, 99, 1, producer_id=2**62, epoch=32767, now_ms=2**50)
    data = producers.encode(12345)
    again = states()
    append(again, 0, 0, producer_id=7)
    assert again.load(data) == 12345
    assert again.encode(12345) == data
    assert append(again, 20, 0) == (20, 29, -1)
    again.clear()
    assert again.load(again.encode(0)) == 0
    assert len(again) == 0


def test_no_other_bytes_are_a_snapshot() -> None:
    producers = states()
    append(producers, 0, 0)
    data = producers.encode(10)
    for length in range(len(data)):
        with pytest.raises(CorruptSnapshotError):
            producers.load(data[:length])
    for position in range(len(data)):
        wrong = bytearray(data)
        wrong[position] ^= 0x10
        with pytest.raises(CorruptSnapshotError):
            producers.load(bytes(wrong))
    with pytest.raises(CorruptSnapshotError):
        producers.load(data + b"\0")
    assert producers.encode(10) == data
