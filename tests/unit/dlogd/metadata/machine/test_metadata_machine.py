"""The state machine command by command: what is applied, what is refused, and with which code."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from dlog.errors import (
    InconsistentClusterIdError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    WireError,
)
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import (
    AllocateProducerIds,
    AlterConfigs,
    Command,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    RegisterNode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state.image import (
    EMPTY_IMAGE,
    OUTCOMES_REMEMBERED,
    Applied,
    ClusterImage,
    NodeAddress,
    Refused,
)

T1, T2 = UUID(int=11), UUID(int=12)
_ids = iter(range(1_000_000, 10_000_000))


def an_id() -> UUID:
    return UUID(int=next(_ids))


def register(node_id: int = 1, cluster_id: str = "c", rack: str | None = None) -> RegisterNode:
    return RegisterNode(
        command_id=an_id(),
        cluster_id=cluster_id,
        node_id=NodeId(node_id),
        directory_ids=(UUID(int=abs(node_id)),),
        addresses=(NodeAddress(listener="clients", host="localhost", port=9092),),
        rack=rack,
        version="0.1.0",
    )


def create(
    name: str = "t",
    topic_id: UUID = T1,
    assignments: Iterable[tuple[int, ...]] = ((1,),),
    configs: Mapping[str, str] | None = None,
) -> CreateTopic:
    return CreateTopic(
        command_id=an_id(),
        name=name,
        topic_id=topic_id,
        assignments=tuple(tuple(map(NodeId, each)) for each in assignments),
        configs=configs or {},
    )


def applied(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image, outcome = apply.apply(image, encode(command))
        assert isinstance(outcome, Applied), outcome
        assert outcome.version == image.version
    return image


def refused(image: ClusterImage, command: Command, error: type[WireError]) -> str:
    after, outcome = apply.apply(image, encode(command))
    assert isinstance(outcome, Refused)
    assert outcome.code == error.code, outcome
    assert isinstance(outcome.error, error)
    # Nothing but the version and the memory of outcomes may differ.
    assert replace(after, version=image.version, outcomes=image.outcomes) == image
    return outcome.message


ONE = applied(EMPTY_IMAGE, register())


def test_first_registration_names_the_cluster() -> None:
    assert ONE.cluster_id == "c"
    assert ONE.nodes[NodeId(1)].node_epoch == 1
    assert not ONE.nodes[NodeId(1)].fenced
    refused(ONE, register(2, cluster_id="other"), InconsistentClusterIdError)
    refused(EMPTY_IMAGE, register(1, cluster_id=""), InvalidRequestError)
    refused(EMPTY_IMAGE, register(-1), InvalidRequestError)
    refused(EMPTY_IMAGE, register(rack="r" * 300), InvalidRequestError)
    twins = replace(register(), directory_ids=(T1, T1))
    refused(EMPTY_IMAGE, twins, InvalidRequestError)


def test_each_start_has_a_new_epoch_and_raises_those_it_leads() -> None:
    image = applied(ONE, register(2), create(assignments=((1, 2), (2, 1))))
    before = image.topics["t"]
    image = applied(image, register(1))
    after = image.topics["t"]
    assert image.nodes[NodeId(1)].node_epoch == image.version
    assert after.partitions[0].leader_epoch == before.partitions[0].leader_epoch + 1
    assert after.partitions[0].partition_epoch == before.partitions[0].partition_epoch + 1
    assert after.partitions[1] is before.partitions[1]
    assert image.topics_by_id[T1] is after


def test_a_start_gives_a_leader_to_what_has_none() -> None:
    image = applied(ONE, create())
    topic = image.topics["t"]
    orphan = replace(topic, partitions=(replace(topic.partitions[0], leader=NO_NODE),))
    image = replace(image, topics={"t": orphan}, topics_by_id={T1: orphan})
    partition = applied(image, register(1)).topics["t"].partitions[0]
    assert partition.leader == 1
    assert partition.leader_epoch == 1


def test_create_topic() -> None:
    image = applied(ONE, register(2), create(assignments=((2, 1), (1, 2)), configs={"b": "1"}))
    topic = image.topics["t"]
    assert topic is image.topics_by_id[T1]
    assert [partition.leader for partition in topic.partitions] == [2, 1]
    assert topic.partitions[0].isr == (2, 1)
    assert topic.partitions[0].leader_epoch == 0
    assert topic.configs == {"b": "1"}
    assert image.partition("t", 1) is topic.partitions[1]
    assert image.partition("t", 2) is None
    assert image.partition("u", 0) is None
    assert str(topic.topic_partition(1)) == "t-1"


def test_fenced_nodes_lead_nothing() -> None:
    image = applied(ONE, register(2))
    fenced = replace(image.nodes[NodeId(1)], fenced=True)
    image = replace(image, nodes={**image.nodes, NodeId(1): fenced})
    partition = applied(image, create(assignments=((1, 2),))).topics["t"].partitions[0]
    assert (partition.leader, partition.isr) == (2, (2,))
    refused(image, create(assignments=((1,),)), InvalidReplicaAssignmentError)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a b", "ä", "a/b", "a\n", "a\x00"])
def test_wrong_topic_names(name: str) -> None:
    refused(ONE, create(name), InvalidTopicError)


def test_names_that_collide() -> None:
    image = applied(ONE, create("a.b_c"), create("abc", T2))
    assert "a.b_c" in refused(image, create("a_b.c", an_id()), InvalidTopicError)
    refused(image, create("a.b_c", an_id()), TopicAlreadyExistsError)
    applied(image, create("a.b_c.d", an_id()), create("a" * 249, an_id()))


@pytest.mark.parametrize(
    ("assignments", "error"),
    [
        ((), InvalidPartitionsError),
        (((),), InvalidReplicaAssignmentError),
        (((1, 1),), InvalidReplicaAssignmentError),
        (((7,),), InvalidReplicaAssignmentError),
        (((1,), (1, 2)), InvalidReplicaAssignmentError),
        ((tuple(range(100, 133)),), InvalidReplicaAssignmentError),
        (((1,),) * (apply.TOPIC_PARTITIONS_MAX + 1), PolicyViolationError),
    ],
)
def test_wrong_assignments(
    assignments: tuple[tuple[int, ...], ...], error: type[WireError]
) -> None:
    image = applied(ONE, register(2))
    refused(image, create(assignments=assignments), error)


def test_topic_ids_come_once() -> None:
    image = applied(ONE, create())
    for topic_id in (T1, UUID(int=0), UUID(int=1)):
        refused(image, create("u", topic_id), InvalidRequestError)


def test_deleting_one_life_does_not_touch_the_next() -> None:
    image = applied(ONE, create(topic_id=T1))
    deletion = DeleteTopic(command_id=an_id(), topic_id=T1)
    image = applied(image, deletion)
    assert not image.topics
    assert not image.topics_by_id
    image = applied(image, create(topic_id=T2))
    again = DeleteTopic(command_id=an_id(), topic_id=T1)
    refused(image, again, UnknownTopicIdError)
    assert image.topics["t"].topic_id == T2


def test_create_partitions() -> None:
    image = applied(ONE, create(assignments=((1,), (1,))))

    def grow(count: int, *new: tuple[int, ...], topic_id: UUID = T1) -> CreatePartitions:
        assignments = tuple(tuple(map(NodeId, each)) for each in new)
        return CreatePartitions(
            command_id=an_id(), topic_id=topic_id, partition_count=count, assignments=assignments
        )

    grown = applied(image, grow(2, (1,), (1,)))
    assert len(grown.topics["t"].partitions) == 4
    assert grown.topics["t"].partitions[:2] == image.topics["t"].partitions
    refused(grown, grow(2, (1,)), InvalidPartitionsError)
    refused(grown, grow(4), InvalidPartitionsError)
    refused(grown, grow(4, (1, 2)), InvalidReplicaAssignmentError)
    refused(grown, grow(4, (1,), topic_id=T2), UnknownTopicIdError)


def test_alter_configs() -> None:
    image = applied(ONE, create(configs={"a": "1", "b": "2"}))

    def alter(*changes: ConfigChange, topic_id: UUID | None = T1) -> AlterConfigs:
        return AlterConfigs(command_id=an_id(), topic_id=topic_id, changes=changes)

    change = ConfigChange
    altered = applied(image, alter(change(key="a", value=None), change(key="c", value="3")))
    assert altered.topics["t"].configs == {"b": "2", "c": "3"}
    assert altered.topics_by_id[T1] is altered.topics["t"]
    applied(altered, alter(change(key="c", value="4", compare=True, expected="3")))
    refused(
        altered, alter(change(key="c", value="4", compare=True, expected=None)), InvalidRequestError
    )
    refused(altered, alter(change(key="c", value="x" * 10_000)), InvalidConfigError)
    refused(altered, alter(change(key="", value="x")), InvalidConfigError)
    many = [change(key=f"k{number}", value="") for number in range(apply.CONFIGS_MAX)]
    refused(altered, alter(*many), InvalidConfigError)
    twice = change(key="c", value="4")
    refused(altered, alter(twice, twice), InvalidRequestError)
    refused(altered, alter(topic_id=T2), UnknownTopicIdError)
    cluster = applied(altered, alter(change(key="k", value="v"), topic_id=None))
    assert cluster.configs == {"k": "v"}
    assert cluster.topics is altered.topics


def test_producer_ids_are_given_once_and_to_the_living() -> None:
    def ask(count: int, node_id: int = 1, node_epoch: int = 1) -> AllocateProducerIds:
        return AllocateProducerIds(
            command_id=an_id(), node_id=NodeId(node_id), node_epoch=node_epoch, count=count
        )

    image, first = apply.apply(ONE, encode(ask(1000)))
    image, second = apply.apply(image, encode(ask(5)))
    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    assert (first.value, second.value) == (0, 1000)
    for count in (0, apply.PRODUCER_IDS_MAX + 1):
        refused(image, ask(count), InvalidRequestError)
    refused(image, ask(1, node_epoch=7), StaleBrokerEpochError)
    refused(image, ask(1, node_id=7), StaleBrokerEpochError)
    late = replace(image, producer_id_next=(1 << 63) - 5)
    refused(late, ask(10), PolicyViolationError)


def test_a_repeated_command_has_its_first_outcome() -> None:
    command = create()
    image = applied(ONE, command)
    again, outcome = apply.apply(image, encode(command))
    assert outcome == Applied(version=2, value=1)
    assert again == replace(image, version=3)
    missing = DeleteTopic(command_id=an_id(), topic_id=T2)
    image, first = apply.apply(image, encode(missing))
    image = applied(image, create("u", T2))
    _, second = apply.apply(image, encode(missing))
    assert second == first


def test_the_memory_of_outcomes_is_bounded() -> None:
    image = ONE
    first = create()
    image = applied(image, first)
    for number in range(OUTCOMES_REMEMBERED):
        change = ConfigChange(key="k", value=str(number))
        image = applied(image, AlterConfigs(command_id=an_id(), topic_id=None, changes=(change,)))
    assert len(image.outcomes) == OUTCOMES_REMEMBERED
    assert first.command_id not in image.outcomes
    refused(image, first, TopicAlreadyExistsError)


def test_what_is_no_command_changes_nothing() -> None:
    for data in (b"", b"\x07\x01" + bytes(16), b"\x01\x02" + bytes(16), bytes(5 << 20)):
        image, outcome = apply.apply(ONE, data)
        assert image == replace(ONE, version=ONE.version + 1)
        assert isinstance(outcome, Refused)
        assert outcome.code == InvalidRequestError.code
