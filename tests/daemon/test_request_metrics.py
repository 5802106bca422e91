"""Every request is counted and timed, whatever its API; every error is counted by its name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlog.client.admin import Resource
from dlog.client.cluster.partition_calls import fetch, try_list_offsets
from dlog.client.producing.producer_id import init_producer_id
from dlog.errors import WireError
from dlog.offset_specs import LATEST
from tests.daemon.one_partition import append, read_all
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.raw import client_of

PREFIX = "dlog_server_request"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon(tmp_path) as process:
        yield process


def work(node: DaemonProcess) -> None:
    with client_of(node) as client:
        client.run(lambda: client.admin.create_topic("t", partitions=1))
        append(client, b"x")
        read_all(client)
        client.run(lambda: client.admin.describe_configs(Resource.TOPIC, "t"))

        async def more() -> None:
            leader = await client.cluster.leader("t", 0)
            await init_producer_id(leader)
            found = await try_list_offsets(leader, "t", {0: LATEST, 7: LATEST, 8: LATEST})
            assert isinstance(found[7], WireError)
            await fetch(leader, "t", 0, 1, max_wait_ms=200)  # waits in vain
            with pytest.raises(WireError):
                await fetch(leader, "t", 9, 0)

        client.run(more)


def test_every_request_is_counted_and_timed(node: DaemonProcess) -> None:
    node.start()
    work(node)
    requests: dict[str, float] = {}
    timed: dict[str, float] = {}
    seconds: dict[str, float] = {}
    errors: dict[tuple[str, str], float] = {}
    kinds = {
        f"{PREFIX}s_total": requests,
        f"{PREFIX}_seconds_count": timed,
        f"{PREFIX}_seconds_sum": seconds,
    }
    for family in text_string_to_metric_families(node.metrics()):
        for sample in family.samples:
            if sample.name in kinds:
                kinds[sample.name][sample.labels["api"]] = sample.value
            elif sample.name == f"{PREFIX}_errors_total":
                errors[sample.labels["api"], sample.labels["error"]] = sample.value
    assert timed == requests
    assert {name for name, count in requests.items() if count} == {
        "API_VERSIONS",
        "CREATE_TOPICS",
        "DESCRIBE_CONFIGS",
        "FETCH",
        "INIT_PRODUCER_ID",
        "LIST_OFFSETS",
        "METADATA",
        "PRODUCE",
    }
    assert all(0 < spent < 5 for spent in seconds.values()), seconds
    assert seconds["FETCH"] > 0.2
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert errors == {("LIST_OFFSETS", unknown): 2, ("FETCH", unknown): 1}
