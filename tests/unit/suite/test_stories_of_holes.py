"""Holes of naive designs told on whole nodes in virtual time.

H1, H13, H14, H15, H18, H21, L6, L10, L13.

The others have their stories in tests/cluster, or where the part is that could have the hole.
"""

import asyncio
import re
from typing import Any

import pytest

from dlog.client.cluster.partition_calls import fetch, list_offsets, produce
from dlog.errors import CoordinatorNotAvailableError
from dlog.offset_specs import LATEST
from dlog.types import NodeId
from dlog.wire.apis import VERSIONS, ApiKey
from dlogd.metadata.commands.codec import DrainNode
from dlogd.metadata.machine import apply
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import Applied, ClusterImage, Drain
from tests.fakes.logs import batch_of, values_in, values_of
from tests.fakes.small_fleet import SmallFleet, tell
from tests.simulation.fleet.plan import address_of
from tests.tidy import sources

TESTS = sources.ROOT / "tests"
HOLES = [*(f"h{number}" for number in range(1, 22)), *(f"l{number}" for number in range(1, 11))]


def controller_of(fleet: SmallFleet) -> int:
    return int(fleet.image.controller.node_id)


async def read(fleet: SmallFleet, topic: str) -> list[bytes]:
    """Return what a topic has, for a client that may believe in a former leader."""

    async def ask() -> list[bytes]:
        await fleet.cluster.metadata(topic, refresh=True)
        return await fleet.values(topic)

    found: list[bytes] = await fleet.retry(ask)
    return found


def test_every_hole_has_its_story() -> None:
    told = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def test_([hl]\d+)_", path.read_text(), re.MULTILINE)
    }
    assert [each for each in [*HOLES, "l13"] if each not in told] == []


