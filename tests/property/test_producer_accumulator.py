"""The accumulator under any sequence of sends, seals and answers: memory, order, nothing lost."""

import itertools
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dlog.batch.header import HEADER_BYTES
from dlog.batch.records import decode
from dlog.client.futures import BatchDelivery, Delivery, Written
from dlog.client.producing.bulk_append import bulk_append
from dlog.client.producing.bulk_steps import Step
from dlog.client.producing.partition_queue import Batch
from dlog.errors import RecordTooLargeError
from tests.fakes.accumulators import BATCH_BYTES, MEMORY_BYTES, PARTITIONS, accumulator

keys = st.none() | st.binary(max_size=3)
values = st.binary(max_size=120)


class AccumulatorMachine(RuleBasedStateMachine):
    """Records are numbered; what was taken is compared with what went into each partition."""

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        self.accumulator = accumulator(random.Random(seed))
        self.now_s = 0.0
        self.count = 0
        self.given: dict[int, list[bytes]] = {each: [] for each in range(PARTITIONS)}
        self.deliveries: list[tuple[Delivery, bytes]] = []
        self.bulk: list[tuple[BatchDelivery, list[bytes]]] = []
        self.wire: list[Batch] = []
        self.logs: dict[int, list[bytes]] = {each: [] for each in range(PARTITIONS)}

    def value(self, filling: bytes) -> bytes:
        self.count += 1
        return b"%d:" % self.count + filling

    @rule(key=keys, filling=values, partition=st.none() | st.integers(0, PARTITIONS - 1))
    def send(self, key: bytes | None, filling: bytes, partition: int | None) -> None:
        value = self.value(filling)
        record = ("t", key, value, (), 1, partition)
        delivery = self.accumulator.append(*record)
        if delivery is None:
            delivery = self.accumulator.append_slowly(self.now_s, *record)
        if delivery is None:
            # A refusal for want of memory must have a reason.
            free = MEMORY_BYTES - self.accumulator.used_bytes
            assert free < HEADER_BYTES + len(value) + len(key or b"") + 40
            return
        assert partition is None or delivery.partition == partition
        self.given[delivery.partition].append(value)
        self.deliveries.append((delivery, value))

    @rule(fillings=st.lists(values, min_size=1, max_size=20), keyed=st.booleans())
    def send_many(self, fillings: list[bytes], keyed: bool) -> None:
        chunk = [self.value(filling) for filling in fillings]
        delivery = BatchDelivery()
        append = bulk_append(
            self.accumulator,
            "t",
            chunk,
            [value[:2] for value in chunk] if keyed else None,
            timestamp_ms=1,
            partition=None,
            delivery=delivery,
        )
        while append.advance(self.now_s) is Step.MORE:
            pass
        for result, _, indexes in delivery.parts():
            self.given[result.partition] += [chunk[index] for index in indexes]
        self.bulk.append((delivery, chunk))

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def take(self, partition: int) -> None:
        topic = self.accumulator.topic("t")
        assert topic is not None
        queue = topic.queues[partition]
        batch = self.accumulator.take(queue)
        if batch is not None:
            self.accumulator.served(queue)
            self.wire.append(batch)

    @rule()
    def answer(self) -> None:
        if self.wire:
            batch = self.wire.pop(0)
            log = self.logs[batch.queue.partition]
            base_offset = len(log)
            log += [record.value or b"" for record in decode(batch.encoded())]
            batch.queue.remove(batch)
            self.accumulator.served(batch.queue)
            self.accumulator.release(batch)
            batch.result.settle(base_offset=base_offset)

    @rule()
    def split(self) -> None:
        if self.wire and self.wire[-1].record_count > 1:
            batch = self.wire[-1]
            if batch.queue.inflight[-1] is batch:
                self.wire.pop()
                batch.encoded()
                batch.queue.remove(batch)
                self.accumulator.split(batch)
                self.accumulator.served(batch.queue)

    @rule()
    def flush(self) -> None:
        self.accumulator.seal_all()

    @invariant()
    def memory_is_what_batches_hold(self) -> None:
        if hasattr(self, "accumulator"):
            held = sum(batch.bytes_held for batch in self.accumulator.incomplete)
            assert held == self.accumulator.used_bytes <= MEMORY_BYTES
            for queue in self.accumulator.active:
                assert not queue.is_idle

    def teardown(self) -> None:
        if not hasattr(self, "accumulator"):
            return
        while self.accumulator.incomplete:
            for partition in range(PARTITIONS):
                self.take(partition)
            self.answer()
        assert self.accumulator.used_bytes == 0
        assert not self.accumulator.active
        assert self.logs == self.given
        for delivery, value in self.deliveries:
            written = delivery.outcome()
            assert isinstance(written, Written)
            assert self.logs[written.partition][written.offset] == value
        for many, chunk in self.bulk:
            for span in many.written():
                for offset, index in enumerate(span.indexes, span.base_offset):
                    assert self.logs[span.partition][offset] == chunk[index]


