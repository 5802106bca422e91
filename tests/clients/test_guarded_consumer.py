"""A consumer that is replaced in the middle reads on where the one before it ended."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.client.admin import NewTopic
from dlog.client.blocking import Admin, Producer
from tests.clients import guarded_consumer
from tests.clients.failovers.libraries import LibrdkafkaLoad
from tests.clients.failovers.play import _finish, table
from tests.clients.guarded_consumer import GuardedConsumer

COUNT = 2_000
READ_S = 60.0


def test_a_new_consumer_goes_on_where_the_last_one_was(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name=topic_name, partitions=1)])
    with Producer(bootstrap) as producer:
        for number in range(COUNT):
            producer.send(topic_name, b"%d" % number, partition=0)
        producer.flush()
    consumer = GuardedConsumer(bootstrap, {(topic_name, 0): 0})
    # As if its main thread had told nothing for too long, after every call.
    monkeypatch.setattr(guarded_consumer, "LOCKED_S", -1.0)
    seen: list[int] = []
    end_s = time.monotonic() + READ_S
    while len(seen) < COUNT and time.monotonic() < end_s:
        found = consumer.consume(COUNT // 4, 2.0)
        seen += [int(each.value() or b"-1") for each in found if each.error() is None]
    consumer.close()
    assert seen == list(range(COUNT))
    assert consumer.lockups >= 4


def test_lockups_are_in_the_table_of_failovers(
    bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name=topic_name, partitions=3)])
    # A second without statistics, and there are none.
    monkeypatch.setattr(guarded_consumer, "LOCKED_S", 1.0)
    monkeypatch.setattr(guarded_consumer, "STATISTICS_MS", 600_000)
    load = LibrdkafkaLoad(bootstrap, topic_name, 3)
    load.start()
    time.sleep(2.5)
    load.stop_writing()
    cluster: Any = SimpleNamespace(bootstrap=bootstrap)
    result = _finish(cluster, load, [])
    assert (result.errors, result.breaches) == ([], [])
    assert result.record_count > 0 and result.lockup_count >= 1
    head, row = (line.split() for line in table([result]).splitlines())
    assert row[head.index("lockups")] == str(result.lockup_count)
