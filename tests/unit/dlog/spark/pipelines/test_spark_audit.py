"""What an audit compares, and what it only names: without Spark, from the bounds of both sides."""

from collections.abc import Mapping
from typing import Any

import pytest

from dlog.client.views import TopicView
from dlog.errors import InvalidTopicError, UnknownTopicOrPartitionError
from dlog.spark.errors import SparkSourceError
from dlog.spark.pipelines.archives.manifest import Hole
from dlog.spark.pipelines.audit import NOTHING_COMPARED, AuditRules, _Run, audit
from dlog.spark.pipelines.comparison import Finding, Span
from dlog.spark.pipelines.origins import _checked, find_bounds, find_origin
from dlog.spark.pipelines.sides import Extent
from dlog.spark.settings import ClientSettings
from dlog.types import ZERO_TOPIC_ID, PartitionId, TopicPartition


class Bounds:
    """A side of which only the bounds are known."""

    def __init__(self, **extents: tuple[int, int]) -> None:
        self._extents = {int(name[1:]): Extent(*each) for name, each in extents.items()}

    def extents(self) -> dict[int, Extent]:
        return self._extents

    def starts(self) -> dict[int, int]:
        return {partition: each.start for partition, each in self._extents.items()}

    def problems(self) -> list[str]:
        return []

    def holes(self) -> list[Hole]:
        return []


def planned(left: Any, right: Any, *, align: bool = False) -> tuple[list[Span], list[Finding]]:
    run = _Run(left, right, AuditRules(align=align))
    return run.spans, run.not_compared


HERE, THERE = "only here", "only in the other"


@pytest.mark.parametrize(
    ("left", "right", "spans", "rest"),
    [
        ({"p0": (0, 9)}, {"p0": (0, 9)}, [(0, 0, 9)], []),
        ({"p0": (0, 9)}, {"p0": (0, 7)}, [(0, 0, 7)], [(0, 7, 9, HERE)]),
        ({"p0": (0, 7)}, {"p0": (0, 9)}, [(0, 0, 7)], [(0, 7, 9, THERE)]),
        ({"p0": (2, 7)}, {"p0": (0, 9)}, [(0, 2, 7)], [(0, 0, 2, THERE), (0, 7, 9, THERE)]),
        ({"p0": (0, 0)}, {"p0": (0, 4)}, [], [(0, 0, 4, THERE)]),
        ({"p0": (0, 4)}, {"p0": (8, 9)}, [], [(0, 0, 4, HERE), (0, 8, 9, THERE)]),
        ({"p0": (8, 9)}, {"p0": (0, 4)}, [], [(0, 8, 9, HERE), (0, 0, 4, THERE)]),
        ({"p0": (0, 4)}, {"p1": (0, 4)}, [], [(0, 0, 4, HERE), (1, 0, 4, THERE)]),
    ],
)
def test_what_only_one_side_has_is_named(
    left: Mapping[str, tuple[int, int]],
    right: Mapping[str, tuple[int, int]],
    spans: list[Any],
    rest: list[Any],
) -> None:
    found, noted = planned(Bounds(**left), Bounds(**right))
    assert [each for each in found if each.start < each.end] == [Span(*each) for each in spans]
    assert noted == [Finding(*each) for each in rest]


@pytest.mark.parametrize(
    ("left", "right", "problems"),
    [
        ({"p0": (0, 4)}, {"p0": (8, 9)}, (NOTHING_COMPARED,)),
        ({"p0": (0, 4)}, {"p0": (0, 0)}, (NOTHING_COMPARED,)),
        ({"p0": (0, 4)}, {"p1": (0, 4)}, (NOTHING_COMPARED,)),
        ({"p0": (0, 0)}, {"p0": (0, 0)}, ()),
    ],
)
def test_two_that_have_nothing_in_common_are_not_called_equal(
    left: Mapping[str, tuple[int, int]],
    right: Mapping[str, tuple[int, int]],
    problems: tuple[str, ...],
) -> None:
    done = audit(Bounds(**left), Bounds(**right), AuditRules())
    assert done.problems == problems and done.good == (not problems)


def test_by_place_the_rest_has_the_offsets_of_the_left() -> None:
    spans, noted = planned(Bounds(p0=(100, 105)), Bounds(p0=(7, 15)), align=True)
    assert spans == [Span(0, 0, 5)] and noted == [Finding(0, 105, 108, THERE)]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidTopicError, r"DLOG_LOOKUP_FAILED.*h:1 says of topic 'a b': INVALID_TOPIC_EXC"),
        (UnknownTopicOrPartitionError, "DLOG_UNKNOWN_TOPIC_OR_PARTITION.*no topic a b"),
    ],
)
def test_what_the_cluster_says_of_a_topic(error: Any, said: str) -> None:
    view = TopicView(
        name="a b",
        topic_id=ZERO_TOPIC_ID,
        is_internal=False,
        partitions=(),
        error_code=error.code,
    )
    with pytest.raises(SparkSourceError, match=said):
        _checked(view, "a b", ClientSettings(bootstrap="h:1"))


def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    settings = ClientSettings(bootstrap="127.0.0.1:1", deadline_s=0.1)
    with pytest.raises(SparkSourceError, match=r"Asked 127\.0\.0\.1:1 for topics: ") as error:
        find_origin(settings, ["t"])
    assert error.value.is_unreachable
    with pytest.raises(SparkSourceError, match=r"Asked 127\.0\.0\.1:1 for offsets: ") as error:
        find_bounds(settings, [TopicPartition("t", PartitionId(0))])
    assert error.value.is_unreachable
