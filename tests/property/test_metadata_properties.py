"""The machine is total and deterministic; commands, images and journals read back as written."""

from dataclasses import replace
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.types import NO_NODE, NodeId
from dlogd.metadata import journal_format
from dlogd.metadata.commands.codec import (
    AllocateProducerIds,
    AlterConfigs,
    Command,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    DeleteTopics,
    MalformedCommandError,
    RegisterNode,
    decode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.encoding import MalformedError
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage, NodeAddress

# Small domains, so that commands meet each other; each strategy mostly draws what makes sense.
ids = st.integers(2, 3).map(lambda number: UUID(int=number))
command_ids = st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number))
nodes = st.integers(0, 3).map(NodeId)
any_nodes = st.one_of(*[nodes] * 5, st.integers(-(2**31), 2**31 - 1).map(NodeId))
good_names = st.sampled_from(["a", "b", "a.b", "a_b"])
texts = st.one_of(good_names, st.text(max_size=20), st.sampled_from(["", "..", "x" * 250, "ä"]))
good_assignments = st.integers(1, 3).flatmap(
    lambda count: st.lists(
        st.permutations([NodeId(number) for number in range(4)]).map(
            lambda order: tuple(order[:count])
        ),
        min_size=1,
        max_size=3,
    ).map(tuple)
)
any_assignments = st.lists(st.lists(any_nodes, max_size=3).map(tuple), max_size=4).map(tuple)
assignments = st.one_of(*[good_assignments] * 6, any_assignments)
config_names = st.sampled_from(["k", "l", "m"] * 6 + [""])
configs = st.dictionaries(config_names, texts, max_size=3)
optional_texts = st.none() | texts
changes = st.builds(
    ConfigChange, key=config_names, value=optional_texts, compare=st.just(False)
) | st.builds(
    ConfigChange,
    key=config_names,
    value=optional_texts,
    compare=st.just(True),
    expected=optional_texts,
)
addresses = st.builds(NodeAddress, listener=texts, host=texts, port=st.integers(0, 65535))


def registrations(node_ids: st.SearchStrategy[NodeId]) -> st.SearchStrategy[RegisterNode]:
    return st.builds(
        RegisterNode,
        command_id=command_ids,
        cluster_id=st.sampled_from(["c", "c", "c", "d", ""]),
        node_id=node_ids,
        directory_ids=st.lists(ids, max_size=2).map(tuple),
        addresses=st.lists(addresses, max_size=2).map(tuple),
        rack=optional_texts,
        version=texts,
    )


def creations(name: st.SearchStrategy[str]) -> st.SearchStrategy[CreateTopic]:
    return st.builds(
        CreateTopic,
        command_id=command_ids,
        name=name,
        topic_id=ids,
        assignments=assignments,
        configs=configs,
    )


commands: st.SearchStrategy[Command] = st.one_of(
    registrations(any_nodes),
    creations(good_names),
    creations(good_names),
    creations(texts),
    st.builds(DeleteTopic, command_id=command_ids, topic_id=ids),
    st.builds(DeleteTopics, command_id=command_ids, topic_ids=st.lists(ids, max_size=3).map(tuple)),
    st.builds(
        CreatePartitions,
        command_id=command_ids,
        topic_id=ids,
        partition_count=st.integers(1, 3),
        assignments=assignments,
    ),
    st.builds(
        AlterConfigs,
        command_id=command_ids,
        topic_id=st.none() | ids,
        changes=st.lists(changes, max_size=3).map(tuple),
    ),
    st.builds(
        AllocateProducerIds,
        command_id=command_ids,
        node_id=nodes,
        node_epoch=st.integers(1, 4),
        count=st.sampled_from([0, 1, 1000, 1_000_000, 2_000_000]),
    ),
)
START: list[Command] = [
    RegisterNode(
        command_id=UUID(int=number),
        cluster_id="c",
        node_id=NodeId(number),
        directory_ids=(),
        addresses=(),
        rack=None,
        version="1",
    )
    for number in range(4)
]
histories = st.one_of(
    *[st.lists(commands, min_size=12, max_size=30).map(lambda history: START + history)] * 5,
    st.lists(commands, max_size=5),
)


def check(image: ClusterImage) -> None:
    """Assert what holds of every image."""
    assert list(image.topics.values()) == list(image.topics_by_id.values())
    assert all(name == topic.name for name, topic in image.topics.items())
    assert list(image.nodes) == sorted(image.nodes)
    for topic in image.topics.values():
        assert topic.partitions
        for partition in topic.partitions:
            assert set(partition.isr) <= set(partition.replicas) <= set(image.nodes)
            assert partition.leader == NO_NODE or partition.leader in partition.isr


def grown(history: list[Command]) -> ClusterImage:
    image = EMPTY_IMAGE
    for command in history:
        image, _ = apply.apply(image, encode(command))
    return image


@given(commands)
def test_commands_read_back(command: Command) -> None:
    data = encode(command)
    assert decode(data) == command
    assert encode(decode(memoryview(data))) == data


