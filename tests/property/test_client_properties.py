"""The pure parts of the client against slow, clear models: order of requests, leaders, retries."""

import random
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from dlog.client.cluster.metadata_cache import MetadataCache, candidates
from dlog.client.retry import (
    Fault,
    GiveUp,
    RetryPolicy,
    TryAgain,
    fault_of,
    is_outcome_unknown,
    is_retriable,
    plan_retry,
)
from dlog.client.views import ClusterView, NodeView, PartitionView, TopicView
from dlog.errors import (
    ERRORS,
    BrokerNotAvailableError,
    ConnectFailedError,
    DisconnectedError,
    LeaderNotAvailableError,
    NotControllerError,
    ProtocolError,
    TransportError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
    error_for,
)
from dlog.pipeline import Pipeline, Request
from dlog.transport import Address

# Retries

ERRORS_OF_ALL_KINDS = [
    *(error_for(code) for code in sorted(ERRORS)),
    DisconnectedError("x"),
    ConnectFailedError("x"),
    ProtocolError("x"),
    ValueError("x"),
]
seconds = st.floats(0.0, 1e6)


@given(
    policy=st.builds(RetryPolicy, base_s=seconds, cap_s=seconds, deadline_s=seconds),
    error=st.sampled_from(ERRORS_OF_ALL_KINDS),
    attempt=st.integers(0, 10_000),
    elapsed_s=seconds,
    seed=st.integers(),
    idempotent=st.booleans(),
)
def test_a_retry_is_allowed_bounded_and_in_time(
    policy: RetryPolicy,
    error: Exception,
    attempt: int,
    elapsed_s: float,
    seed: int,
    idempotent: bool,
) -> None:
    def plan() -> GiveUp | TryAgain:
        return plan_retry(
            policy,
            error,
            attempt=attempt,
            elapsed_s=elapsed_s,
            rng=random.Random(seed),
            idempotent=idempotent,
        )

    decision = plan()
    assert decision == plan()
    if isinstance(decision, GiveUp):
        late = elapsed_s + min(policy.cap_s, policy.base_s * 2.0 ** min(attempt, 64))
        final = not is_retriable(error) or (is_outcome_unknown(error) and not idempotent)
        assert final or late >= policy.deadline_s
        return
    assert is_retriable(error)
    assert idempotent or not is_outcome_unknown(error)
    assert 0.0 <= decision.wait_s <= policy.cap_s
    assert decision.wait_s <= policy.base_s * 2.0 ** min(attempt, 64)
    assert elapsed_s + decision.wait_s < policy.deadline_s
    # Whoever is asked again is asked again at the right place.
    assert decision.refresh_metadata or fault_of(error) is Fault.NONE


@pytest.mark.parametrize("error", ERRORS_OF_ALL_KINDS, ids=lambda e: type(e).__name__)
def test_every_error_has_its_fault(error: Exception) -> None:
    fault = fault_of(error)
    if isinstance(error, TransportError | ProtocolError):
        assert fault in (Fault.CONNECTION, Fault.SILENCE)
    elif isinstance(error, UnknownLeaderEpochError | BrokerNotAvailableError):
        assert fault is Fault.LEADER
    elif isinstance(error, NotControllerError):
        assert fault is Fault.NONE
    else:
        assert (fault is Fault.LEADER) is getattr(error, "refresh_metadata", False)


# Leaders

PARTITIONS = 3
NODES = (1, 2, 3)


@dataclass
class Truth:
    """What was the newest that the cache was told of one life of a topic."""

    topic_id: int
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    doubted: set[int] = field(default_factory=set)


