"""Topic and cluster configs: the table, which value holds, how requests become changes."""

from uuid import UUID

import pytest

from dlog.errors import InvalidConfigError, InvalidRequestError
from dlogd.config.choices import AckMode, FlushPolicy
from dlogd.config.load import load_config
from dlogd.config.schema import KEYS, Config
from dlogd.metadata.commands.codec import AlterConfigs, ConfigChange, CreateTopic, DeleteTopic
from dlogd.metadata.machine.admission import admit, evaluate
from dlogd.metadata.machine.config_changes import (
    AlterOperation,
    ConfigOperation,
    ConfigScope,
    plan_incremental,
    plan_replacement,
)
from dlogd.metadata.state import topic_configs
from dlogd.metadata.state.config_values import ConfigSource, ConfigType
from dlogd.metadata.state.effective_configs import (
    ConfigEntry,
    TimestampType,
    describe_cluster,
    describe_node,
    describe_topic,
    resolve,
)
from dlogd.metadata.state.image import EMPTY_IMAGE, Refused
from dlogd.metadata.state.topic_configs import CLUSTER_CONFIGS, NODE_CONFIGS, TOPIC_CONFIGS
from tests.tidy import sources

NODE = Config()


def test_every_default_is_a_value_of_its_key() -> None:
    assert len(TOPIC_CONFIGS) + len(NODE_CONFIGS) == len(CLUSTER_CONFIGS)
    for key in TOPIC_CONFIGS.values():
        assert key.kind.canonical(key.default) == key.default, key.name
        assert key.doc.rstrip(".") != key.doc or key.doc.startswith("Fixed:"), key.name
        assert key.node_key is None or key.node_key in KEYS


