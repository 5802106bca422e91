"""A replica without a record: what it has deleted was of a history that does not count any more."""

from dlog.client.admin_views import Election
from dlog.client.cluster.partition_calls import delete_records
from tests.fakes.small_fleet import SmallFleet, tell


def stop(fleet: SmallFleet, node_id: int) -> None:
    """Let a node go without a word, until it is started."""
    fleet.host(node_id).is_held_down = True
    fleet.host(node_id).crash()


def start(fleet: SmallFleet, node_id: int) -> None:
    """Let it come back."""
    fleet.host(node_id).is_held_down = False
    fleet.host(node_id).boot()


OLD, EMPTY, LATE = 4, 5, 3
"""Who led first; whose log is empty; who was down. The metadata go on without any one of 1 to 3."""


async def who_lacks_records_leads(fleet: SmallFleet) -> None:
    """Let LATE, which has 2 of 5 records, lead: of EMPTY and OLD, both down, all were deleted."""
    configs = {"min.insync.replicas": "1"}
    await fleet.admin.create_topic("t", assignments=[[OLD, EMPTY, LATE]], configs=configs)
    await fleet.until_in_sync("t")
    await fleet.produce("t", b"a", b"b")
    stop(fleet, LATE)
    await fleet.until(lambda: LATE not in fleet.state("t").isr)
    await fleet.produce("t", b"c", b"d", b"e")
    node = await fleet.cluster.leader("t", 0)
    assert await delete_records(node, "t", {0: 5}) == {0: 5}
    held = fleet.replica(EMPTY, "t").log
    assert (held.log_start_offset, held.log_end_offset) == (5, 5)
    stop(fleet, OLD)
    stop(fleet, EMPTY)
    start(fleet, LATE)
    await fleet.until(lambda: fleet.is_up(LATE) and fleet.leader("t") == -1)
    await fleet.retry(lambda: fleet.admin.elect_leaders([("t", 0)], Election.UNCLEAN))
    await fleet.until(lambda: fleet.leader("t") == LATE)


def test_who_has_deleted_all_of_an_older_history_begins_where_its_leader_does() -> None:
    async def story(fleet: SmallFleet) -> None:
        await who_lacks_records_leads(fleet)
        values = [b"a", b"b", b"v", b"w", b"x", b"y", b"z"]
        await fleet.retry(lambda: fleet.cluster.metadata("t", refresh=True))
        await fleet.produce("t", *values[2:])
        start(fleet, EMPTY)
        await fleet.until(lambda: EMPTY in fleet.state("t").isr)
        stop(fleet, LATE)
        await fleet.until(lambda: fleet.leader("t") == EMPTY)
        await fleet.retry(lambda: fleet.cluster.metadata("t", refresh=True))
        start_offset = fleet.replica(EMPTY, "t").log.log_start_offset
        assert await fleet.retry(lambda: fleet.values("t", start=start_offset)) == values

    tell(story, nodes=5)
