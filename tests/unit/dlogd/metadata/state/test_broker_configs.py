"""What a broker shows under Kafka's names: its file's values, read only."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dlogd.config.kafka_names import KAFKA_NAMES
from dlogd.config.load import load_config
from dlogd.config.schema import KEYS, Config
from dlogd.metadata.state import broker_configs
from dlogd.metadata.state.config_values import ConfigType
from tests.fakes.config_requests import (
    BROKER,
    CLUSTER_SOURCE,
    DEFAULT_SOURCE,
    FILE_SOURCE,
    SET,
    alter,
    describe,
)
from tests.fakes.server import FakeNode


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


@pytest.mark.parametrize(
    ("name", "value", "source", "kind"),
    [
        ("advertised.listeners", "PLAINTEXT://host1:9092", FILE_SOURCE, ConfigType.LIST),
        (
            "listeners",
            "PLAINTEXT://0.0.0.0:9092,PLAINTEXT://[::1]:9093",
            FILE_SOURCE,
            ConfigType.LIST,
        ),
        ("num.partitions", "3", FILE_SOURCE, ConfigType.INT),
        ("default.replication.factor", "1", DEFAULT_SOURCE, ConfigType.INT),
        ("auto.create.topics.enable", "true", FILE_SOURCE, ConfigType.BOOLEAN),
        ("delete.topic.enable", "true", DEFAULT_SOURCE, ConfigType.BOOLEAN),
        ("log.dirs", "/a,/b", FILE_SOURCE, ConfigType.LIST),
        ("log.dir", "/a,/b", FILE_SOURCE, ConfigType.LIST),
        ("broker.id", "1", DEFAULT_SOURCE, ConfigType.INT),
        ("node.id", "1", DEFAULT_SOURCE, ConfigType.INT),
        ("broker.rack", None, DEFAULT_SOURCE, ConfigType.STRING),
        ("log.retention.hours", "72", FILE_SOURCE, ConfigType.INT),
        ("log.roll.hours", "168", DEFAULT_SOURCE, ConfigType.INT),
        ("connections.max.idle.ms", "600000", DEFAULT_SOURCE, ConfigType.LONG),
        ("socket.request.max.bytes", "104857600", DEFAULT_SOURCE, ConfigType.INT),
        ("authorizer.class.name", "", DEFAULT_SOURCE, ConfigType.STRING),
    ],
)
def test_a_broker_shows_what_is_so_under_the_names_of_kafka(
    name: str, value: str | None, source: int, kind: ConfigType
) -> None:
    async def test() -> None:
        config = load_config(
            'listeners: ["0.0.0.0:9092", "[::1]:9093"]\nadvertised.address: host1:9092\n'
            "topic.partitions.default: 3\ntopic.auto_create: true\ndata.directories: [/a, /b]\n"
            "retention.time: 3d\n"
        )
        node = FakeNode(config)
        _, configs = await describe(node, BROKER, "1", name, include_synonyms=True)
        (found,) = configs.values()
        assert (found.name, found.value, found.config_source) == (name, value, source)
        assert (found.config_type, found.read_only) == (kind, True)
        assert (source == FILE_SOURCE) == any(s.source == FILE_SOURCE for s in found.synonyms)
        if value is not None and "hours" not in name:  # those are of the config in milliseconds
            assert found.synonyms[0].value == value
        # What is shown there cannot be set: the error says where it is.
        code, message = await alter(node, BROKER, "", (name, SET, "5"))
        assert code == 40
        if name in KAFKA_NAMES:
            assert f"{KAFKA_NAMES[name]} in the file of each node" in str(message)

    run(test())


@pytest.mark.parametrize(
    ("file", "source", "key"),
    [
        ("", DEFAULT_SOURCE, "listeners"),
        ('listeners: ["host1:9092"]', FILE_SOURCE, "listeners"),
        ("advertised.address: host1", FILE_SOURCE, "advertised.address"),
    ],
)
def test_what_clients_are_told_comes_from_the_file_that_has_a_listener(
    file: str, source: int, key: str
) -> None:
    async def test() -> None:
        node = FakeNode(load_config(file))
        name = "advertised.listeners"
        _, configs = await describe(node, BROKER, "1", name, include_synonyms=True)
        assert configs[name].config_source == source
        (synonym,) = configs[name].synonyms
        told = (synonym.name, synonym.value, synonym.source)
        assert told == (key, "PLAINTEXT://host1:9092", source)

    run(test())


def test_hours_are_shown_only_where_they_are_whole() -> None:
    async def test() -> None:
        node = FakeNode()
        for value, hours in (("3600000", "1"), ("-1", "-1"), ("5000", None)):
            await alter(node, BROKER, "", ("log.retention.ms", SET, value))
            _, configs = await describe(node, BROKER, "1", "log.retention.hours")
            assert [each.value for each in configs.values()] == ([hours] if hours else [])
            assert all(each.config_source == CLUSTER_SOURCE for each in configs.values())

    run(test())


def test_every_name_of_kafka_stands_for_a_key_and_has_a_value() -> None:
    names = [entry.name for entry in broker_configs.describe_node({}, Config(), None)]
    assert len(set(names)) == len(names)
    assert set(KAFKA_NAMES) <= set(names)
    assert set(KAFKA_NAMES.values()) <= set(KEYS)
