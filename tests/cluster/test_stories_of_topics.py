"""Which logs a node opens, and which never again (H10, H19, L10)."""

from dlog.client.admin import Admin
from tests.cluster.nodes import Node
from tests.cluster.replica_logs import folder_of
from tests.cluster.stage import Log, Stage, kill, start


def has(node: Node, log: Log) -> bool:
    """Whether a node has a log among those that it opens."""
    return folder_of([node.data], log.key) is not None


def test_h10_who_lost_a_replica_while_away_opens_it_no_more(stage: Stage) -> None:
    """A node is down while its replica moves to another one, which opens a log for it at once
    (L10). Back again it does not serve, follow or count.
    """

    async def story(stage: Stage) -> None:
        a, b, c, d = stage.nodes(1, 2, 3, 4)
        log = await stage.topic()
        await log.write(b"first")
        await kill(c)
        async with Admin([each.client_address for each in (a, b, d)]) as admin:
            await admin.alter_reassignments({(log.topic, 0): (1, 2, 4)})
            view = await log.until(lambda view: set(view.isr) == {1, 2, 4})
            assert set(view.replicas) == {1, 2, 4}
        assert has(d, log)
        await start(c)
        await stage.cluster.until_well()
        await log.write(b"second")
        await log.until_same([a, b, d])
        assert not has(c, log)
        assert set((await log.view()).isr) == {1, 2, 4}

    stage.play(story)


def test_h19_a_topic_made_anew_has_nothing_of_the_old_one(stage: Stage) -> None:
    """A topic is deleted and made again under its name while one replica is down, with more
    records than the new one will have.
    """

    async def story(stage: Stage) -> None:
        a, b, c = stage.nodes(1, 2, 3)
        old = await stage.topic()
        await old.write(*(b"old %d" % number for number in range(30)))
        await kill(c)
        async with Admin([each.client_address for each in (a, b)]) as admin:
            await admin.delete_topic(old.topic)
        new = await stage.topic_named(old.topic, (1, 2, 3))
        await new.until(lambda view: set(view.isr) >= {1, 2})
        await new.write(b"new 0", b"new 1")
        await start(c)
        await new.until_whole()
        assert new.key.topic_id != old.key.topic_id
        await new.until_same([a, b, c])
        assert await new.values() == [b"new 0", b"new 1"]
        assert not has(c, old)
        await kill(a, b)
        await start(a, b)
        await new.until_whole()
        assert await new.values() == [b"new 0", b"new 1"]

    stage.play(story)