class LeaderCacheMachine(RuleBasedStateMachine):
    """Answers, hints and errors in any order, of two topics that may be made again."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = MetadataCache()
        self.truths: dict[str, Truth] = {}
        self.lives = dict.fromkeys(("a", "b"), 0)  # ids ascend here

    topics = st.sampled_from(("a", "b"))
    numbers = st.integers(0, PARTITIONS - 1)
    epochs = st.integers(-1, 5)
    leaders = st.sampled_from((-1, *NODES))

    @rule(
        name=topics,
        age=st.sampled_from((0, 0, 0, -1, 1, 2)),
        told=st.lists(st.tuples(leaders, epochs), min_size=1, max_size=PARTITIONS),
    )
    def learn(self, name: str, age: int, told: list[tuple[int, int]]) -> None:
        topic_id = max(1, self.lives[name] - age)
        if topic_id < self.lives[name]:  # told by a node that lags
            assert self.cache.learn(view_of(name, topic_id, told), 0.0) == 0
            return
        self.lives[name] = topic_id
        truth = self.truths.get(name)
        if truth is None or truth.topic_id != topic_id:
            truth = Truth(topic_id)
        truth = self.truths[name] = Truth(topic_id, dict(truth.leaders))
        for number, (leader, epoch) in enumerate(told):
            known = truth.leaders.get(number)
            if known is not None and 0 <= epoch < known[1] and known != (leader, epoch):
                truth.doubted.add(number)
            else:
                truth.leaders[number] = (leader, epoch)
        for number in range(len(told), PARTITIONS):
            truth.leaders.pop(number, None)
        self.cache.learn(view_of(name, topic_id, told), 0.0)

    @rule(name=topics)
    def vanish(self, name: str) -> None:
        self.truths.pop(name, None)
        gone = TopicView(
            name=name, topic_id=UUID(int=0), is_internal=False, partitions=(), error_code=3
        )
        self.cache.learn(cluster_of({name: gone}), 0.0)

    @rule(name=topics, number=numbers, leader=st.sampled_from((*NODES, 9)), epoch=epochs)
    def hint(self, name: str, number: int, leader: int, epoch: int) -> None:
        truth = self.truths.get(name)
        known = None if truth is None else truth.leaders.get(number)
        at_home = leader in self.cache.nodes
        taken = self.cache.learn_leader(name, number, (leader, epoch))
        assert taken == (known is not None and at_home and epoch > known[1])
        if taken and truth is not None:
            truth.leaders[number] = (leader, epoch)
            truth.doubted.discard(number)

    @rule(name=topics, number=numbers)
    def doubt(self, name: str, number: int) -> None:
        truth = self.truths.get(name)
        news = self.cache.doubt_leader(name, number)
        assert news == (
            truth is not None and number in truth.leaders and number not in truth.doubted
        )
        if news and truth is not None:
            truth.doubted.add(number)

    @rule(node=st.sampled_from(NODES))
    def doubt_node(self, node: int) -> None:
        self.cache.doubt_node(node)
        for truth in self.truths.values():
            truth.doubted |= {n for n, (leader, _) in truth.leaders.items() if leader == node}

    @rule(name=topics)
    def doubt_topic(self, name: str) -> None:
        self.cache.doubt_topic(name)
        if name in self.truths:
            self.truths[name].doubted |= set(self.truths[name].leaders)

    @rule(name=topics, number=numbers)
    def ask(self, name: str, number: int) -> None:
        truth = self.truths.get(name)
        known = None if truth is None else truth.leaders.get(number)
        if truth is None or known is None:
            with pytest.raises(UnknownTopicOrPartitionError):
                self.cache.leader_of(name, number)
            if truth is not None:  # it may have more partitions by now
                truth.doubted |= set(truth.leaders)
        elif number in truth.doubted or known[0] < 0:
            with pytest.raises(LeaderNotAvailableError):
                self.cache.leader_of(name, number)
            truth.doubted.add(number)
        else:
            leader = self.cache.leader_of(name, number)
            assert (leader.node_id, leader.leader_epoch) == known
            assert leader.address == Address("h", leader.node_id)

    @invariant()
    def leaders_are_the_newest_told(self) -> None:
        for name, truth in self.truths.items():
            view = self.cache.topic(name)
            assert view is not None
            found = {each.partition: (each.leader, each.leader_epoch) for each in view.partitions}
            assert found == truth.leaders

    @invariant()
    def doubts_are_known(self) -> None:
        for name, truth in self.truths.items():
            for number in truth.leaders:
                assert self.cache.is_stale(name, number) == (number in truth.doubted)

    @invariant()
    def what_is_in_doubt_is_asked_for(self) -> None:
        doubted = {name for name, truth in self.truths.items() if truth.doubted}
        assert set(self.cache.stale_topics()) == doubted
        for name in self.truths:
            fresh = self.cache.is_fresh(name, 1.0, 10.0)
            assert fresh == (name not in doubted and not self.cache.nodes_are_stale)
            assert not self.cache.is_fresh(name, 10.0, 10.0)


def view_of(name: str, topic_id: int, told: list[tuple[int, int]]) -> ClusterView:
    partitions = tuple(
        PartitionView(
            partition=number, leader=leader, leader_epoch=epoch, replicas=(), isr=(), offline=()
        )
        for number, (leader, epoch) in enumerate(told)
    )
    topic = TopicView(
        name=name, topic_id=UUID(int=topic_id), is_internal=False, partitions=partitions
    )
    return cluster_of({name: topic})


def cluster_of(topics: dict[str, TopicView]) -> ClusterView:
    nodes = {n: NodeView(node_id=n, address=Address("h", n), rack=None) for n in NODES}
    return ClusterView(cluster_id="c", controller_id=1, nodes=nodes, topics=topics)


TestLeaderCache = LeaderCacheMachine.TestCase
TestLeaderCache.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)

addresses = st.lists(st.builds(Address, st.just("h"), st.integers(1, 6)), unique=True)


@given(connected=addresses, known=addresses, bootstrap=addresses, suspects=addresses)
def test_everybody_is_asked_once_and_suspects_last(
    connected: list[Address],
    known: list[Address],
    bootstrap: list[Address],
    suspects: list[Address],
) -> None:
    nodes = {n: NodeView(node_id=n, address=each, rack=None) for n, each in enumerate(known)}
    order = candidates(connected, nodes, bootstrap, suspects)
    assert sorted(order) == sorted({*connected, *known, *bootstrap})
    ranks = [
        (each in suspects, each not in connected, each not in connected and each not in known)
        for each in order
    ]
    assert ranks == sorted(ranks)


# The order of requests


class PipelineMachine(RuleBasedStateMachine):
    """Requests come, are sent, answered, cancelled and late, in any order."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.inflight_max = 2
        self.pipeline = Pipeline(self.inflight_max)
        self.now = 0.0
        self.waiting: list[Request] = []
        self.inflight: list[Request] = []

    @rule(target=requests, patience=st.integers(1, 20), answered=st.booleans())
    def ask(self, patience: int, answered: bool) -> Request:
        request = Request(
            encode=lambda _: b"",
            on_response=lambda _: None,
            on_error=lambda _: None,
            deadline=self.now + patience,
            patience_s=float(patience),
            answered=answered,
        )
        self.pipeline.wait(request)
        self.waiting.append(request)
        return request

    @rule()
    def send(self) -> None:
        request = self.pipeline.take_waiting()
        if len(self.inflight) >= self.inflight_max:
            assert request is None
            return
        while self.waiting and self.waiting[0].is_over:
            self.waiting.pop(0)
        assert request is (self.waiting.pop(0) if self.waiting else None)
        if request is not None:
            expected = self.pipeline.next_correlation_id
            assert not request.was_sent
            self.pipeline.start(request)
            assert request.was_sent
            assert request.correlation_id == expected
            if request.answered:
                self.inflight.append(request)

    @precondition(lambda self: self.inflight)
    @rule()
    def answer(self) -> None:
        first = self.inflight.pop(0)
        assert self.pipeline.answer(first.correlation_id, self.now) is first
        if self.inflight:
            # Nobody is first in line and already late.
            assert self.inflight[0].deadline > self.now

    @rule(offset=st.sampled_from((-1, 1, 7)))
    def answer_wrongly(self, offset: int) -> None:
        number = (self.inflight[0].correlation_id if self.inflight else 0) + offset
        with pytest.raises(ProtocolError):
            self.pipeline.answer(number, self.now)

    @rule(request=requests)
    def cancel(self, request: Request) -> None:
        request.cancel()

    @rule(step=st.integers(0, 15))
    def let_time_pass(self, step: int) -> None:
        self.now += step
        late = [each for each in self.inflight if each.deadline <= self.now]
        unsent = [each for each in self.waiting if each.deadline <= self.now]
        due = self.pipeline.expire(self.now)
        assert due.unsent == unsent
        assert due.unanswered == late
        assert due.is_stuck == bool(late and late[0] is self.inflight[0])
        self.waiting = [each for each in self.waiting if each not in unsent]
        if due.is_stuck:
            assert self.pipeline.clear() == [*self.inflight, *self.waiting]
            self.inflight, self.waiting = [], []

    @invariant()
    def the_counts_and_the_next_deadline_are_right(self) -> None:
        assert self.pipeline.inflight_count == len(self.inflight) <= self.inflight_max
        assert self.pipeline.waiting_count == len(self.waiting)
        assert self.pipeline.has_room == (len(self.inflight) < self.inflight_max)
        deadlines = [e.deadline for e in self.inflight if e.deadline > self.now]
        deadlines += [e.deadline for e in self.waiting]
        assert self.pipeline.next_deadline(self.now) == min(deadlines, default=None)
        first = self.inflight[0].deadline if self.inflight else None
        assert self.pipeline.first_deadline == first


TestPipeline = PipelineMachine.TestCase
TestPipeline.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
