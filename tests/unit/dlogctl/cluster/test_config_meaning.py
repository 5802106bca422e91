"""What configs mean, and their values with units."""

import pytest

from dlogctl.cluster.config_meaning import (
    INT64_MAX,
    every_meaning,
    meaning_of,
    names,
    nearest,
    plain_value,
    readable,
)
from dlogctl.shell.man_page import escape
from dlogd.config.schema import KEYS
from dlogd.metadata.state.topic_configs import CLUSTER_CONFIGS, TOPIC_CONFIGS


def test_a_config_is_found_by_each_of_its_names() -> None:
    by_topic = meaning_of("retention.ms")
    assert by_topic is not None
    assert by_topic == meaning_of("log.retention.ms")
    assert (by_topic.name, by_topic.file_name) == ("retention.ms", "retention.time")
    assert (by_topic.type, by_topic.bounds, by_topic.applies) == ("long", "at least -1", "at once")
    of_file = meaning_of("listeners")
    assert of_file is not None
    assert (of_file.name, of_file.applies) == ("listeners", "when the node restarts")
    assert meaning_of("nonsense") is None
    assert nearest("retentionms") == "retention.ms"
    assert nearest("zzzz") is None


def test_everything_is_explained() -> None:
    meanings = every_meaning()
    told = {name for each in meanings for name in (each.topic_name, each.file_name) if name}
    assert told >= {*TOPIC_CONFIGS, *KEYS}
    assert names(of_topics=True) == sorted(TOPIC_CONFIGS)
    assert names(of_topics=False) == sorted(CLUSTER_CONFIGS)
    for each in meanings:
        assert each.meaning, each.name
        assert each.type, each.name
    for key in TOPIC_CONFIGS.values():
        # Whoever has choices or one value only says so; a default is among the choices.
        assert not key.kind.choices or key.default in key.kind.choices, key.name
        assert key.kind.bounds or key.type.name in ("LONG", "INT", "LIST"), key.name


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "3d", "259200000"),
        ("retention.ms", " 90 min ", "5400000"),
        ("retention.ms", "-1", "-1"),
        ("segment.bytes", "1GiB", "1073741824"),
        ("message.bytes.max", "1MB", "1000000"),
        ("flush.policy", "3d", "3d"),
        ("retention.ms", "nonsense", "nonsense"),
    ],
)
def test_units(name: str, text: str, value: str) -> None:
    assert plain_value(name, text) == value


def test_units_that_are_none() -> None:
    for name, text in (("retention.ms", "3x"), ("segment.bytes", "3d"), ("retention.ms", "1GiB")):
        with pytest.raises(ValueError, match="is not a"):
            plain_value(name, text)


def test_values_for_people() -> None:
    assert readable("retention.ms", "604800000") == "604800000 (7d)"
    assert readable("retention.ms", "5") == "5"
    assert readable("flush.ms", str(INT64_MAX)) == f"{INT64_MAX} (no limit)"
    assert readable("segment.bytes", "1073741824") == "1073741824 (1GiB)"
    assert readable("segment.bytes", "1048588") == "1048588"
    assert readable("min.insync.replicas", "60000") == "60000"
    assert readable("retention.ms", "-1") == "-1"
    assert readable("x", None) is None


def test_text_of_a_manual_is_taken_literally() -> None:
    assert escape("a-b \\ c") == "a\\-b \\e c"
    assert escape(".TH\n'x") == "\\&.TH\n\\(aqx"