@pytest.mark.parametrize("lonely", [2, 9])
def test_h1_who_led_and_comes_back_has_the_log_of_those_who_went_on(lonely: int) -> None:
    """It took records that nobody else got: fewer than the others write without it, or more."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"all")
        await fleet.until_in_sync("t")
        old, others = fleet.leader("t"), fleet.followers("t")
        for each in others:
            fleet.network.block(address_of(old), address_of(each))
            fleet.network.block(address_of(each), address_of(old))
        node = await fleet.cluster.leader("t", 0)
        for number in range(lonely):
            await produce(node, "t", 0, bytes(batch_of(b"lonely %d" % number)), acks=1)
        await fleet.until(lambda: fleet.replica(old, "t").log.flushed_offset == 1 + lonely)
        fleet.host(old).is_held_down = True
        fleet.host(old).crash()
        await fleet.until(lambda: fleet.leader("t") in others)
        fleet.network.unblock_all()  # what was under way comes to nobody who still listens
        assert await read(fleet, "t") == [b"all"]
        await fleet.produce("t", b"a", b"b", b"c", b"d")
        fleet.host(old).is_held_down = False
        fleet.host(old).boot()
        await fleet.until_in_sync("t")
        await fleet.produce("t", b"e")
        await fleet.until_in_sync("t")
        expected = [b"all", b"a", b"b", b"c", b"d", b"e"]
        assert await read(fleet, "t") == expected
        for each in (1, 2, 3):
            assert await values_of(fleet.replica(each, "t").log) == list(enumerate(expected))

    tell(story)


def replayed(store: Any) -> ClusterImage:
    """Return what a log says by itself, as the next life of its node would read it."""
    image = ClusterImage()
    assert store.log.base_index <= 1, "entries are gone: their snapshot would have to be believed"
    for entry, index, _ in store.log.entries[1:]:
        if index <= store.core.applied_index and entry[0] == wire.COMMANDS:
            for item in wire.decode_items(entry):
                if item.what is wire.What.COMMAND:
                    image, _ = apply.apply(image, item.data)
    return image


def test_h13_whatever_happens_to_a_node_its_image_is_what_its_log_says() -> None:
    """A controller is cut off, deposed and comes back; another one is killed and starts again."""

    async def story(fleet: SmallFleet) -> None:
        def hold_to_their_logs() -> None:
            for each in (1, 2, 3):
                store: Any = fleet.broker(each).store
                said, had = replayed(store), store.image
                assert snapshot.encode(had) == snapshot.encode(said), f"node {each}: {had.nodes}"

        await fleet.create("t")
        hold_to_their_logs()
        alone = controller_of(fleet)
        lonely: Any = fleet.broker(alone).store
        for each in {1, 2, 3} - {alone}:
            fleet.network.block(address_of(alone), address_of(each))
            fleet.network.block(address_of(each), address_of(alone))
        await fleet.until(lambda: lonely.role != "leader" and controller_of(fleet) != alone)
        hold_to_their_logs()
        fleet.network.unblock_all()
        await fleet.until(lambda: fleet.is_up(alone))
        hold_to_their_logs()
        killed = controller_of(fleet)
        fleet.host(killed).crash()
        fleet.host(killed).boot()
        await fleet.until(lambda: controller_of(fleet) != killed and fleet.is_up(killed))
        await fleet.create("u")
        stores: Any = [fleet.broker(each).store for each in (1, 2, 3)]
        await fleet.until(lambda: len({each.image.version for each in stores}) == 1)
        hold_to_their_logs()
        assert len({snapshot.encode(each.image) for each in stores}) == 1
        assert {"t", "u"} == set(fleet.image.topics)

    tell(story)


def test_h14_what_was_acknowledged_outlives_the_power_of_all() -> None:
    """The moment the last acknowledgement arrives, all hosts lose their power together, and who led
    its disk as well: what its followers have promised has to be on theirs, which are slow, so that
    a word about one record leaves while the next ones are not flushed.
    """

    async def story(fleet: SmallFleet) -> None:
        # Node 4 is no voter: it loses its logs alone.
        await fleet.admin.create_topic("t", assignments=[[4, 1, 2]], timeout_ms=10_000)
        await fleet.until_in_sync("t")
        assert fleet.leader("t") == 4
        values = [b"%d" % number for number in range(30)]
        for each in (1, 2):
            for disk in fleet.host(each).machine.disks.values():
                disk.latency.factor = 50
        await asyncio.gather(*(fleet.produce("t", each) for each in values))
        for host in fleet.hosts:
            host.power_cut(keep=0.0)
        fleet.host(4).wipe()
        for host in fleet.hosts:
            host.boot()
        await fleet.until(lambda: all(fleet.is_up(each) for each in (1, 2, 3, 4)))
        await fleet.until_in_sync("t")
        assert await read(fleet, "t") == values
        assert fleet.image.unclean_elections == 0

    tell(story, nodes=4)


def test_h15_what_the_quorum_has_acknowledged_outlives_the_power_of_all() -> None:
    """Topics are made one after the other, and the power goes with the last answer."""

    async def story(fleet: SmallFleet) -> None:
        names = [f"t{number}" for number in range(5)]
        for name in names:
            await fleet.admin.create_topic(name, partitions=1, timeout_ms=10_000)
        term = fleet.host(1).broker.store.term  # type: ignore[union-attr]
        for host in fleet.hosts:
            host.power_cut(keep=0.0)
        for host in fleet.hosts:
            host.boot()
        await fleet.until(lambda: all(fleet.is_up(each) for each in (1, 2, 3)))
        assert sorted(fleet.image.topics) == names
        assert fleet.host(1).broker.store.term > term  # type: ignore[union-attr]

    tell(story)


def test_h15_what_only_a_deposed_leader_had_in_its_log_goes() -> None:
    """A controller is cut off with a proposal that nobody else gets; others go on without it."""

    async def story(fleet: SmallFleet) -> None:
        alone = controller_of(fleet)
        others = [each for each in (1, 2, 3) if each != alone]
        store: Any = fleet.broker(alone).store
        for each in others:
            fleet.network.block(address_of(alone), address_of(each))
            fleet.network.block(address_of(each), address_of(alone))
        command = apply.guarded(
            store.image,
            DrainNode(
                command_id=fleet.broker(alone).clustering.new_id(),  # type: ignore[union-attr]
                node_id=NodeId(alone),
                drain=Drain.LEADERS,
            ),
        )
        outcomes: list[Any] = []

        async def propose() -> None:
            deadline_ms = fleet.host(alone).clock.now_ms() + 60_000  # type: ignore[union-attr]
            outcomes.append(await store.propose(command, deadline_ms))

        host = fleet.host(alone)
        assert host.loop is not None
        before = store.log.last_index
        host.loop.call_soon(lambda: asyncio.Task(propose(), loop=host.loop))
        await fleet.until(lambda: store.log.last_index > before)
        lonely = store.log.entries[-1]
        await fleet.until(lambda: controller_of(fleet) in others)
        assert lonely in store.log.entries
        fleet.network.unblock_all()
        await fleet.until(lambda: fleet.is_up(alone))
        await fleet.until(lambda: store.image.version == fleet.image.version)
        assert lonely not in store.log.entries
        logs = [fleet.broker(each).store.log.entries for each in (1, 2, 3)]  # type: ignore[union-attr]
        assert logs[0][-3:] == logs[1][-3:] == logs[2][-3:]
        # It was sent again to those who lead by now, and is in the log once.
        await fleet.until(lambda: outcomes)
        assert isinstance(outcomes[0], Applied)
        assert fleet.image.nodes[NodeId(alone)].drain is Drain.LEADERS

    tell(story)


def test_l6_all_is_said_when_it_is_so_and_not_at_the_next_tick() -> None:
    """One record after the other with acks all, at all phases of whatever ticks: each takes four
    ways of 50 us and two flushes, and nobody looks now and then whether something has happened.
    """

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        node = await fleet.cluster.leader("t", 0)
        took_s = []
        for number in range(200):
            await fleet.sleep(number * 0.000_37)
            begun_s = fleet.loop.time()
            await produce(node, "t", 0, bytes(batch_of(b"%d" % number)), acks=-1)
            took_s.append(fleet.loop.time() - begun_s)
        assert max(took_s) < 0.001, sorted(took_s)

    tell(story)


def test_h18_the_high_watermark_itself_is_not_read() -> None:
    """A record that its followers do not have yet stands exactly at the high watermark."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b")
        await fleet.until_in_sync("t")
        leader, followers = fleet.leader("t"), fleet.followers("t")
        for each in followers:
            fleet.network.block(address_of(leader), address_of(each))
        node = await fleet.cluster.leader("t", 0)
        batch = bytes(batch_of(b"c", timestamp_ms=fleet.clock.timestamp_ms()))
        written = await produce(node, "t", 0, batch, acks=1)
        assert written is not None and written.base_offset == 2
        replica = fleet.replica(leader, "t")
        assert (replica.high_watermark, replica.log.log_end_offset) == (2, 3)
        assert (await list_offsets(node, "t", {0: LATEST}))[0][0] == 2
        for offset, seen in ((1, [b"b"]), (2, [])):
            view = await fetch(node, "t", 0, offset, max_wait_ms=0)
            assert [value for _, value in values_in(bytes(view.records))] == seen
        fleet.network.unblock_all()
        await fleet.until_in_sync("t")
        assert await fleet.values("t") == [b"a", b"b", b"c"]

    tell(story)


