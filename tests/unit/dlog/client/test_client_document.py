"""docs/client.md names every option with its default, every counter and every log line."""

import dataclasses
import inspect
import re
from enum import Enum
from typing import Any

import pytest

from dlog.client.cluster.counters import ClientCounters
from dlog.client.consumer import Consumer
from dlog.client.consuming.consumer_counters import ConsumerCounters
from dlog.client.producer import Producer
from dlog.client.producing.batch_results import ProducerCounters
from dlog.client.retry import RetryPolicy
from dlog.transport import ConnectionOptions
from tests.tidy import sources

TEXT = (sources.ROOT / "docs" / "client.md").read_text(encoding="utf-8")
EVENT = re.compile(
    r'log_event\(\s*(?:logging\.\w+|[^"]*?),\s*"([A-Z][^"]+)"(?: if \w+ else "([^"]+)")?'
)


def shown(default: Any) -> str:
    if isinstance(default, Enum):
        return default.name
    if inspect.isbuiltin(default):
        return f"{default.__module__}.{default.__name__}"
    return str(default)


@pytest.mark.parametrize("owner", [Producer, Consumer, RetryPolicy, ConnectionOptions])
def test_every_option_is_there_with_its_default(owner: type) -> None:
    table = TEXT.partition(f"| option of `{owner.__name__}` |")[2].partition("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", table, re.M))
    given = inspect.signature(owner).parameters.values()
    assert rows == {each.name: shown(each.default) for each in given if each.name != "bootstrap"}


@pytest.mark.parametrize("counters", [ProducerCounters, ConsumerCounters, ClientCounters])
def test_every_counter_is_there(counters: Any) -> None:
    names = [each.name for each in dataclasses.fields(counters) if each.type is int]
    assert len(names) >= 8
    assert [name for name in names if f"`{name}`" not in TEXT] == []


def test_every_log_line_is_there() -> None:
    files = (sources.ROOT / "dlog" / "client").rglob("*.py")
    found = [EVENT.findall(each.read_text(encoding="utf-8")) for each in files]
    events = {event for pairs in found for pair in pairs for event in pair if event}
    assert len(events) >= 14
    assert [event for event in sorted(events) if f"`{event}`" not in TEXT] == []
