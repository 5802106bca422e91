"""Voters whose metadata log lost what they had confirmed: the leader sees it, and it ends well."""

from pathlib import Path

from dlogd.metadata import journal_format
from dlogd.metadata.raft.durable_log import NAME
from tests.cluster.nodes import cluster_of
from tests.cluster.running import make_topics, run

FORGOT = r"Node lost metadata entries that it had confirmed.* node=(\d+)"
EMPTY_FRAME_BYTES = len(journal_format.encode_frame(0, 1, ()))


def test_an_older_copy_of_a_raft_log_is_brought_up_to_date_and_told_of(tmp_path: Path) -> None:
    """The leader asked such a voter for ever for what it did not hold, and called it healthy."""

    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "before")
            controller = await cluster.controller()
            assert controller is not None
            voter = next(each for each in cluster.nodes if each is not controller)
            path = voter.data / "meta" / NAME
            assert await voter.stop() == 0
            older = path.read_bytes()
            await cluster.start([voter])
            await make_topics(cluster, "after")
            await cluster.until_equal()
            assert await voter.stop() == 0
            path.write_bytes(older)
            await cluster.start([voter])
            await cluster.until_equal()
            assert controller.said(FORGOT) == [str(voter.node_id)]

    run(work)


def test_what_rots_at_the_end_of_a_raft_log_is_not_forgotten(tmp_path: Path) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "t")
            voter = cluster.node(2)
            path = voter.data / "meta" / NAME
            assert await voter.stop() == 0
            data = bytearray(path.read_bytes())
            data[-EMPTY_FRAME_BYTES - 3] ^= 0x41
            path.write_bytes(data)
            await voter.start()
            assert await voter.ended() != 0
            assert voter.said("raft.log cannot be used") and voter.said("add it again")
            await cluster.until_well([cluster.node(1), cluster.node(3)])

    run(work)
