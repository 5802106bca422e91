"""The producer's queue against a leader that keeps Kafka's rules about sequences.

The leader is `dlogd.replication.partition.producer_state` and a list; between the two is a
connection that loses answers, delivers late and breaks. Whatever happens: no record twice, the
order of the calls, and outcomes that are true. In one machine requests of broken connections arrive
later, in another time runs out and leaders lose what they had acknowledged, in the third the lead
moves to a replica that lacks the last batches while the leader before it still answers (acks of the
leader alone).
"""

import random
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from dlog.batch.records import decode
from dlog.client.futures import Delivery, RefusedError, UnknownOutcomeError, Written
from dlog.client.produce_options import Batching
from dlog.client.producing import partition_queue
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.batch_results import BatchResults, ProducerCounters
from dlog.client.producing.partition_queue import Batch
from dlog.client.producing.producer_identity import ProducerIdentity
from dlog.client.retry import RetryPolicy
from dlog.compression import Codec
from dlog.errors import (
    DisconnectedError,
    InvalidRecordError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceNumberError,
    RecordTooLargeError,
    RequestTimedOutError,
    WireError,
)
from tests.fakes.accumulators import Quiet
from tests.fakes.sequenced_leader import Leader

DELIVERY_S = 5.0
REFUSALS = (NotEnoughReplicasError, NotLeaderOrFollowerError, RequestTimedOutError)


class Attempt:
    """A batch on its way to the leader, and what the leader said, when it has."""

    def __init__(self, batch: Batch, leader: Leader) -> None:
        self.batch = batch
        self.leader = leader
        self.data = bytes(batch.encoded())
        self.answer: int | WireError | None = None


class ProducerMachine(RuleBasedStateMachine):
    """One producer, one partition."""

    def __init__(self) -> None:
        super().__init__()
        identity = self.identity = ProducerIdentity()
        identity.renew(7, 0)
        rng = random.Random(1)
        self.accumulator = Accumulator(
            Batching(
                codec=Codec.NONE,
                batch_bytes=120,
                memory_bytes=5000,
                linger_s=0.0,
                delivery_timeout_s=DELIVERY_S,
            ),
            rng=rng,
            owner=Quiet(),
            identity=identity,
        )
        self.accumulator.update_topic("t", 1, [0])
        self.outcomes = BatchResults(self.accumulator, ProducerCounters(), rng)
        self.outcomes.policy = RetryPolicy(base_s=0.01, cap_s=0.02)
        topic = self.accumulator.topic("t")
        assert topic is not None
        self.queue = topic.queues[0]
        self.leader = self.known = Leader()
        self.leaders = [self.leader]
        self.now_s = 0.0
        self.wire: deque[Attempt] = deque()
        self.late: list[Attempt] = []
        self.deliveries: list[Delivery] = []

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        for _ in range(count):
            value = b"%d" % len(self.deliveries)
            delivery = self.accumulator.append("t", None, value, (), 1, 0)
            if delivery is None:
                delivery = self.accumulator.append_slowly(self.now_s, "t", None, value, (), 1, 0)
            if delivery is None:
                return
            self.deliveries.append(delivery)

    @rule()
    def pump(self) -> None:
        """Send what may be sent, as the sender does."""
        self.now_s += 0.05
        self.outcomes.expire(self.queue, self.now_s)
        if self.identity.is_wanted:
            self.identity.renew(self.identity.producer_id + 1, 0)
        if not self.queue.follow((1, self.leaders.index(self.known))):
            return
        while self.queue.due_s(self.now_s, 0.0, rush=False) <= self.now_s:
            batch = self.accumulator.take(self.queue)
            if batch is None:
                break
            self.accumulator.served(self.queue)
            assert len(self.queue.inflight) <= partition_queue.INFLIGHT_MAX
            self.wire.append(Attempt(batch, self.known))

    @rule()
    def arrive(self) -> None:
        """Let the leader see the next request."""
        for attempt in self.wire:
            if attempt.answer is None:
                self.see(attempt)
                return

    def see(self, attempt: Attempt) -> None:
        """Let the leader that a request was sent to append it, or refuse it."""
        try:
            attempt.answer = attempt.leader.append(attempt.data)
        except OutOfOrderSequenceNumberError as error:
            # It would be numbered anew then, and there twice.
            numbers = [int(record.value or b"") for record in decode(attempt.data)]
            assert not set(numbers) & set(attempt.leader.log), "a repetition comes too late"
            attempt.answer = error
        except WireError as error:
            attempt.answer = error

    @rule()
    def answer(self) -> None:
        if self.wire and self.wire[0].answer is not None:
            attempt = self.wire.popleft()
            assert attempt.answer is not None
            if isinstance(attempt.answer, int):
                self.outcomes.written(attempt.batch, attempt.answer, -1)
            else:
                self.outcomes.failed(attempt.batch, attempt.answer, self.now_s)

    @rule(kind=st.sampled_from(REFUSALS))
    def refuse(self, kind: type[WireError]) -> None:
        """Let the leader refuse the next request for a while; or after it was appended."""
        for attempt in self.wire:
            if attempt.answer is None:
                if kind is RequestTimedOutError:
                    self.see(attempt)
                    if not isinstance(attempt.answer, int):
                        return
                attempt.answer = kind("refused by the test")
                return

    @rule(kind=st.sampled_from((InvalidRecordError, RecordTooLargeError)))
    def refuse_for_good(self, kind: type[WireError]) -> None:
        """Refuse a request that nobody has seen before; a repetition gets the same answer."""
        for attempt in self.wire:
            if attempt.answer is None and not attempt.batch.may_be_written:
                attempt.answer = kind("refused by the test")
                return

    @rule(arrive_later=st.booleans())
    def break_connection(self, arrive_later: bool) -> None:
        while self.wire:
            attempt = self.wire.popleft()
            if attempt.answer is None and arrive_later:
                self.late.append(attempt)
            self.outcomes.failed(attempt.batch, DisconnectedError("by the test"), self.now_s)

    def teardown(self) -> None:
        for _ in range(400):
            if not self.accumulator.incomplete:
                break
            self.pump()
            self.arrive()
            self.answer()
        while self.wire:  # of batches whose time was over
            self.arrive()
            self.answer()
        assert not self.accumulator.incomplete
        assert self.accumulator.used_bytes == 0
        assert self.queue.is_idle
        self.check()

    def check(self) -> None:
        log = self.leader.log
        assert len(set(log)) == len(log), "a record is there twice"
        for number, delivery in enumerate(self.deliveries):
            outcome = delivery.outcome()
            if isinstance(outcome, Written):
                self.check_written(number, outcome)
            elif isinstance(outcome, RefusedError):
                assert number not in log
            else:
                assert isinstance(outcome, UnknownOutcomeError)

    def check_written(self, number: int, written: Written) -> None:
        assert number in self.leader.log
        if written.offset >= 0:
            assert self.leader.log[written.offset] == number


