"""Holes of naive designs that must not come back, by their names (H12, H19)."""

import asyncio
import random
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dlog.types import NodeId
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
from dlogd.metadata.local_store import MetadataStore
from dlogd.metadata.machine import apply
from dlogd.metadata.machine.placement import place
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage
from dlogd.runtime.clock import SystemClock
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.io.thread_engine import ThreadEngine
from tests.fakes.metadata_cluster import FakeCluster


def register(node_id: int, number: int = 0) -> RegisterNode:
    return RegisterNode(
        command_id=UUID(int=number or node_id),
        cluster_id="c",
        node_id=NodeId(node_id),
        directory_ids=(),
        addresses=(),
        rack=f"r{node_id % 2}",
        version="1",
    )


def create(number: int, name: str, replicas: tuple[int, ...]) -> CreateTopic:
    return CreateTopic(
        command_id=UUID(int=number),
        name=name,
        topic_id=UUID(int=number),
        assignments=(tuple(map(NodeId, replicas)),),
    )


def applied(image: ClusterImage, *commands: Command) -> ClusterImage:
    for command in commands:
        image, outcome = apply.apply(image, encode(command))
        assert isinstance(outcome, Applied)
    return image


def test_places_do_not_depend_on_the_order_of_maps() -> None:
    """Nodes are registered in any order, and have come back in another."""
    places = set()
    for order in permutations((1, 2, 3, 4)):
        image = applied(EMPTY_IMAGE, *(register(node_id) for node_id in order))
        places.add(place(image, 12, 3))
    assert len(places) == 1


class Twins(FakeCluster):
    """Two machines, each told of a command of the log before either hears of the next one.

    What a machine counts for itself, or takes from something that moves, differs then.
    """

    def __init__(self, nodes: int = 0) -> None:
        self.other: ClusterImage = EMPTY_IMAGE
        super().__init__(nodes)

    def apply(self, command: Any) -> int:
        value = super().apply(command)
        self.other, outcome = apply.apply(self.other, encode(command))
        assert isinstance(outcome, Applied) and outcome.value == value
        assert snapshot.encode(self.other) == snapshot.encode(self.image), command
        return value

    def leadership(self) -> tuple[int, int]:
        """Return who leads, and in which epoch."""
        return int(self.partition().leader), int(self.partition().leader_epoch)


def test_h12_two_machines_elect_the_same_leaders_in_the_same_epochs() -> None:
    """H12: leader choice in map order, epoch computed outside the state machine."""
    twins = Twins(4)
    twins.create("t", (3, 1, 4))
    assert twins.leadership() == (3, 0)
    twins.fence(3)
    assert twins.leadership() == (1, 1), "the first replica in sync that can, and one more"
    twins.unfence(3)
    twins.catch_up()
    twins.fence(2)
    assert twins.leadership() == (1, 1), "nobody had to be elected"
    twins.fence(1)
    assert twins.leadership() == (3, 2)


def test_h12_a_leader_that_starts_again_leads_in_the_same_epoch_on_two_machines() -> None:
    """H12: of one node alone there is no election; its new life is a new epoch all the same."""
    twins = Twins()
    for life in range(5):
        twins.apply(register(1, 200 + life))
        if not life:
            twins.create("t", (1,))
        assert twins.leadership() == (1, life)


def history(rng: random.Random) -> list[Command]:
    commands: list[Command] = [register(node_id) for node_id in range(1, 5)]
    for number in range(1000, 1060):
        an_id, topic_id = UUID(int=number), UUID(int=1000 + rng.randrange(number - 999))
        assignment = (NodeId(rng.randrange(1, 5)),)
        change = ConfigChange(key=rng.choice("abc"), value=rng.choice(("1", "2", None)))
        commands.append(
            rng.choice(
                (
                    register(rng.randrange(1, 5), number),
                    create(number, rng.choice("tuvwxyz"), tuple(rng.sample(range(1, 5), 2))),
                    DeleteTopic(command_id=an_id, topic_id=topic_id),
                    CreatePartitions(
                        command_id=an_id,
                        topic_id=topic_id,
                        partition_count=1,
                        assignments=(assignment,),
                    ),
                    AlterConfigs(command_id=an_id, topic_id=topic_id, changes=(change,)),
                    AlterConfigs(command_id=an_id, topic_id=None, changes=(change,)),
                    AllocateProducerIds(
                        command_id=an_id, node_id=NodeId(1), node_epoch=1, count=rng.randrange(3)
                    ),
                )
            )
        )
    return commands


@pytest.mark.parametrize("seed", range(20))
def test_nodes_that_apply_the_same_commands_are_equal_to_the_byte(seed: int) -> None:
    """The machine alone; that nothing else changes an image is told of whole nodes (H13).

    One node applies everything; another begins from a snapshot somewhere on the way.
    """
    rng = random.Random(seed)
    commands = [encode(command) for command in history(rng)]
    joined_at = rng.randrange(len(commands))
    one, other = EMPTY_IMAGE, EMPTY_IMAGE
    for number, command in enumerate(commands):
        if number == joined_at:
            other = snapshot.decode(snapshot.encode(one))
        one, outcome = apply.apply(one, command)
        if number >= joined_at:
            other, other_outcome = apply.apply(other, command)
            assert other_outcome == outcome
    assert snapshot.encode(other) == snapshot.encode(one)
    assert list(other.topics) == list(one.topics)
    assert one.topics, "the history must have made something"


def test_h19_a_recreated_topic_is_another_topic() -> None:
    """H19: delete and re-create resurrects old data."""
    before = applied(EMPTY_IMAGE, register(1), create(100, "t", (1,)))
    old_id = before.topics["t"].topic_id
    late = DeleteTopic(command_id=UUID(int=300), topic_id=old_id)
    after = applied(
        before, DeleteTopic(command_id=UUID(int=200), topic_id=old_id), create(101, "t", (1,))
    )
    assert after.topics["t"].topic_id != old_id
    delta = between(before, after)
    assert [topic.topic_id for topic in delta.topics_deleted] == [old_id]
    assert [topic.topic_id for topic in delta.topics_created] == [after.topics["t"].topic_id]
    assert not delta.topics_changed
    # What somebody decided about the first life does not touch the second.
    assert not between(after, apply.apply(after, encode(late))[0])


def test_the_store_keeps_its_promise_on_a_real_file_system(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = ThreadEngine(asyncio.get_running_loop())
        clock = SystemClock()
        directory = PosixDirectory(str(tmp_path))
        for life in range(3):
            store = await MetadataStore.open(directory, engine, clock=clock, journal_bytes_max=400)
            numbers = range(100 * life, 100 * life + 10)
            topics = [create(number + 20, f"t{number}", (1,)) for number in numbers]
            commands: list[Command] = [register(1, 10 + life), *topics]
            for command in commands:
                outcome = await store.propose(command, clock.now_ms() + 10_000)
                assert isinstance(outcome, Applied)
            last = store.image
            await store.close()
        store = await MetadataStore.open(directory, engine, clock=clock)
        assert store.image == last
        assert len(last.topics) == 30
        await store.close()
        assert len([path for path in tmp_path.iterdir() if path.suffix == ".journal"]) == 1
        engine.close()

    asyncio.run(scenario())
