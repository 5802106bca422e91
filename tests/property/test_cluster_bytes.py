"""No bytes make the machine raise at feature level 2; a chunked map is a map."""

from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.types import NodeId
from dlogd.metadata.commands.codec import (
    CreateTopic,
    MalformedCommandError,
    Proof,
    RegisterNode,
    UnfenceNode,
    decode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage
from dlogd.metadata.state.persistent_map import PersistentMap, suspects
from dlogd.metadata.state.recent_map import RecentMap
from tests.golden.cluster_commands import COMMANDS


def cluster() -> ClusterImage:
    image = EMPTY_IMAGE
    commands: list[Any] = []
    for number in (1, 2):
        commands += [
            RegisterNode(
                command_id=UUID(int=number),
                cluster_id="c1",
                node_id=NodeId(number),
                directory_ids=(),
                addresses=(),
                rack=None,
                version="1",
                proof=Proof.NONE,
            ),
            UnfenceNode(
                command_id=UUID(int=number + 10), node_id=NodeId(number), node_epoch=2 * number - 1
            ),
        ]
    commands.append(
        CreateTopic(
            command_id=UUID(int=30),
            name="t",
            topic_id=UUID(int=0xAA),
            assignments=((NodeId(1), NodeId(2)),) * 4,
        )
    )
    for command in commands:
        image, outcome = apply.apply(image, encode(command))
        assert isinstance(outcome, Applied), outcome
    return image


CLUSTER = cluster()
GOLDEN = [bytes.fromhex(golden) for _, golden in COMMANDS]


@given(st.integers(0, 25), st.integers(0, 3), st.binary(max_size=120))
def test_the_machine_takes_any_bytes(kind: int, version: int, data: bytes) -> None:
    after, _ = apply.apply(CLUSTER, bytes([kind, version]) + bytes(15) + b"\x99" + data)
    assert after.version == CLUSTER.version + 1


@settings(max_examples=300)
@given(st.sampled_from(GOLDEN), st.data())
def test_the_machine_takes_damaged_commands(golden: bytes, draw: st.DataObject) -> None:
    data = bytearray(golden)
    data[2:18] = bytes(15) + b"\x99"
    for _ in range(draw.draw(st.integers(1, 4))):
        position = draw.draw(st.integers(0, len(data) - 1))
        data[position] = draw.draw(st.sampled_from([0, 1, 2, 3, 127, 255]))
    cut = draw.draw(st.integers(0, 3))
    data = data[: len(data) - cut]
    after, _ = apply.apply(CLUSTER, data)
    assert after.version == CLUSTER.version + 1
    try:
        decoded = decode(data)
    except MalformedCommandError:
        return
    assert encode(decoded) == bytes(data)


@given(
    st.lists(st.integers(0, 600), max_size=400),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 20),
)
def test_the_newest_items_are_kept_in_order(
    keys: list[int], keep: int, later: int, begin: int
) -> None:
    plain = {UUID(int=1000 + key): key for key in range(begin)}
    recent: RecentMap[int] = RecentMap(plain)
    versions = [(recent, plain)]
    for serial, number in enumerate(keys):
        key = UUID(int=number)
        if key in plain:
            assert recent[key] == plain[key]
            continue
        keep = keep if serial < 200 else max(keep, later)  # it never falls
        plain = dict([*plain.items(), (key, serial)][-keep:])
        recent = recent.with_newest(key, serial, keep)
        versions.append((recent, plain))
    for version, expected in versions[::7] + versions[-1:]:
        assert list(version.items()) == list(expected.items())
        assert len(version) == len(expected)
        assert version == RecentMap(expected)
        for number in range(0, 600, 11):
            key = UUID(int=number)
            assert version.get(key, -1) == expected.get(key, -1)
            assert (key in version) == (key in expected)


operations = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 400), max_size=80)), max_size=12
)


@given(operations)
def test_chunked_maps_are_maps(todo: list[tuple[bool, list[int]]]) -> None:
    plain: dict[int, int] = {}
    chunked: PersistentMap[int, int] = PersistentMap()
    for serial, (adds, keys) in enumerate(todo):
        before, copy = chunked, dict(plain)
        if adds:
            chunked = chunked.with_items([(key, serial) for key in keys])
            plain.update({key: serial for key in keys})
        else:
            chunked = chunked.without(keys)
            for key in keys:
                plain.pop(key, None)
        assert list(chunked.items()) == list(plain.items())
        assert list(before.items()) == list(copy.items()), "the map before must not change"
        assert len(chunked) == len(plain)
        assert chunked == PersistentMap(plain)
        assert all(chunked.get(key) == plain.get(key) for key in range(400))
        assert all((key in chunked) == (key in plain) for key in range(400))
        new = {key for key, value in plain.items() if copy.get(key) != value}
        assert new <= {key for key, _ in suspects(chunked, before)}
        gone = {key for key, value in copy.items() if plain.get(key) != value}
        assert gone <= {key for key, _ in suspects(before, chunked)}