def test_h21_no_node_keeps_a_consumers_position_for_itself() -> None:
    """Until groups are there, all nodes refuse to coordinate one; a fetch at 0 is only a read."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b")
        await fleet.until_in_sync("t")
        before = fleet.image
        for node_id in (1, 2, 3):
            node = await fleet.cluster.node(node_id)
            answer = await node.call(
                ApiKey.FIND_COORDINATOR,
                lambda module: module.FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)),
                versions=(4, 4),
            )
            found = [int(each.error_code) for each in answer.coordinators]
            assert found == [CoordinatorNotAvailableError.code]
        for offset in (0, 1, 0):
            view = await fetch(await fleet.cluster.leader("t", 0), "t", 0, offset, max_wait_ms=0)
            assert values_in(bytes(view.records))[0][0] <= offset
        assert fleet.image.version == before.version
        # Nobody serves what would store or tell a position.
        commits_and_fetches_of_offsets = {8, 9}
        assert not commits_and_fetches_of_offsets & {int(api) for api in VERSIONS}

    tell(story)


def test_l10_a_node_opens_what_it_is_given_without_a_restart() -> None:
    """A node that holds nothing of a topic gets a replica of it, and then is alone with it."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", replicas=3)
        await fleet.produce("t", b"a", b"b")
        state = fleet.state("t")
        fresh = next(each for each in (1, 2, 3, 4) if each not in state.replicas)
        kept, *rest = (int(each) for each in state.replicas)
        await fleet.admin.alter_reassignments({("t", 0): [fresh, kept]}, timeout_ms=10_000)
        await fleet.until(lambda: set(fleet.state("t").replicas) == {fresh, kept})
        await fleet.until_in_sync("t")
        assert fleet.host(fresh).incarnation == 1
        fleet.host(kept).is_held_down = True
        fleet.host(kept).crash()
        await fleet.until(lambda: fleet.leader("t") == fresh)
        assert await read(fleet, "t") == [b"a", b"b"]
        assert rest

    tell(story, nodes=4)


def test_l13_who_dies_together_with_the_controller_is_given_up_by_the_next_one() -> None:
    """Nobody is controller when it falls silent, so nobody hears of it at that time."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", partitions=5, replicas=3)
        controller = controller_of(fleet)
        other = next(each for each in (5, 4) if each != controller)
        for each in (controller, other):
            fleet.host(each).is_held_down = True
            fleet.host(each).power_cut()
        left = {each for each in (1, 2, 3, 4, 5) if each not in (controller, other)}

        def is_given_up() -> bool:
            image = fleet.image
            fenced = {int(each) for each, node in image.nodes.items() if node.fenced}
            leaders = {int(each.leader) for each in image.topics["t"].partitions}
            return fenced == {controller, other} and leaders <= left

        await fleet.until(is_given_up, seconds=10)
        assert controller_of(fleet) in left

    tell(story, nodes=5)
