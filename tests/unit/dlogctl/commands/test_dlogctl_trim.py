"""`dlogctl topic trim` against fake nodes: what is asked, shown and deleted."""

import dataclasses
import json
from typing import Any

import click
import pytest

from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from dlogctl.commands.topic_trim import Cut, plan_cuts
from tests.fakes.command_line import Ctl, World, ctl, world
from tests.fakes.peer import error, no_error, zero_time

__all__ = ["ctl", "world"]  # the fixtures

Trims = list[tuple[int, int]]


@pytest.fixture
def trims(world: World) -> Trims:
    """Let the node delete records; return what it was asked for. The logs hold 10 to 98."""
    found: Trims = []

    def answer(request: Any, module: Any, _header: RequestHeader) -> Any:
        (topic,) = request.topics
        answered = []
        for each in topic.partitions:
            index, offset = int(each.partition_index), int(each.offset)
            found.append((index, offset))
            code = error(56) if offset == 13 else no_error()
            answered.append(
                module.DeleteRecordsPartitionResult(
                    partition_index=each.partition_index, low_watermark=offset, error_code=code
                )
            )
        result = module.DeleteRecordsTopicResult(name=topic.name, partitions=tuple(answered))
        return module.DeleteRecordsResponse(throttle_time=zero_time(), topics=(result,))

    world.peer.answers[ApiKey.DELETE_RECORDS] = answer
    return found


def test_one_partition_below_an_offset(ctl: Ctl, trims: Trims) -> None:
    done = ctl("topic", "trim", "t:1", "--before", "40", "--yes")
    assert (done.code, done.out, done.err) == (0, "t-1: offsets 10 to 39 (30) deleted\n", "")
    assert trims == [(1, 40)]
    assert ctl("topic", "trim", "t-0", "--before", "end", "-y").code == 0
    assert trims == [(1, 40), (0, 99)]


def test_it_asks_and_shows_what_goes(ctl: Ctl, trims: Trims) -> None:
    asked = ctl("topic", "trim", "t", "--before", "-9", stdin="n\n")
    assert (asked.code, asked.out, trims) == (1, "", [])
    for part in ("t-0: offsets 10 to 89 (80)", "t-1: offsets 10", "Delete 160 offsets of 2 part"):
        assert part in asked.err
    agreed = ctl("topic", "trim", "t", "--before", "-9", stdin="y\n")
    assert (agreed.code, sorted(trims)) == (0, [(0, 90), (1, 90)])


def test_a_dry_run_changes_nothing(ctl: Ctl, trims: Trims) -> None:
    told = ctl("topic", "trim", "t", "--before", "-1h", "--dry-run")
    assert (told.code, trims) == (0, [])
    assert told.out.splitlines()[0] == "t-0: offsets 10 to 98 (89) would be deleted"


@pytest.mark.parametrize("place", ["start", "4", "10"])
def test_nothing_to_delete_is_no_error(ctl: Ctl, trims: Trims, place: str) -> None:
    told = ctl("topic", "trim", "t:0", "--before", place)
    assert (told.code, trims) == (0, [])
    assert "nothing to delete before offset" in told.out
    assert "it begins at 10" in told.out


def test_for_programs(ctl: Ctl, trims: Trims) -> None:
    rows = json.loads(ctl("topic", "trim", "t", "--before", "end", "-y", "-o", "json").out)
    assert rows[1] == {
        "topic": "t",
        "partition": 1,
        "from": 10,
        "before": 99,
        "offsets": 89,
        "result": "deleted",
        "log_start_offset": 99,
        "error": None,
    }
    assert len(trims) == 2
    bare = ctl("topic", "trim", "t:0", "--before", "20", "-y", "-o", "tsv", "--no-headers").out
    assert bare == "t\t0\t10\t20\t10\tdeleted\t20\t-\n"


def test_what_is_refused(ctl: Ctl, trims: Trims) -> None:
    refused = ctl("topic", "trim", "t", "--before", "40", "--yes")
    assert refused.code == 1
    assert "t has 2 partitions, and each has offsets of its own: name one of them, t:0" in (
        refused.err
    )
    behind = ctl("topic", "trim", "t:0", "--before", "100", "--yes")
    assert behind.code == 1
    assert "t-0 ends at 99: there is no offset 100" in behind.err
    assert ctl("topic", "trim", "t:7", "--before", "40").code == 1
    assert ctl("topic", "trim", "t:x", "--before", "40").code == 1
    missing = ctl("topic", "trim", "missing", "--before", "end", "--timeout", "3")
    assert missing.err == "dlogctl: there is no topic missing; see: dlogctl topic list\n"
    assert ctl("topic", "trim", "t:0").code == 64
    assert ctl("topic", "trim", "t:0", "--before", "soon").code == 64
    assert trims == []


def test_an_error_is_told_with_its_partition(ctl: Ctl, trims: Trims) -> None:
    failed = ctl("topic", "trim", "t:0", "--before", "13", "--yes", "--timeout", "3")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.startswith("dlogctl: t-0: not deleted: ")


def test_a_topic_whose_name_ends_like_a_partition(ctl: Ctl, world: World, trims: Trims) -> None:
    """`t:1` is a partition of `t`, also where there is a topic `t-1`."""
    told = ctl("topic", "trim", "t:1", "--before", "20", "--dry-run", "-o", "json")
    assert [row["partition"] for row in json.loads(told.out)] == [1]


def test_the_plan() -> None:
    key = TopicPartition("t", PartitionId(0))
    assert plan_cuts({key: 3}, {key: 9}, {key: 9}) == [Cut(key=key, start=3, before=9)]
    assert [cut.count for cut in plan_cuts({key: 3}, {key: 9}, {key: 1})] == [0]
    with pytest.raises(click.ClickException):
        plan_cuts({key: 3}, {key: 9}, {key: 10})
    assert dataclasses.replace(Cut(key=key, start=3, before=9), before=4).count == 1
