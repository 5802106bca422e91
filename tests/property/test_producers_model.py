"""Producer states against a model with the whole history, snapshots and replays between."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dlog.batch.header import BatchHeader
from dlog.errors import InvalidProducerEpochError, OutOfOrderSequenceNumberError
from dlogd.replication.partition.producer_state import ProducerStates

MODULUS = 2**31
PIDS = st.integers(0, 2)


@dataclass
class Sent:
    """One appended batch, as the model remembers it."""

    epoch: int
    base_sequence: int
    count: int
    base_offset: int

    @property
    def next_sequence(self) -> int:
        return (self.base_sequence + self.count) % MODULUS


@dataclass
class Model:
    """Kafka's rules over a full history."""

    history: dict[int, list[Sent]] = field(default_factory=dict)
    log: list[tuple[int, Sent]] = field(default_factory=list)
    end_offset: int = 0

    def expected(self, pid: int, epoch: int, sequence: int, count: int) -> object:
        sent = self.history.get(pid)
        if not sent:
            return None
        last = sent[-1]
        if epoch < last.epoch:
            return InvalidProducerEpochError
        if epoch > last.epoch:
            return None if sequence == 0 else OutOfOrderSequenceNumberError
        for each in [each for each in sent if each.epoch == epoch][-5:]:
            if (each.base_sequence, each.count) == (sequence, count):
                return each.base_offset, each.base_offset + count - 1, -1
        return None if sequence == last.next_sequence else OutOfOrderSequenceNumberError


class Producers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.states = self.fresh()
        self.snapshot: tuple[bytes, int] = (self.states.encode(0), 0)

    @staticmethod
    def fresh() -> ProducerStates:
        return ProducerStates(expiry_ms=1000, producers_max=100)

    def send(self, pid: int, epoch: int, sequence: int, count: int) -> None:
        expected = self.model.expected(pid, epoch, sequence, count)
        try:
            found: object = self.states.check(pid, epoch, sequence, count)
        except (InvalidProducerEpochError, OutOfOrderSequenceNumberError) as error:
            found = type(error)
        assert found == expected
        if found is None:
            sent = Sent(epoch, sequence, count, self.model.end_offset)
            self.model.end_offset += count
            self.model.history.setdefault(pid, []).append(sent)
            self.model.log.append((pid, sent))
            last_offset = sent.base_offset + count - 1
            self.states.update(pid, epoch, sequence, count, sent.base_offset, last_offset, -1, 1)

    @rule(
        pid=PIDS,
        epoch=st.integers(0, 2),
        sequence=st.one_of(st.integers(0, 30), st.integers(MODULUS - 30, MODULUS - 1)),
        count=st.integers(1, 20),
    )
    def send_anything(self, pid: int, epoch: int, sequence: int, count: int) -> None:
        self.send(pid, epoch, sequence, count)

    @precondition(lambda self: self.model.history)
    @rule(pid=PIDS, count=st.integers(1, 20), back=st.integers(0, 7), bump=st.integers(0, 3))
    def send_likely(self, pid: int, count: int, back: int, bump: int) -> None:
        sent = self.model.history.get(pid)
        if not sent:
            self.send(pid, 0, 0, count)
        elif back == 0:
            self.send(pid, sent[-1].epoch, sent[-1].next_sequence, count)
        elif bump == 3:
            self.send(pid, sent[-1].epoch + 1, 0, count)
        else:
            again = sent[-min(back, len(sent))]
            self.send(pid, again.epoch, again.base_sequence, again.count)

    @precondition(lambda self: self.model.history)
    @rule(pid=PIDS, counts=st.lists(st.integers(1, 3), min_size=4, max_size=7))
    def send_in_order(self, pid: int, counts: list[int]) -> None:
        for count in counts:
            sent = self.model.history.get(pid)
            self.send(
                pid, sent[-1].epoch if sent else 0, sent[-1].next_sequence if sent else 0, count
            )

    @rule()
    def write_snapshot(self) -> None:
        self.snapshot = (self.states.encode(self.model.end_offset), self.model.end_offset)

    @rule()
    def crash(self) -> None:
        before = self.states.encode(0)
        self.states = self.fresh()
        end_offset = self.states.load(self.snapshot[0])
        assert end_offset == self.snapshot[1]
        for pid, sent in self.model.log:
            if sent.base_offset >= end_offset:
                self.states.replay(self.header(pid, sent), 1)
        assert self.states.encode(0) == before

    @staticmethod
    def header(pid: int, sent: Sent) -> BatchHeader:
        return BatchHeader(
            base_offset=sent.base_offset,
            batch_bytes=100,
            leader_epoch=0,
            magic=2,
            crc=0,
            attributes=0,
            last_offset_delta=sent.count - 1,
            base_timestamp_ms=0,
            max_timestamp_ms=0,
            producer_id=pid,
            producer_epoch=sent.epoch,
            base_sequence=sent.base_sequence,
            record_count=sent.count,
        )

    @invariant()
    def describes_the_last_batches(self) -> None:
        for each in self.states.describe():
            last = self.model.history[each.producer_id][-1]
            assert each.epoch == last.epoch
            assert each.last_sequence == (last.next_sequence - 1) % MODULUS
            assert each.last_offset == last.base_offset + last.count - 1


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
