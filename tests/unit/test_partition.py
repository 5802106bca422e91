"""What a leader refuses before the append, and when it acknowledges after it."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from dlog.batch.header import decode_header
from dlog.batch.records import Record, encode
from dlog.checksum import crc32c
from dlog.compression import Codec
from dlog.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaStorageError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceNumberError,
    RecordTooLargeError,
    RequestTimedOutError,
    UnknownLeaderEpochError,
    WireError,
)
from dlog.types import LeaderEpoch, PartitionId, TopicPartition
from dlogd.replication.partition import Partition, PartitionSettings
from dlogd.replication.producers import ProducerStates

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


class FakeClock:
    def now_ms(self) -> int:
        return 1

    def now_us(self) -> int:
        return 1

    def timestamp_ms(self) -> int:
        return NOW_MS


class FakeLog:
    """A log that promises what the test says."""

    def __init__(self) -> None:
        self.topic_partition = TopicPartition("t", PartitionId(0))
        self.topic_id = UUID(int=1)
        self.log_start_offset = self.log_end_offset = self.promised_offset = 0
        self.failed: WireError | None = None
        self.on_promised: Callable[[Any], None] = lambda _: None
        self.batches: list[bytes] = []
        self.is_full = False

    def append(
        self, batch: memoryview, fields: tuple[int, ...], *, leader_epoch: int
    ) -> int | None:
        if self.is_full:
            return None
        base_offset = self.log_end_offset
        self.log_end_offset += fields[6] + 1
        self.batches.append(bytes(batch))
        return base_offset

    def promise(self, offset: int) -> None:
        self.promised_offset = offset
        self.on_promised(self)


class Waiter:
    def __init__(self) -> None:
        self.said: list[WireError | None] = []
        self.drained = 0

    def on_acked(self, index: int, error: WireError | None, now_us: int) -> "Waiter":
        self.said.append(error)
        return self

    def drain(self) -> None:
        self.drained += 1


SETTINGS: dict[str, Any] = {
    "batch_bytes_max": 10_000,
    "min_isr": 1,
    "acks_floor": 0,
    "stamps_append_time": False,
    "timestamp_before_ms_max": 7 * DAY_MS,
    "timestamp_after_ms_max": DAY_MS,
}


def partition_of(loop: asyncio.AbstractEventLoop, **settings: Any) -> tuple[Partition, FakeLog]:
    log = FakeLog()
    partition = Partition(
        log,  # type: ignore[arg-type]
        loop=loop,
        clock=FakeClock(),
        producers=ProducerStates(expiry_ms=DAY_MS, producers_max=10),
        settings=PartitionSettings(**{**SETTINGS, **settings}),
        leader_epoch=LeaderEpoch(3),
    )
    return partition, log


@pytest.fixture
def loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def batch(
    count: int = 2, *, timestamp_ms: int = NOW_MS, size: int = 10, **fields: Any
) -> bytearray:
    records = [
        Record(key=None, value=b"v" * size, headers=(), timestamp_ms=timestamp_ms, offset=n)
        for n in range(count)
    ]
    return encode(records, **fields)


def with_crc(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def damaged(position: int, layout: str, value: int) -> bytearray:
    data = batch()
    struct.pack_into(layout, data, position, value)
    return with_crc(data)


REFUSED = [
    ("too large", batch(size=6_000), RecordTooLargeError),
    ("too short", bytearray(20), CorruptMessageError),
    ("old format", damaged(16, ">b", 1), InvalidRecordError),
    ("two batches", batch() + batch(), InvalidRecordError),
    ("wrong length", damaged(8, ">i", 70), InvalidRecordError),
    ("no records", damaged(57, ">i", 0), InvalidRecordError),
    ("gap in offsets", damaged(23, ">i", 5), InvalidRecordError),
    ("unknown codec", damaged(21, ">h", 7), InvalidRecordError),
    ("control", damaged(21, ">h", 0x20), InvalidRecordError),
    (
        "sequence missing",
        batch(producer_id=5, producer_epoch=0, base_sequence=-1),
        InvalidRecordError,
    ),
    ("future", batch(timestamp_ms=NOW_MS + DAY_MS + 1), InvalidTimestampError),
    ("past", batch(timestamp_ms=NOW_MS - 7 * DAY_MS - 1), InvalidTimestampError),
]


@pytest.mark.parametrize(
    ("data", "error"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_bad_batches_are_refused_before_the_append(
    loop: asyncio.AbstractEventLoop, data: bytearray, error: type[WireError]
) -> None:
    partition, log = partition_of(loop)
    with pytest.raises(error):
        partition.append_as_leader(data, 0, len(data), -1)
    assert not log.batches


@pytest.mark.parametrize("position", [21, 30, 61, 70, -1])
def test_every_changed_byte_is_seen(loop: asyncio.AbstractEventLoop, position: int) -> None:
    partition, log = partition_of(loop)
    data = batch()
    data[position] ^= 0x08
    with pytest.raises(WireError):
        partition.append_as_leader(data, 0, len(data), -1)
    assert not log.batches


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_batch_cannot_claim_more_records_than_fit(
    loop: asyncio.AbstractEventLoop, codec: Codec
) -> None:
    partition, _ = partition_of(loop)
    data = batch(codec=codec)
    struct.pack_into(">i", data, 23, 2**31 - 2)
    struct.pack_into(">i", data, 57, 2**31 - 1)
    with_crc(data)
    with pytest.raises(InvalidRecordError, match="2147483647 records do not fit"):
        partition.append_as_leader(data, 0, len(data), -1)
    empty = [Record(key=None, value=None, headers=(), timestamp_ms=1, offset=n) for n in range(900)]
    partition.settings = PartitionSettings(**{**SETTINGS, "timestamp_before_ms_max": 1 << 60})
    full = encode(empty, codec=codec)
    assert partition.append_as_leader(full, 0, len(full), -1) == (0, 900, -1)


def test_the_log_appends_its_own_time(loop: asyncio.AbstractEventLoop) -> None:
    partition, log = partition_of(loop, stamps_append_time=True)
    data = batch(timestamp_ms=5)
    assert partition.append_as_leader(data, 0, len(data), 1) == (0, 2, NOW_MS)
    stored = decode_header(log.batches[0])
    assert (stored.is_log_append_time, stored.max_timestamp_ms) == (True, NOW_MS)
    assert stored.crc == crc32c(log.batches[0][21:])


@pytest.mark.parametrize(
    ("acks", "floor", "refused"), [(-1, 0, True), (1, 0, False), (1, -1, True)]
)
def test_too_few_replicas_are_refused_before_the_append(
    loop: asyncio.AbstractEventLoop, acks: int, floor: int, refused: bool
) -> None:
    partition, log = partition_of(loop, min_isr=2, acks_floor=floor)
    data = batch()
    if refused:
        with pytest.raises(NotEnoughReplicasError):
            partition.append_as_leader(data, 0, len(data), acks)
    else:
        partition.append_as_leader(data, 0, len(data), acks)
    assert len(log.batches) == (not refused)


def test_a_repeated_batch_gets_its_old_offsets(loop: asyncio.AbstractEventLoop) -> None:
    partition, log = partition_of(loop)
    data = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    assert partition.append_as_leader(data, 0, len(data), -1) == (0, 2, -1)
    assert partition.append_as_leader(data, 0, len(data), -1) == (0, 2, -1)
    assert len(log.batches) == 1
    gap = batch(producer_id=7, producer_epoch=0, base_sequence=9)
    with pytest.raises(OutOfOrderSequenceNumberError):
        partition.append_as_leader(gap, 0, len(gap), -1)


def test_without_memory_nothing_is_remembered(loop: asyncio.AbstractEventLoop) -> None:
    partition, log = partition_of(loop)
    log.is_full = True
    data = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    assert partition.append_as_leader(data, 0, len(data), -1) is None
    log.is_full = False
    assert partition.append_as_leader(data, 0, len(data), -1) == (0, 2, -1)
    assert len(log.batches) == 1


def test_acknowledged_when_promised_and_not_before(loop: asyncio.AbstractEventLoop) -> None:
    partition, log = partition_of(loop)
    log.log_end_offset = 10
    first, second = Waiter(), Waiter()
    partition.wait(4, 30_000, first)
    partition.wait(10, 30_000, second)
    log.promise(3)
    assert (first.said, partition.high_watermark) == ([], 3)
    log.promise(4)
    assert (first.said, first.drained, second.said) == ([None], 1, [])
    log.promise(10)
    assert second.said == [None]


def test_a_failed_log_ends_every_wait(loop: asyncio.AbstractEventLoop) -> None:
    partition, log = partition_of(loop)
    log.log_end_offset = 10
    waiter = Waiter()
    partition.wait(4, 30_000, waiter)
    log.failed = KafkaStorageError("gone")
    log.on_promised(log)
    assert waiter.said == [log.failed]
    data = batch()
    with pytest.raises(KafkaStorageError):
        partition.append_as_leader(data, 0, len(data), -1)


def test_a_wait_ends_with_its_time_and_with_the_partition(loop: asyncio.AbstractEventLoop) -> None:
    partition, log = partition_of(loop)
    log.log_end_offset = 10
    short, long = Waiter(), Waiter()
    partition.wait(4, 10, short)
    partition.wait(5, 60_000, long)

    async def until_told() -> None:
        while not short.said:
            await asyncio.sleep(0.005)

    loop.run_until_complete(asyncio.wait_for(until_told(), 10))
    assert isinstance(short.said[0], RequestTimedOutError)
    assert long.said == []
    partition.close()
    assert isinstance(long.said[0], NotLeaderOrFollowerError)


def test_other_leader_epochs_are_refused(loop: asyncio.AbstractEventLoop) -> None:
    partition, _ = partition_of(loop)
    partition.check_serving(-1)
    partition.check_serving(3)
    with pytest.raises(FencedLeaderEpochError):
        partition.check_serving(2)
    with pytest.raises(UnknownLeaderEpochError):
        partition.check_serving(4)