def test_defaults_are_those_of_kafka() -> None:
    defaults = {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "segment.index.bytes": "10485760",
        "index.interval.bytes": "4096",
        "max.message.bytes": "1048588",
        "min.insync.replicas": "1",
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.after.max.ms": "3600000",
        "delete.retention.ms": "86400000",
        "unclean.leader.election.enable": "false",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
    }
    assert {name: TOPIC_CONFIGS[name].default for name in defaults} == defaults
    topic_configs.validate_topic(defaults)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "7d", "Not a number"),
        ("retention.ms", "", "Not a number"),
        ("retention.ms", "99999999999999999999", "Not a number"),
        ("retention.ms", "9999999999999999999", "no more than"),
        ("segment.bytes", "1023", "at least 1024"),
        ("segment.bytes", "2147483648", "no more than 2147483647"),
        ("min.insync.replicas", "0", "at least 1"),
        ("cleanup.policy", "compact", "compaction is not available"),
        ("cleanup.policy", "compact,delete", "compaction is not available"),
        ("cleanup.policy", "", "to keep all, set retention.ms to -1"),
        ("cleanup.policy", "shred", "must be one of"),
        ("cleanup.policy", "delete,delete,compact", "compaction is not available"),
        ("compression.type", "brotli", "must be one of"),
        ("message.timestamp.type", "createtime", "must be one of"),
        ("unclean.leader.election.enable", "yes", "true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "Not a number"),
        ("min.cleanable.dirty.ratio", "1e999", "from 0 to 1"),
        ("flush.policy", "sometimes", "must be one of: always, interval, never"),
        ("flush.messages", "0", "at least 1"),
        ("flush.ms", "-1", "at least 0"),
        ("compression.gzip.level", "0", "at least 1"),
        ("compression.gzip.level", "10", "no more than 9"),
        ("compression.lz4.level", "18", "no more than 17"),
        ("compression.lz4.level", "-1", "at least 1"),
        ("compression.zstd.level", "-131073", "at least -131072"),
        ("compression.zstd.level", "23", "no more than 22"),
        ("file.delete.delay.ms", "-1", "at least 0"),
        ("segment.jitter.ms", "-1", "at least 0"),
        ("segment.index.bytes", "3", "at least 4"),
        ("local.retention.ms", "-3", "at least -2"),
        ("ack.floor", "-1", "must be one of: none, leader, all"),
        ("remote.storage.enable", "true", "there is no remote storage"),
        ("leader.replication.throttled.replicas", "1", "partition:node"),
        ("replica.lag.time.max.ms", "0", "at least 1"),
    ],
)
def test_refused_values(name: str, value: str, reason: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        topic_configs.validate_topic({name: value})
    assert reason in str(caught.value)
    assert f"for configuration {name}" in str(caught.value)


def test_accepted_values() -> None:
    topic_configs.validate_topic(
        {
            "cleanup.policy": " delete ",
            "retention.ms": " +5 ",
            "unclean.leader.election.enable": "TRUE",
            "min.cleanable.dirty.ratio": ".25",
            "delete.retention.ms": "1",
            "preallocate": "true",
            "compression.type": "producer",
        }
    )


@pytest.mark.parametrize(
    "configs",
    [
        *({"compression.type": each} for each in ("producer", "uncompressed", "gzip", "snappy")),
        *({"compression.type": each} for each in ("lz4", "zstd")),
        *({"compression.gzip.level": each} for each in ("-1", "1", "9")),
        {"compression.lz4.level": "17", "compression.zstd.level": "-131072"},
        {"flush.messages": "1", "flush.ms": "0"},
        {"file.delete.delay.ms": "1000", "segment.jitter.ms": "60000"},
        {"cleanup.policy": "delete,delete"},
        {"cleanup.policy": " delete , delete "},
        {"segment.index.bytes": "4", "preallocate": "true"},
        {"local.retention.ms": "5", "local.retention.bytes": "5"},
        {"remote.log.copy.disable": "true", "remote.log.delete.on.disable": "true"},
    ],
)
def test_hints_of_kafka_are_kept_and_change_nothing(configs: dict[str, str]) -> None:
    topic_configs.validate_topic(configs)
    names = {TOPIC_CONFIGS[name].cluster_name: value for name, value in configs.items()}
    topic_configs.validate_cluster(names)
    assert resolve(configs, {}, NODE) == resolve({}, {}, NODE)
    assert resolve({}, names, NODE) == resolve({}, {}, NODE)
    shown = {each.name: each.value for each in describe_topic(configs, {}, NODE)}
    assert {name: shown[name] for name in configs} == configs


@pytest.mark.parametrize(
    ("policy", "messages", "ms", "expected", "interval_ms"),
    [
        ("always", "1", "1", FlushPolicy.ALWAYS, 500),
        ("interval", None, None, FlushPolicy.INTERVAL, 500),
        ("interval", None, "1000", FlushPolicy.INTERVAL, 500),
        ("interval", None, "499", FlushPolicy.INTERVAL, 499),
        ("interval", None, "0", FlushPolicy.ALWAYS, 500),
        ("interval", "10000", None, FlushPolicy.ALWAYS, 500),
        ("interval", "9223372036854775807", "9223372036854775807", FlushPolicy.INTERVAL, 500),
        ("never", None, None, FlushPolicy.NEVER, 500),
        ("never", None, "1000", FlushPolicy.INTERVAL, 1000),
        ("never", "1", "1000", FlushPolicy.ALWAYS, 500),
    ],
)
def test_flushing_is_never_weaker_than_any_of_its_configs(
    policy: str, messages: str | None, ms: str | None, expected: FlushPolicy, interval_ms: int
) -> None:
    topic = {"flush.policy": policy, "flush.interval.ms": "500"}
    topic |= {} if messages is None else {"flush.messages": messages}
    topic |= {} if ms is None else {"flush.ms": ms}
    config = resolve(topic, {}, NODE)
    assert config.flush_policy is expected
    if expected is FlushPolicy.INTERVAL:
        assert config.flush_interval_ms == interval_ms


def test_unknown_names_come_with_a_hint() -> None:
    for configs, hint in (
        ({"retention.msx": "1"}, "did you mean retention.ms"),
        ({"log.retention.ms": "1"}, "here it is retention.ms"),
        ({"x" * 1000: "1"}, "Unknown topic config name"),
    ):
        with pytest.raises(InvalidConfigError, match=hint):
            topic_configs.validate_topic(configs)
    with pytest.raises(InvalidConfigError, match=r"here it is log\.retention\.ms"):
        topic_configs.validate_cluster({"retention.ms": "1"})
    topic_configs.validate_cluster({"log.retention.ms": "1", "ack.floor": "all"})


@pytest.mark.parametrize(("asked", "expected"), [("0", 1), ("5000", 5000), ("33554432", 4 << 20)])
def test_a_write_ends_at_an_entry_of_the_index(asked: str, expected: int) -> None:
    """Recovery takes what is longer than a write for damage."""
    found = resolve({"index.interval.bytes": asked}, {}, NODE).index_interval_bytes
    assert found == expected


def test_the_order_of_sources() -> None:
    node = load_config("retention.time: 3d\nflush.policy: interval\nack.default: leader")
    cluster = {"log.retention.ms": "2", "flush.policy": "never", "ack.floor": "all"}
    topic = {"retention.ms": "1"}
    assert resolve({}, {}, NODE).retention_ms == 604_800_000
    assert resolve({}, {}, node).retention_ms == 259_200_000
    assert resolve({}, cluster, node).retention_ms == 2
    config = resolve(topic, cluster, node)
    assert config.retention_ms == 1
    assert config.flush_policy is FlushPolicy.NEVER
    assert config.timestamp_type is TimestampType.CREATE_TIME
    # A default weaker than the floor would never be what a client gets.
    assert (config.ack_default, config.ack_floor) == (AckMode.ALL, AckMode.ALL)


def test_values_are_bounded_by_what_the_node_can_do() -> None:
    assert resolve({"max.message.bytes": "2147483647"}, {}, NODE).max_message_bytes == 16 << 20
    assert resolve({"segment.bytes": "4096"}, {}, NODE).preallocate_bytes == 4096
    assert resolve({"index.interval.bytes": "0"}, {}, NODE).index_interval_bytes == 1


def test_stored_values_of_another_version_are_passed_over() -> None:
    config = resolve({"retention.ms": "for ever", "unknown": "x"}, {"log.retention.ms": "9"}, NODE)
    assert config.retention_ms == 9


def named(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    (entry,) = [each for each in entries if each.name == name]
    return entry


def test_describe_topic() -> None:
    node = load_config("retention.time: 3d")
    entries = describe_topic({"retention.ms": "1"}, {"log.retention.ms": "2"}, node)
    assert [entry.name for entry in entries] == sorted(TOPIC_CONFIGS)
    entry = named(entries, "retention.ms")
    assert (entry.value, entry.source, entry.type) == ("1", ConfigSource.TOPIC, ConfigType.LONG)
    assert [(each.name, each.value, int(each.source)) for each in entry.synonyms] == [
        ("retention.ms", "1", 1),
        ("log.retention.ms", "2", 3),
        ("retention.time", "259200000", 4),
        ("log.retention.ms", "604800000", 5),
    ]
    plain = named(entries, "segment.bytes")
    assert plain.source is ConfigSource.DEFAULT
    assert len(plain.synonyms) == 1


def test_describe_cluster_and_node() -> None:
    cluster = {"ack.floor": "leader", "gone.key": "x"}
    (entry,) = describe_cluster(cluster)
    assert (entry.name, entry.value, entry.read_only) == ("ack.floor", "leader", False)
    node = load_config("node.id: 7\ndata.directories: [/a, /b]")
    entries = describe_node(cluster, node)
    assert len({each.name for each in entries}) == len(entries)
    assert named(entries, "ack.floor").source is ConfigSource.CLUSTER
    assert named(entries, "node.id").value == "7"
    assert named(entries, "node.id").read_only
    assert named(entries, "data.directories").value == "/a,/b"
    assert named(entries, "node.rack").value is None
    assert named(entries, "log.retention.ms").value == "604800000"


def operation(key: str, number: int, value: str | None = None) -> ConfigOperation:
    return ConfigOperation(key=key, operation=number, value=value)


def test_incremental_changes() -> None:
    current = {"retention.ms": "5", "gone": "set by an earlier version"}
    changes = plan_incremental(
        ConfigScope.TOPIC,
        current,
        [
            operation("segment.ms", AlterOperation.SET, " 7 "),
            operation("retention.ms", AlterOperation.DELETE),
            operation("gone", AlterOperation.DELETE, "ignored"),
            operation("cleanup.policy", AlterOperation.APPEND, "delete"),
        ],
    )
    assert changes == (
        ConfigChange(key="segment.ms", value="7"),
        ConfigChange(key="retention.ms", value=None),
        ConfigChange(key="gone", value=None),
        ConfigChange(key="cleanup.policy", value="delete", compare=True, expected=None),
    )


@pytest.mark.parametrize(
    ("operations", "error"),
    [
        ([operation("retention.ms", 0, None)], InvalidRequestError),
        ([operation("retention.ms", 9, "1")], InvalidRequestError),
        ([operation("retention.ms", 2, "1")], InvalidConfigError),
        ([operation("gone", 0, "1")], InvalidConfigError),
        ([operation("cleanup.policy", 2, "compact")], InvalidConfigError),
        ([operation("cleanup.policy", 3, "delete")], InvalidConfigError),
        ([operation("retention.ms", 1), operation("retention.ms", 1)], InvalidRequestError),
    ],
)
def test_refused_operations(
    operations: list[ConfigOperation], error: type[InvalidConfigError | InvalidRequestError]
) -> None:
    with pytest.raises(error):
        plan_incremental(ConfigScope.TOPIC, {}, operations)


def test_cluster_operations_use_cluster_names() -> None:
    (change,) = plan_incremental(
        ConfigScope.CLUSTER, {}, [operation("log.cleanup.policy", 2, "delete")]
    )
    assert change.value == "delete"


def test_replacement() -> None:
    changes = plan_replacement(
        ConfigScope.TOPIC, {"retention.ms": "5", "segment.ms": "6"}, [("segment.ms", "6 ")]
    )
    assert changes == (ConfigChange(key="retention.ms", value=None),)
    for wrong in ([("segment.ms", None)], [("a", "1"), ("a", "1")]):
        with pytest.raises(InvalidRequestError):
            plan_replacement(ConfigScope.TOPIC, {}, wrong)
    with pytest.raises(InvalidConfigError):
        plan_replacement(ConfigScope.CLUSTER, {}, [("segment.ms", "6")])


def test_admission() -> None:
    an_id = UUID(int=9)
    wrong = ConfigChange(key="retention.ms", value="x")
    topic = AlterConfigs(command_id=an_id, topic_id=an_id, changes=(wrong,))
    cluster = AlterConfigs(command_id=an_id, topic_id=None, changes=(wrong,))
    created = CreateTopic(
        command_id=an_id, name="t", topic_id=an_id, assignments=(), configs={"a": "b"}
    )
    for command in (topic, cluster, created):
        refusal = admit(command)
        assert refusal is not None
        assert refusal.code == InvalidConfigError.code
        assert evaluate(EMPTY_IMAGE, command) == refusal
    assert admit(DeleteTopic(command_id=an_id, topic_id=an_id)) is None
    unwritable = CreateTopic(command_id=an_id, name="t" * 70_000, topic_id=an_id, assignments=())
    outcome = evaluate(EMPTY_IMAGE, unwritable)
    assert isinstance(outcome, Refused)
    assert outcome.code == InvalidRequestError.code


def test_every_topic_config_is_documented() -> None:
    document = sources.ROOT / "docs/operating/topic-configs.md"
    rows = [line for line in document.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(TOPIC_CONFIGS)
    for row, key in zip(rows, TOPIC_CONFIGS.values(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        cluster_name = "same" if key.cluster_name == key.name else f"`{key.cluster_name}`"
        node_key = f"`{key.node_key}`" if key.node_key else ""
        assert cells[:5] == [
            f"`{key.name}`",
            cluster_name,
            node_key,
            key.type.name.lower(),
            key.default or "(empty)",
        ]
        assert cells[5].replace("*fixed*", "Fixed") == key.doc
