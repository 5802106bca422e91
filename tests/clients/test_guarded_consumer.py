"""A consumer that is replaced in the middle reads on where the one before it ended."""

import time

import pytest

from dlog.client.admin import NewTopic
from dlog.client.blocking import Admin, Producer
from tests.clients import guarded_consumer
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