class LateMachine(ProducerMachine):
    """Requests of broken connections arrive when they like; there is time for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes.expire = lambda *_: []  # type: ignore[method-assign]

    @precondition(lambda self: self.late)
    @rule()
    def arrive_late(self) -> None:
        try:
            self.leader.append(self.late.pop(0).data)
        except WireError:
            pass

    def check(self) -> None:
        super().check()
        assert self.leader.log == sorted(self.leader.log)
        assert not any(isinstance(d.outcome(), UnknownOutcomeError) for d in self.deliveries)


class LossyMachine(ProducerMachine):
    """Time runs out, and leaders lose what they had acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.has_lost = False

    @rule()
    def time_passes(self) -> None:
        self.now_s += DELIVERY_S / 2

    @rule(count=st.integers(1, 3))
    def fail_over(self, count: int) -> None:
        if count <= len(self.leader.batches):
            self.has_lost = True
            self.leader.lose(count)

    @rule()
    def exhaust_epochs(self) -> None:
        """As if the epoch had been raised many times: the next one needs another producer id."""
        if self.queue.epoch == 0 and self.queue.is_idle and not self.leader.batches:
            self.queue.epoch = partition_queue.EPOCH_MAX

    def check_written(self, number: int, written: Written) -> None:
        if not self.has_lost:
            super().check_written(number, written)

    def check(self) -> None:
        super().check()
        if not self.has_lost:
            assert self.leader.log == sorted(self.leader.log)


class MovingMachine(ProducerMachine):
    """The lead moves, with the loss of what only the old leader had; nobody tells that one."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes.expire = lambda *_: []  # type: ignore[method-assign]

    @rule(count=st.integers(0, 3))
    def move(self, count: int) -> None:
        old, self.leader = self.leader, Leader()
        self.leader.batches = list(old.batches)
        self.leader.lose(min(count, len(old.batches)))
        self.leaders.append(self.leader)

    @rule()
    def learn(self) -> None:
        """Let the producer hear who leads."""
        self.known = self.leader

    @rule()
    def arrive_last(self) -> None:
        """Let the leader that was met last see its next request: before those of the others."""
        for attempt in self.wire:
            if attempt.leader is self.known and attempt.answer is None:
                self.see(attempt)
                return

    def teardown(self) -> None:
        self.learn()
        super().teardown()

    def check_written(self, number: int, written: Written) -> None:
        """Nothing: the leader that acknowledged it may have been the only one to have it."""

    def check(self) -> None:
        super().check()
        for leader in self.leaders:
            assert leader.log == sorted(leader.log)


TestLate = LateMachine.TestCase
TestLossy = LossyMachine.TestCase
TestMoving = MovingMachine.TestCase
TestLate.settings = TestLossy.settings = TestMoving.settings = settings(
    max_examples=250, stateful_step_count=60, deadline=None
)
