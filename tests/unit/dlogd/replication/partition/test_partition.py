"""A led partition on a real log: refusals before the append, acknowledgements after it."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.batch.header import decode_header, patch_log_append_time
from dlog.batch.records import Record, encode
from dlog.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceNumberError,
    RecordTooLargeError,
    TransactionalIdAuthorizationFailedError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import LeaderEpoch
from dlogd.replication.partition.ack_queue import LOOK_S_MIN
from dlogd.replication.partition.leader_state import Leadership
from dlogd.replication.partition.partition import Partition
from tests.fakes.front import SETTINGS, Front, until
from tests.fakes.led_partition import Waiter, append, batch, check
from tests.fakes.logs import values_of


def changed(data: bytearray, position: int, value: bytes) -> bytearray:
    data[position : position + len(value)] = value
    return data


REFUSED: list[tuple[str, Callable[[], bytearray], type[WireError]]] = [
    ("checksum", lambda: changed(batch(), 64, b"?"), CorruptMessageError),
    ("empty", bytearray, CorruptMessageError),
    ("short", lambda: batch()[:60], CorruptMessageError),
    ("cut", lambda: batch()[:-1], InvalidRecordError),
    ("two batches", lambda: batch() + batch(), InvalidRecordError),
    ("old format", lambda: changed(batch(), 16, b"\1"), InvalidRecordError),
    ("no records", lambda: changed(batch(), 57, bytes(4)), InvalidRecordError),
    ("wrong last offset", lambda: changed(batch(), 23, b"\0\0\0\7"), InvalidRecordError),
    ("codec", lambda: changed(batch(), 21, b"\0\7"), InvalidRecordError),
    ("control", lambda: changed(batch(), 21, b"\0\x20"), InvalidRecordError),
    (
        "transaction",
        lambda: batch(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0),
        TransactionalIdAuthorizationFailedError,
    ),
    ("no sequence", lambda: batch(producer_id=1, producer_epoch=0), InvalidRecordError),
    ("too large", lambda: batch(bytes(1 << 20)), RecordTooLargeError),
]


@pytest.mark.parametrize(
    ("make", "error"), [each[1:] for each in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, make: Callable[[], bytearray], error: type[WireError]
) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        data = make()
        with pytest.raises(error):
            partition.append_as_leader(data, 0, len(data), -1)
        assert partition.log.log_end_offset == 0 and not len(partition.producers)
        assert append(partition, batch())[0] == 0

    check(scenario, tmp_path)


def test_acknowledgements_come_with_the_flush_once_for_each_owner(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        first, second = Waiter(), Waiter()
        for number in range(4):
            _, end, _ = append(partition, batch(count=2))
            partition.wait(end, -1, 5000, (first, second)[number % 2], number)
        assert partition.high_watermark == 0 and not first.settled
        assert partition.waiting_count == 4
        await partition.log.flush()
        assert partition.high_watermark == 8 and partition.waiting_count == 0
        assert first.settled == [(0, None), (2, None)]
        assert second.settled == [(1, None), (3, None)]
        assert first.drains == second.drains == 1

    check(scenario, tmp_path)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("timeout_ms", [0, 1, -1])
def test_no_time_out_ends_the_wait_for_the_own_flush(
    tmp_path: Path, acks: int, timeout_ms: int
) -> None:
    """The batch is written: an error would make its producer write the batch again."""

    async def scenario(front: Front, partition: Partition) -> None:
        await partition.log._flusher.freeze()
        waiter = Waiter()
        partition.wait(append(partition, batch(), acks)[1], acks, timeout_ms, waiter)
        loop = asyncio.get_running_loop()
        looked = loop.create_future()
        # After the look for late requests, which the same loop does.
        loop.call_later(3 * LOOK_S_MIN, looked.set_result, None)
        await looked
        assert not waiter.settled
        partition.log._flusher.thaw()
        await until(lambda: waiter.settled)
        assert waiter.settled == [(0, None)] and waiter.drains == 1

    check(scenario, tmp_path)


def test_a_repeated_batch_is_answered_by_its_first_place(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        def of(sequence: int, epoch: int = 0) -> bytearray:
            return batch(count=3, producer_id=9, producer_epoch=epoch, base_sequence=sequence)

        assert append(partition, of(0)) == (0, 3, -1)
        assert append(partition, of(3)) == (3, 6, -1)
        assert append(partition, of(0)) == (0, 3, -1)
        with pytest.raises(OutOfOrderSequenceNumberError):
            append(partition, of(9))
        assert append(partition, of(0, epoch=1)) == (6, 9, -1)
        with pytest.raises(InvalidProducerEpochError):
            append(partition, of(6))
        assert partition.log.log_end_offset == 9

    check(scenario, tmp_path)


def test_a_lack_of_memory_changes_nothing(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        await partition.log._flusher.freeze()
        data = batch(bytes(500_000))
        while partition.append_as_leader(data, 0, len(data), -1) is not None:
            pass
        end = partition.log.log_end_offset
        data = batch(bytes(500_000), producer_id=1, producer_epoch=0, base_sequence=0)
        assert partition.append_as_leader(data, 0, len(data), -1) is None
        assert not len(partition.producers) and partition.log.log_end_offset == end
        called: list[bool] = []
        partition.log.when_writable(lambda: called.append(True))
        partition.log._flusher.thaw()
        await until(lambda: called)
        assert partition.append_as_leader(data, 0, len(data), -1) == (end, end + 1, -1)

    check(scenario, tmp_path)


@pytest.mark.parametrize(
    ("acks", "floor", "refused"),
    [(-1, 0, True), (1, 0, False), (0, 0, False), (1, -1, True), (0, -1, True), (1, 1, False)],
)
def test_too_few_replicas_refuse_who_asks_for_all(
    tmp_path: Path, acks: int, floor: int, refused: bool
) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        partition.settings = dataclasses.replace(SETTINGS, acks_floor=floor)
        partition.lead(partition.leader_epoch, Leadership(min_isr=2))
        if not refused:
            assert append(partition, batch(), acks)[0] == 0
            return
        with pytest.raises(NotEnoughReplicasError):
            append(partition, batch(), acks)
        assert partition.log.log_end_offset == 0

    check(scenario, tmp_path)


def test_append_time_is_stamped_into_what_is_stored(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        partition.settings = dataclasses.replace(
            SETTINGS, stamps_append_time=True, timestamp_before_ms_max=0
        )
        data = batch()
        _, _, time_ms = append(partition, data)
        assert abs(time_ms - front.clock.timestamp_ms()) < 1000
        header = decode_header(data)
        assert header.is_log_append_time and header.max_timestamp_ms == time_ms
        await partition.log.flush()
        assert await values_of(partition.log) == [(0, b"x")]

    check(scenario, tmp_path)


@pytest.mark.parametrize(
    ("shift_ms", "refused"), [(-5000, True), (-500, False), (500, False), (5000, True)]
)
def test_timestamps_far_from_now_are_refused(tmp_path: Path, shift_ms: int, refused: bool) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        partition.settings = dataclasses.replace(
            SETTINGS, timestamp_before_ms_max=1000, timestamp_after_ms_max=1000
        )
        data = encode([Record(value=b"x", timestamp_ms=front.clock.timestamp_ms() + shift_ms)])
        if refused:
            with pytest.raises(InvalidTimestampError):
                append(partition, bytearray(data))
        else:
            append(partition, bytearray(data))

    check(scenario, tmp_path)


def test_a_producer_may_not_say_that_the_broker_has_stamped_its_records(tmp_path: Path) -> None:
    """Readers take such a timestamp for the leader's. Where the leader stamps, it is one."""

    async def scenario(front: Front, partition: Partition) -> None:
        data = encode([Record(value=b"x", timestamp_ms=front.clock.timestamp_ms())])
        patch_log_append_time(data, 0, len(data), front.clock.timestamp_ms())
        with pytest.raises(InvalidTimestampError, match="LogAppendTime"):
            append(partition, bytearray(data))
        assert partition.log.log_end_offset == 0
        partition.settings = dataclasses.replace(SETTINGS, stamps_append_time=True)
        append(partition, bytearray(data))

    check(scenario, tmp_path)