@given(commands, st.data())
def test_no_two_encodings_and_no_other_error(command: Command, draw: st.DataObject) -> None:
    data = bytearray(encode(command))
    for _ in range(draw.draw(st.integers(1, 4))):
        kind = draw.draw(st.integers(0, 3))
        position = draw.draw(st.integers(0, max(0, len(data) - 1)))
        if kind == 0:
            del data[position:]
        elif kind == 1 and data:
            data[position] = draw.draw(st.integers(0, 255))
        elif kind == 2:
            data[position:position] = draw.draw(st.binary(max_size=8))
        else:
            data += draw.draw(st.binary(max_size=8))
    try:
        decoded = decode(data)
    except MalformedCommandError:
        return
    assert encode(decoded) == bytes(data)


@given(st.binary(max_size=200), histories)
def test_the_machine_takes_any_bytes(data: bytes, history: list[Command]) -> None:
    image = grown(history)
    for prefix in (b"", *(bytes([kind, 1]) + bytes(16) for kind in range(1, 7))):
        after, _ = apply.apply(image, prefix + data)
        assert after.version == image.version + 1
        check(after)


@settings(max_examples=200)
@given(histories)
def test_images_hold_together_and_epochs_only_rise(history: list[Command]) -> None:
    image = EMPTY_IMAGE
    for command in history:
        after, outcome = apply.apply(image, encode(command))
        check(after)
        assert after.version == image.version + 1
        assert after.producer_id_next >= image.producer_id_next
        delta = between(image, after)
        if not isinstance(outcome, Applied):
            assert not delta
        for changed in delta.topics_changed:
            for old, new in zip(changed.old.partitions, changed.new.partitions, strict=False):
                assert new.leader_epoch >= old.leader_epoch
                assert new.partition_epoch >= old.partition_epoch
                assert (new == old) == (new.partition_epoch == old.partition_epoch)
        again, repeated = apply.apply(after, encode(command))
        assert repeated == outcome
        assert not between(after, again)
        image = after


@given(histories)
def test_snapshots_read_back_in_every_respect(history: list[Command]) -> None:
    image = grown(history)
    again = snapshot.decode(snapshot.encode(image))
    assert again == image
    assert list(again.topics) == list(image.topics)
    assert list(again.outcomes) == list(image.outcomes)
    assert snapshot.encode(again) == snapshot.encode(image)
    assert not between(image, again)


@given(histories, st.data())
def test_no_other_bytes_are_a_snapshot(history: list[Command], draw: st.DataObject) -> None:
    data = bytearray(snapshot.encode(grown(history[:5])))
    position = draw.draw(st.integers(0, len(data) - 1))
    data[position] ^= 1 << draw.draw(st.integers(0, 7))
    for wrong in (bytes(data), bytes(data[:position]), draw.draw(st.binary(max_size=100))):
        try:
            snapshot.decode(wrong)
        except MalformedError:
            continue
        raise AssertionError(f"{wrong!r} was taken for a snapshot")


@given(
    st.integers(0, 2**40),
    st.lists(st.lists(st.binary(max_size=30), max_size=4), max_size=6),
    st.integers(0, 400),
    st.binary(max_size=40),
)
def test_journals_read_back_up_to_a_torn_end(
    base: int, frames: list[list[bytes]], cut: int, tail: bytes
) -> None:
    data = bytearray(journal_format.encode_head(base))
    ends = [len(data)]
    version = base + 1
    for frame in frames:
        data += journal_format.encode_frame(len(data), version, frame)
        version += len(frame)
        ends.append(len(data))
    whole = journal_format.decode(bytes(data))
    assert [list(frame.commands) for frame in whole.frames] == frames
    assert (whole.end_version, whole.torn_bytes) == (version - 1, 0)
    kept = max(journal_format.HEAD_BYTES, len(data) - cut)
    torn = journal_format.decode(bytes(data[:kept]))
    assert torn.end_position == max(end for end in ends if end <= kept)
    trailing = journal_format.decode(bytes(data) + tail)
    assert trailing.end_position == len(data)
    assert trailing.torn_bytes == len(tail)


def test_what_has_no_bytes_is_refused_by_the_encoder() -> None:
    an_id = UUID(int=1)
    topic = CreateTopic(command_id=an_id, name="x", topic_id=an_id, assignments=())
    ask = AllocateProducerIds(command_id=an_id, node_id=NodeId(1), node_epoch=0, count=1)
    for wrong in (
        replace(topic, name="x" * 70_000),
        replace(topic, name="\ud800"),
        replace(topic, configs={"\ud800": "x"}),
        replace(topic, assignments=((NodeId(1),) * 256,)),
        replace(ask, node_id=NodeId(2**31)),
        replace(ask, count=-1),
    ):
        try:
            encode(wrong)
        except MalformedCommandError:
            continue
        raise AssertionError(f"{wrong} was encoded")
