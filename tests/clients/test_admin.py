"""Administrative calls of every client."""

import time
from collections.abc import Callable

import pytest

from tests.clients.drivers.driver import Driver, RefusedError
from tests.clients.records import check_same, numbered

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
INVALID_TOPIC = 17
TOPIC_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> bool:
    """Wait for what the server does after it has answered."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def refusal(call: Callable[[], object]) -> int:
    """Return the code with which `call` is refused."""
    with pytest.raises(RefusedError) as caught:
        call()
    return caught.value.code


def test_create_describe_list_delete(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 5)
    _, _, nodes = client.describe_cluster()
    assert eventually(lambda: len(client.describe_topic(topic_name)) == 5)
    assert set(client.describe_topic(topic_name)) <= set(nodes)
    assert topic_name in client.list_topics()
    client.delete_topic(topic_name)
    assert eventually(lambda: topic_name not in client.list_topics())
    assert refusal(lambda: client.delete_topic(topic_name)) == UNKNOWN_TOPIC


def test_a_topic_is_created_once(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    assert refusal(lambda: client.create_topic(topic_name)) == TOPIC_EXISTS


@pytest.mark.parametrize("name", ["with space", "слово", "a/b", "x" * 250, ".", ".."])
def test_names_that_are_no_names(client: Driver, name: str) -> None:
    assert refusal(lambda: client.create_topic(name)) == INVALID_TOPIC


def test_a_topic_needs_a_partition(client: Driver, topic_name: str) -> None:
    assert refusal(lambda: client.create_topic(topic_name, 0)) in (INVALID_PARTITIONS, -186)


def test_configs_are_kept_and_described(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"retention.ms": "3600000", "max.message.bytes": "500000"})
    configs = client.describe_configs(topic_name)
    assert configs["retention.ms"] == "3600000"
    assert configs["max.message.bytes"] == "500000"
    assert configs["cleanup.policy"] == "delete"
    assert int(configs["segment.bytes"] or 0) > 0


def test_a_config_that_makes_no_sense_is_refused(client: Driver, topic_name: str) -> None:
    wrong = {"retention.ms": "soon"}
    assert refusal(lambda: client.create_topic(topic_name, 1, wrong)) == INVALID_CONFIG
    assert topic_name not in client.list_topics()


def test_configs_are_altered(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"retention.ms": "3600000"})
    client.alter_configs(topic_name, {"retention.ms": "7200000", "max.message.bytes": "400000"})
    assert eventually(lambda: client.describe_configs(topic_name)["retention.ms"] == "7200000")
    assert client.describe_configs(topic_name)["max.message.bytes"] == "400000"
    wrong = {"retention.ms": "yesterday"}
    assert refusal(lambda: client.alter_configs(topic_name, wrong)) == INVALID_CONFIG
    assert client.describe_configs(topic_name)["retention.ms"] == "7200000"


@pytest.mark.needs("delete_config")
def test_an_override_is_deleted(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    default = client.describe_configs(topic_name)["retention.ms"]
    client.alter_configs(topic_name, {"retention.ms": "1000000"})
    assert eventually(lambda: client.describe_configs(topic_name)["retention.ms"] == "1000000")
    client.alter_configs(topic_name, {"retention.ms": None})
    assert eventually(lambda: client.describe_configs(topic_name)["retention.ms"] == default)


@pytest.mark.needs("config_errors")
def test_configs_of_a_topic_that_is_not_there(client: Driver, topic_name: str) -> None:
    assert refusal(lambda: client.describe_configs(topic_name)) == UNKNOWN_TOPIC


def test_partitions_are_added_and_usable(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 2)
    client.produce(topic_name, numbered(10, 1))
    client.create_partitions(topic_name, 4)
    assert eventually(lambda: len(client.describe_topic(topic_name)) == 4)
    client.produce(topic_name, numbered(10, 3))
    check_same(client.consume(topic_name, 3, "earliest", 10), numbered(10, 3))
    check_same(client.consume(topic_name, 1, "earliest", 10), numbered(10, 1))
    for count in (4, 3):
        again = refusal(lambda count=count: client.create_partitions(topic_name, count))  # type: ignore[misc]
        assert again == INVALID_PARTITIONS


def test_records_are_deleted(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name)
    for _ in range(5):
        client.produce(topic_name, numbered(20))
    # 30 lies inside a batch: its records before 30 must not be delivered again.
    assert client.delete_records(topic_name, 0, 30) == 30
    assert client.list_offset(topic_name, 0, "earliest") == 30
    assert client.list_offset(topic_name, 0, "latest") == 100
    read = client.consume(topic_name, 0, "earliest", 70)
    check_same(read, (numbered(20) * 5)[30:], 30)
    assert refusal(lambda: client.delete_records(topic_name, 0, 101)) == OFFSET_OUT_OF_RANGE
    assert client.delete_records(topic_name, 0, -1) == 100
    client.produce(topic_name, numbered(5))
    check_same(client.consume(topic_name, 0, "earliest", 5), numbered(5), 100)


def test_a_recreated_topic_is_empty(client: Driver, topic_name: str) -> None:
    """H19: deleting and creating again must not bring old records back."""
    client.create_topic(topic_name)
    client.produce(topic_name, numbered(10))
    client.delete_topic(topic_name)

    def created() -> bool:
        try:
            client.create_topic(topic_name)
        except RefusedError as error:
            assert error.code == TOPIC_EXISTS
            return False
        return True

    assert eventually(created, 30)
    assert eventually(lambda: client.list_offset(topic_name, 0, "latest") == 0)
    client.produce(topic_name, numbered(3))
    check_same(client.consume(topic_name, 0, "earliest", 3), numbered(3))


def test_the_cluster_is_described(client: Driver) -> None:
    cluster_id, controller, nodes = client.describe_cluster()
    assert cluster_id
    assert controller in nodes
    assert len(nodes) == len(set(nodes))


@pytest.mark.needs("log_dirs")
def test_log_dirs_are_described(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 2)
    client.produce(topic_name, numbered(1000))
    sizes = client.describe_log_dirs()
    assert sizes[f"{topic_name}-0"] > 5000
    assert sizes[f"{topic_name}-1"] == 0