def test_leader_epochs_are_compared(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        for epoch in (-1, 3):
            partition.check_serving(epoch)
        with pytest.raises(FencedLeaderEpochError):
            partition.check_serving(2)
        with pytest.raises(UnknownLeaderEpochError):
            partition.check_serving(4)

    check(scenario, tmp_path)


@pytest.mark.parametrize("by", ["close", "failure"])
def test_who_waits_hears_of_the_end(tmp_path: Path, by: str) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        await partition.log._flusher.freeze()
        waiter = Waiter()
        partition.wait(append(partition, batch())[1], -1, 5000, waiter, 7)
        if by == "close":
            partition.close(UnknownTopicOrPartitionError("deleted"))
        else:
            partition.log.fail(OSError(5, "I/O error"))
        ((index, error),) = waiter.settled
        expected = UnknownTopicOrPartitionError if by == "close" else KafkaStorageError
        assert index == 7 and isinstance(error, expected) and waiter.drains == 1
        with pytest.raises(expected):
            append(partition, batch())
        with pytest.raises(expected):
            partition.check_serving()
        assert partition.high_watermark == 0

    check(scenario, tmp_path)


class Fetching:
    """A fetch that waits for more."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def on_data(self, number: int) -> None:
        self.calls.append(number)


def test_who_waits_hears_at_once_that_the_leadership_is_lost(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        await partition.log._flusher.freeze()
        waiter, fetching = Waiter(), Fetching()
        partition.wait(append(partition, batch())[1], -1, 60_000, waiter, 7)
        partition.fetches.add(fetching, 3)
        why = NotLeaderOrFollowerError("somebody else leads")
        partition.follow(LeaderEpoch(4), why)
        assert waiter.settled == [(7, why)] and waiter.drains == 1
        assert fetching.calls == [3]
        with pytest.raises(NotLeaderOrFollowerError):
            append(partition, batch())
        with pytest.raises(FencedLeaderEpochError):  # whoever has the old epoch asks for metadata
            partition.check_serving(3)
        with pytest.raises(NotLeaderOrFollowerError):
            partition.check_serving(4)
        partition.follow(LeaderEpoch(5), why)
        assert fetching.calls == [3]  # nothing is new for it
        partition.lead(LeaderEpoch(6))
        partition.check_serving(6)
        assert append(partition, batch())[0] == 1

    check(scenario, tmp_path)


def test_a_new_epoch_of_the_same_leader_ends_what_waits(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        await partition.log._flusher.freeze()
        waiter = Waiter()
        partition.wait(append(partition, batch())[1], -1, 60_000, waiter)
        partition.lead(LeaderEpoch(3))
        assert not waiter.settled  # the same epoch
        partition.lead(LeaderEpoch(4))
        assert isinstance(waiter.settled[0][1], NotLeaderOrFollowerError)

    check(scenario, tmp_path)


def test_nothing_is_acknowledged_after_the_lease(tmp_path: Path) -> None:
    class Lease:
        valid_until_us = 1 << 62

    async def scenario(front: Front, partition: Partition) -> None:
        lease = partition._acks.lease = Lease()
        waiter = Waiter()
        partition.wait(append(partition, batch())[1], -1, 60_000, waiter)
        lease.valid_until_us = front.clock.now_us()
        await partition.log.flush()
        assert isinstance(waiter.settled[0][1], NotLeaderOrFollowerError)
        partition.acknowledge(waiter, 5)
        assert waiter.settled[1][0] == 5
        assert isinstance(waiter.settled[1][1], NotLeaderOrFollowerError)
        lease.valid_until_us = 1 << 62
        partition.acknowledge(waiter, 6)
        assert waiter.settled[2] == (6, None)

    check(scenario, tmp_path)
