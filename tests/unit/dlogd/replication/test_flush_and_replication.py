"""A leader's flush and what its followers do go on at the same time."""

from tests.fakes.small_fleet import SmallFleet, tell

FLUSH_S = 0.005
"""What a write and its flush take on every node: a hundred times a way through the network."""


def test_all_acknowledge_in_the_time_of_one_flush() -> None:
    """Not of two, one after the other: followers are sent what their leader has not flushed."""
    waited_s: list[float] = []

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", min_insync_replicas="3")
        await fleet.produce("t", b"asks who leads, and makes the files")
        for number in range(20):
            await fleet.sleep(0.05)  # nothing else is under way
            begun_s = fleet.loop.time()
            await fleet.produce("t", b"%d" % number)
            waited_s.append(fleet.loop.time() - begun_s)

    tell(story, disk_us=(int(FLUSH_S * 1e6), 0))
    assert min(waited_s) > FLUSH_S  # else somebody has not flushed at all
    assert max(waited_s) < 1.2 * FLUSH_S


def test_followers_have_flushed_what_their_leader_has_not() -> None:
    """Its disk takes twenty times as long as theirs. It counts itself in when it has flushed."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", min_insync_replicas="2")
        await fleet.produce("t", b"a")
        await fleet.until_in_sync("t")
        leader = fleet.replica(fleet.leader("t"), "t")
        followers = [fleet.replica(each, "t") for each in fleet.followers("t")]
        for disk in fleet.host(fleet.leader("t")).machine.disks.values():
            disk.latency.factor = 20
        sending = fleet.loop.create_task(fleet.produce("t", b"b"))
        await fleet.sleep(2 * FLUSH_S)
        assert [each.log.flushed_offset for each in followers] == [2, 2]
        assert (leader.log.log_end_offset, leader.log.flushed_offset) == (2, 1)
        assert leader.high_watermark == 1 and not sending.done()
        await sending
        assert leader.log.flushed_offset == leader.high_watermark == 2

    tell(story, disk_us=(int(FLUSH_S * 1e6), 0))