TestAccumulator = AccumulatorMachine.TestCase
TestAccumulator.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_record_larger_than_a_batch_gets_one_of_its_own() -> None:
    made = accumulator()
    big = b"x" * (BATCH_BYTES * 2)
    first = made.append_slowly(0.0, "t", None, b"small", (), 1, 0)
    assert made.append("t", None, big, (), 1, 0) is None
    second = made.append_slowly(0.0, "t", None, big, (), 1, 0)
    assert first is not None and second is not None
    assert second.batch is not first.batch
    third = made.append_slowly(0.0, "t", None, b"y" * 100, (), 1, 0)
    assert third is not None and third.batch is not second.batch
    with pytest.raises(RecordTooLargeError):
        made.append_slowly(0.0, "t", None, b"x" * MEMORY_BYTES, (), 1, 0)


def test_what_is_no_record_leaves_nothing_behind() -> None:
    made = accumulator()
    with pytest.raises(TypeError):
        made.append_slowly(0.0, "t", None, "text", (), 1, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="partitions 0 to 2"):
        made.append_slowly(0.0, "t", None, b"", (), 1, PARTITIONS)
    with pytest.raises(ValueError, match="timestamp"):
        made.append_slowly(0.0, "t", None, b"", (), -2, 0)
    assert made.used_bytes == 0
    assert not made.active
    assert not made.incomplete
    assert made.append("t", None, b"", (), 1, -1) is None


def test_records_without_a_key_move_on_with_every_batch() -> None:
    made = accumulator(memory_bytes=1_000_000)
    seen = []
    for _ in range(200):
        record = ("t", None, b"x" * 100, (), 1, None)
        delivery = made.append(*record) or made.append_slowly(0.0, *record)
        assert delivery is not None
        if not seen or seen[-1][0] is not delivery.batch:
            seen.append((delivery.batch, delivery.partition))
    partitions = [partition for _, partition in seen]
    assert len(partitions) > 20
    assert all(one != two for one, two in itertools.pairwise(partitions))
    assert sorted(set(partitions)) == [0, 1, 2]


def test_lingering() -> None:
    made = accumulator()
    delivery = made.append_slowly(1.0, "t", None, b"x", (), 1, 0)
    assert delivery is not None
    (queue,) = made.active
    assert queue.due_s(1.0, 0.1, rush=False) == pytest.approx(1.1)
    assert queue.due_s(1.0, 0.1, rush=True) <= 1.0
    delivery.batch.hurry()
    assert queue.due_s(1.0, 0.1, rush=False) <= 1.0
    # With another batch on the wire it may wait for company until the answer.
    assert made.take(queue) is not None
    queue.is_known = True
    again = made.append_slowly(2.0, "t", None, b"x", (), 1, 0)
    assert again is not None
    again.batch.hurry()
    assert queue.due_s(2.0, 0.1, rush=False) == pytest.approx(2.1)
