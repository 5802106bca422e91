"""Feature levels, many topics at once, the controller's guards: the machine rule by rule."""

from uuid import UUID

from dlog.errors import (
    InvalidRequestError,
    InvalidTopicError,
    NotControllerError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnsupportedVersionError,
)
from dlog.types import NO_NODE, NodeId, TopicId
from dlogd.metadata.commands.codec import (
    ClaimController,
    CreateTopics,
    DeleteTopic,
    DeleteTopics,
    DrainNode,
    Guarded,
    NewTopic,
    Proof,
    RegisterNode,
    SetFeatureLevel,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, Drain, Refused
from tests.fakes.metadata_cluster import FakeCluster, leader_isr_elr

# -- levels


def test_the_first_node_sets_the_level_and_others_must_know_it() -> None:
    cluster = FakeCluster()
    for number in (1, 2):
        cluster.register(number, level_max=2)
    assert cluster.image.feature_level == 2
    old = cluster.registration(3, proof=None)
    cluster.refused(old, UnsupportedVersionError)
    cluster.refused(cluster.registration(3, level_max=1), UnsupportedVersionError)
    cluster.refused(cluster.registration(3, level_min=3, level_max=4), UnsupportedVersionError)
    cluster.refused(cluster.registration(3, level_min=3, level_max=2), InvalidRequestError)
    raise_it = SetFeatureLevel(command_id=cluster.new_id(), level=3)
    cluster.refused(raise_it, UnsupportedVersionError)
    for number in (1, 2):
        cluster.register(number, level_max=3)
    again = SetFeatureLevel(command_id=cluster.new_id(), level=3)
    assert cluster.apply(again) == 3
    back = SetFeatureLevel(command_id=cluster.new_id(), level=2)
    cluster.refused(back, InvalidRequestError)


def test_commands_of_a_higher_level_leave_no_trace_on_level_1() -> None:
    cluster = FakeCluster()
    cluster.apply(cluster.registration(1, proof=None))
    assert cluster.image.feature_level == 1
    assert not cluster.image.nodes[NodeId(1)].fenced
    drain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
    for command in (drain, apply.guarded(cluster.image, drain)):
        after, outcome = apply.apply(cluster.image, encode(command))
        assert isinstance(outcome, Refused)
        assert outcome.code == UnsupportedVersionError.code
        # Software that does not know the command remembers nothing of it either.
        assert after.outcomes == cluster.image.outcomes


def test_a_single_node_of_level_1_goes_to_level_2_with_what_it_has() -> None:
    cluster = FakeCluster()
    cluster.apply(cluster.registration(1, proof=None))
    cluster.create("t", (1,), (1,))
    data = snapshot.encode(cluster.image)
    assert data[8:10] == b"\x00\x01"
    cluster.image = snapshot.decode(data)
    cluster.register(1, previous_epoch=-1, proof=Proof.NONE, level_max=2)
    assert cluster.image.feature_level == 2
    assert leader_isr_elr(cluster) == (NO_NODE, (1,), ())
    cluster.unfence(1)
    assert leader_isr_elr(cluster) == (1, (1,), ())
    assert cluster.image.unclean_elections == 0
    assert snapshot.encode(cluster.image)[8:10] == b"\x00\x02"


# -- many topics, the controller, guards


def test_many_topics_at_once_or_none() -> None:
    cluster = FakeCluster(2)

    def topic(name: str, number: int) -> NewTopic:
        return NewTopic(name=name, topic_id=UUID(int=number), assignments=((NodeId(1), NodeId(2)),))

    def creation(*topics: NewTopic) -> CreateTopics:
        return CreateTopics(command_id=cluster.new_id(), topics=topics)

    cluster.refused(creation(), InvalidRequestError)
    cluster.refused(creation(topic("a", 5), topic("a", 6)), TopicAlreadyExistsError)
    cluster.refused(creation(topic("a", 5), topic("b", 5)), InvalidRequestError)
    cluster.refused(creation(topic("a.b", 5), topic("a_b", 6)), InvalidTopicError)
    assert cluster.apply(creation(*(topic(f"a.{n}", n) for n in range(5, 305)))) == 300
    assert len(cluster.image.topics) == 300
    cluster.refused(creation(topic("a_7", 500)), InvalidTopicError)
    cluster.apply(DeleteTopic(command_id=cluster.new_id(), topic_id=UUID(int=7)))
    cluster.apply(creation(topic("a_7", 500)))


def test_many_topics_go_at_once_or_none_does() -> None:
    cluster = FakeCluster(2)
    for name in ("a.b", "c", "d"):
        cluster.create(name, (1, 2), (2, 1))
    a, c, d = (cluster.image.topics[name].topic_id for name in ("a.b", "c", "d"))

    def deletion(*topic_ids: TopicId) -> DeleteTopics:
        return DeleteTopics(command_id=cluster.new_id(), topic_ids=topic_ids)

    cluster.refused(deletion(), InvalidRequestError)
    cluster.refused(deletion(a, a), InvalidRequestError)
    cluster.refused(deletion(a, TopicId(int=99)), UnknownTopicIdError)
    assert cluster.apply(deletion(a, c)) == 4
    assert list(cluster.image.topics) == ["d"]
    assert list(cluster.image.topics_by_id) == [d]
    cluster.create("a_b", (1,))  # the name that it would collide with is free


def test_software_of_level_2_never_sees_many_topics_go_at_once() -> None:
    cluster = FakeCluster()
    cluster.register(1, level_max=2)
    cluster.unfence(1)
    cluster.create("a", (1,))
    topic_ids = (cluster.image.topics["a"].topic_id,)
    command = DeleteTopics(command_id=cluster.new_id(), topic_ids=topic_ids)
    after, outcome = apply.apply(cluster.image, encode(command))
    assert isinstance(outcome, Refused)
    assert outcome.code == UnsupportedVersionError.code
    assert after.outcomes == cluster.image.outcomes


def test_a_controller_that_is_one_no_longer_changes_nothing() -> None:
    cluster = FakeCluster(2)

    def claim(node_id: int, epoch: int) -> ClaimController:
        return ClaimController(
            command_id=cluster.new_id(),
            node_id=NodeId(node_id),
            node_epoch=cluster.epoch(node_id),
            controller_epoch=epoch,
        )

    assert cluster.apply(claim(1, 0)) == 1
    assert cluster.apply(claim(2, 1)) == 2
    cluster.refused(claim(1, 1), NotControllerError)

    def drain(epoch: int) -> Guarded:
        plain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
        return apply.guarded(cluster.image, plain, controller_epoch=epoch)

    cluster.refused(drain(1), NotControllerError)
    cluster.apply(drain(2))
    delta = between(EMPTY_IMAGE, cluster.image)
    assert delta.controller_changed
    assert delta.level_changed


def test_a_guarded_command_is_never_applied_twice() -> None:
    cluster = FakeCluster(1)
    plain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
    late = Guarded(version_max=cluster.image.version, controller_epoch=-1, command=plain)
    cluster.refused(late, RequestTimedOutError)
    once = apply.guarded(cluster.image, plain)
    cluster.apply(once)
    version = cluster.image.version
    again, outcome = apply.apply(cluster.image, encode(once))
    assert outcome == Applied(version=version, value=0)
    assert not between(cluster.image, again)


def test_every_registration_is_bounded() -> None:
    cluster = FakeCluster(1)
    many = tuple(UUID(int=number) for number in range(300))
    too_many: RegisterNode = cluster.registration(2, failed_directory_ids=many)
    cluster.refused(too_many, InvalidRequestError)
