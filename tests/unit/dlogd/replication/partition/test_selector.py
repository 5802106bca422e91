"""Which replica a consumer in a rack is told to read from (KIP-392)."""

from dataclasses import replace

import pytest

from dlog.types import NO_NODE, LeaderEpoch, NodeId, Offset
from dlogd.metadata.state.image import ClusterImage, NodeAddress, NodeRegistration
from dlogd.replication.partition.leader_state import Leadership, LeaderState
from dlogd.replication.partition.replica_selector import read_replica
from tests.fakes.small_fleet import SmallFleet, tell

ME, NEAR, NEARER, FAR = (NodeId(each) for each in (1, 2, 3, 4))
RACKS = {ME: "attic", NEAR: "cellar", NEARER: "cellar", FAR: "roof"}


def node(node_id: NodeId, *, fenced: bool = False) -> NodeRegistration:
    return NodeRegistration(
        node_id=node_id,
        node_epoch=4,
        directory_ids=(),
        addresses=(NodeAddress(listener="", host="h", port=9092),),
        rack=RACKS[node_id],
        version="1",
        fenced=fenced,
    )


def led(isr: tuple[NodeId, ...] = (NEAR, NEARER, FAR)) -> LeaderState:
    """Followers with 10 to 50, 20 to 40 and nothing to 60."""
    state = LeaderState(LeaderEpoch(5), Offset(0))
    state.update(Leadership(followers=(NEAR, NEARER, FAR), isr=isr, min_isr=1), now_ms=0)
    for node_id, start, end in ((NEAR, 10, 50), (NEARER, 20, 40), (FAR, 0, 60)):
        progress = state.followers[node_id]
        progress.begin(node_epoch=7)
        progress.on_progress(end, end, 100, 0)
        progress.log_start_offset = Offset(start)
    return state


IMAGE = ClusterImage(nodes={each: node(each) for each in RACKS})


@pytest.mark.parametrize(
    ("rack", "offset", "expected"),
    [
        ("cellar", 30, NEAR),  # who has most
        ("cellar", 15, NEAR),
        ("cellar", 10, NEAR),
        ("cellar", 50, NEAR),  # waits there for the next
        ("cellar", 9, NO_NODE),  # both have dropped it already, the leader has not
        ("cellar", 51, NO_NODE),
        ("roof", 5, FAR),
        ("attic", 30, NO_NODE),  # the leader is there
        ("garden", 30, NO_NODE),
        ("", 30, NO_NODE),
    ],
)
def test_who_has_what_is_asked_for(rack: str, offset: int, expected: NodeId) -> None:
    assert read_replica(IMAGE, ME, led(), rack, offset) == expected


def test_who_is_out_of_sync_or_fenced_is_not_named() -> None:
    assert read_replica(IMAGE, ME, led(isr=(NEARER,)), "cellar", 30) == NEARER
    fenced = replace(IMAGE, nodes={**IMAGE.nodes, NEAR: node(NEAR, fenced=True)})
    assert read_replica(fenced, ME, led(), "cellar", 30) == NEARER


def test_a_leader_hears_what_a_follower_drops_on_its_own() -> None:
    """Else it would go on sending consumers there, who come back at once, for ever."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b", b"c")
        await fleet.until_in_sync("t")
        node_id = fleet.followers("t")[0]
        own = fleet.replica(node_id, "t").log
        own.config = replace(own.config, retention_ms=1)
        await fleet.until(lambda: own.log_start_offset == 3)
        leader = fleet.replica(fleet.leader("t"), "t").leader
        assert leader is not None
        await fleet.until(lambda: leader.followers[NodeId(node_id)].log_start_offset == 3, 5)

    tell(story, config={"retention.check.interval": "1s"})
