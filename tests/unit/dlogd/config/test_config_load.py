"""Loading a configuration: shapes of YAML, all problems at once, the environment, reloads."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError
from dlogctl.__main__ import main
from dlogctl.contexts import ContextError, load_contexts
from dlogd.config.choices import AckMode, DirectIo, FlushPolicy
from dlogd.config.load import load_config
from dlogd.config.sample import sample
from dlogd.config.schema import KEYS, Config, build
from dlogd.config.units import Address
from dlogd.runtime.config_reload import plan_reload
from tests.tidy import sources

ROOT = sources.ROOT


def problems_of(text: str, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(text, environment)
    return list(caught.value.problems)


def test_empty_files_are_the_defaults() -> None:
    for text in ("", "# nothing\n", "~", "{}", "---\n"):
        assert load_config(text) == Config()


def test_defaults_that_others_rely_on() -> None:
    config = Config()
    assert config.flush.policy is FlushPolicy.ALWAYS
    assert config.ack.default is AckMode.ALL
    assert config.ack.default.acks == -1
    assert config.segment.bytes == 1 << 30
    assert config.listeners == (Address("127.0.0.1", 9092),)
    assert config.message.bytes_max == (1 << 20) + 12
    assert config.data.directories == ("/var/lib/dlog",)


@pytest.mark.parametrize(
    "text",
    [
        "flush.policy: never\nflush.interval: 250ms\ndirect_io: on\n",
        "flush:\n  policy: never\n  interval: 250ms\ndirect_io: 'on'\n",
        "flush: {policy: never}\nflush.interval: 250ms\ndirect_io: on\n",
    ],
)
def test_flat_nested_and_mixed(text: str) -> None:
    config = load_config(text)
    assert config.flush.policy is FlushPolicy.NEVER
    assert config.flush.interval_ms == 250
    assert config.direct_io is DirectIo.ON


def test_deep_names_lists_and_nulls() -> None:
    config = load_config(
        "connections: {per_ip: {max: 7}, idle.timeout: 5s}\n"
        "data: {directories: [/a, /b]}\n"
        "listeners: 127.0.0.1:1\n"
        "node: {id: 3, rack: null}\n"
        "segment.ms: 1000\n"
        "retention: {time: -1, bytes: 10GiB}\n"
        "log:\n  # level: debug\n"
    )
    assert (config.connections.per_ip_max, config.connections.idle_timeout_ms) == (7, 5000)
    assert config.data.directories == ("/a", "/b")
    assert config.listeners == (Address("127.0.0.1", 1),)
    assert (config.node.id, config.node.rack) == (3, None)
    assert config.segment.ms == 1000
    assert (config.retention.time_ms, config.retention.bytes) == (-1, 10 << 30)


def test_all_problems_at_once_with_lines_and_nearest_keys() -> None:
    problems = problems_of(
        "flush.polcy: always\n"
        "segment:\n"
        "  byte: 1GiB\n"
        "  ms: soon\n"
        "node.id: -3\n"
        "node: {id: 4}\n"
        "flush: always\n"
        "listeners: []\n"
        "data.directories: {a: b}\n"
        "topic.auto_create: maybe\n"
        "http.address: [a, b]\n"
        "zzzzz: 1\n"
    )
    assert problems == [
        "dlog.yaml line 1: flush.polcy: unknown key; did you mean flush.policy?",
        "dlog.yaml line 3: segment.byte: unknown key; did you mean segment.bytes?",
        "dlog.yaml line 4: segment.ms: 'soon' is not a duration: a number with ms, s, min, h, d "
        "or w",
        "dlog.yaml line 5: node.id: '-3' is below the least value 0",
        "dlog.yaml line 6: node.id: given twice, first at line 5",
        "dlog.yaml line 7: flush: is a section; its keys are flush.policy, flush.interval",
        "dlog.yaml line 8: listeners: must not be empty",
        "dlog.yaml line 9: data.directories.a: unknown key; did you mean data.directories?",
        "dlog.yaml line 10: topic.auto_create: 'maybe' is neither true nor false",
        "dlog.yaml line 11: http.address: wants one value (host:port), not a list",
        "dlog.yaml line 12: zzzzz: unknown key",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: [", "line 1: is no YAML"),
        ("a: b\n c: d\n", "line 2: is no YAML"),
        ("a: 1\n---\nb: 2\n", "is no YAML"),
        ("- a\n- b\n", "line 1: wants keys and values"),
        ("text", "line 1: wants keys and values"),
        ("? [a]\n: b\n", "line 1: a key must be a plain name"),
        ("node: &x\n  id: *x\n", "line 1: &x: anchors and aliases are not read; write the value"),
        ("node: &x {id: {y: *x}}\n", "line 1: &x: anchors"),
        ("node.id: *x\n", "line 1: *x: anchors"),
        ("log: {level: info}\nlog: {format: json}\n", "line 2: log: given twice, first at line 1"),
        ("log.level: info\nlog.level: info\n", "line 2: log.level: given twice, first at line 1"),
        ("- a\n" * 20_001, "line 20000: has more than 20000 keys and values"),
        ("\x00", "is no YAML"),
        ("{" * 5000, "line 1: nested too deeply, 32 levels are read"),
        ("[" * 5000, "line 1: nested too deeply"),
        ("#" * (1 << 21), "is larger than"),
        ("data.directories: [[a]]", "wants list of paths"),
        ("segment.bytes: 4GiB", "above the largest value"),
        ("node.rack: ''", "must be a text"),
    ],
)
def test_wrong_shapes(text: str, found: str) -> None:
    assert any(found in problem for problem in problems_of(text))


def test_a_bomb_of_aliases_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    lines = ["a0: &a0 {x: 1}"]
    for level in range(1, 9):
        inner = ", ".join(f"k{n}: *a{level - 1}" for n in range(10))
        lines.append(f"a{level}: &a{level} {{{inner}}}")
    bomb = "\n".join(lines) + "\n"  # 10^8 nodes in less than a kilobyte
    assert problems_of(bomb) == [
        "dlog.yaml line 1: &a0: anchors and aliases are not read; write the value itself wherever"
        " it is meant"
    ]
    contexts = tmp_path / "contexts.yaml"
    contexts.write_text(bomb)
    with pytest.raises(ContextError, match="line 1: &a0: anchors and aliases are not read"):
        load_contexts(contexts)
    override = ["sandbox", "--dir", str(tmp_path), "--config-override", f"node.rack={bomb[4:]}"]
    assert main(override) == 64


@given(st.text(alphabet="nodeflush.id: policy\n-[]{}&*x!%@`'\"\\~1", max_size=60))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        load_config(text)
    except ConfigError as error:
        assert error.problems


def test_environment_wins_over_the_file() -> None:
    environment = {
        "DLOG_FLUSH_POLICY": "interval",
        "DLOG_DATA_DIRECTORIES": "/x,/y",
        "DLOG_CONNECTIONS_PER_IP_MAX": "9",
        "DLOG_CONFIG": "/etc/dlog/dlog.yaml",
        "DLOG_BOOTSTRAP": "127.0.0.1:9092",
        "DLOG_MAINTENANCE_TOKEN": "6a0f8c1e-0b5d-4a53-9c7e-3f1d2b4a5c6d",
        "PATH": "/bin",
    }
    config = load_config("flush.policy: never\nnode.id: 5", environment)
    assert config.flush.policy is FlushPolicy.INTERVAL
    assert config.data.directories == ("/x", "/y")
    assert config.connections.per_ip_max == 9
    assert config.node.id == 5


def test_problems_of_the_environment() -> None:
    assert problems_of("nod.id: 1", {"DLOG_FLUSH_POLIC": "x", "DLOG_NODE_ID": "one"}) == [
        "environment DLOG_FLUSH_POLIC: belongs to no key; did you mean DLOG_FLUSH_POLICY?",
        "environment DLOG_NODE_ID: node.id: 'one' is not a whole number",
        "dlog.yaml line 1: nod.id: unknown key; did you mean node.id?",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "append.memory.bytes: 1MiB",
            "line 1: message.bytes.max: 1048588 needs append.memory.bytes to be at least 2097176, "
            "it is 1MiB",
        ),
        (
            "append.memory.bytes: 1GiB\nmessage.bytes.max: 200MiB",
            "line 2: message.bytes.max: 200MiB",
        ),
        ("frame.bytes.max: 1GiB", "line 1: frame.bytes.max: 1GiB needs inflight.bytes.max"),
        ("index.interval.bytes: 1100MiB", "index.interval.bytes: 1100MiB needs segment.bytes"),
        ("listeners: 0.0.0.0:9092", "set advertised.address"),
        ("listeners: [127.0.0.1:9644]", "is also used by http.address"),
        ("listeners: [a:1, a:1]", "is also used by listeners"),
        ("ack: {floor: all, default: leader}", "leader is weaker than ack.floor, all"),
        ("data.directories: [/a, /a/]", "is listed twice"),
        ("data.directories: [/a, /a/b]", "lie in one another"),
    ],
)
def test_rules_between_keys(text: str, found: str) -> None:
    (problem,) = problems_of(text)
    assert found in problem


CLUSTER = """
cluster.id: c
cluster.secret.file: /s
controllers: ["1@10.0.0.1:9193", "2@10.0.0.2:9193", "3@10.0.0.3:9193"]
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{CLUSTER}listeners: [127.0.0.1:9192]", ["internal.listener: 127.0.0.1:9192 is also"]),
        (f"{CLUSTER}listeners: [10.0.0.1:9193]", ["controllers: 10.0.0.1:9193 is also used by l"]),
        (
            f"{CLUSTER}metadata.listener: 0.0.0.0:9644",
            ["metadata.listener: 0.0.0.0:9644 is also used by http.address"],
        ),
        ("listeners: [a:1, 10.0.0.1:1, 0.0.0.0:1]", ["0.0.0.0:1 is also used by listeners"]),
        ('listeners: ["[fe80::1]:1", "[::]:1"]', ["[::]:1 is also used by listeners"]),
        (
            'advertised.address: a\nlisteners: ["0.0.0.0:1", "[::]:1"]',
            ["[::] takes IPv4, too. Remove 0.0.0.0:1, or give it another port"],
        ),
        (
            'advertised.address: a\nlisteners: ["[::0]:1", "10.0.0.1:1"]',
            ["10.0.0.1:1 is also used by listeners: [::] takes IPv4, too. Remove 10.0.0.1:1"],
        ),
        ('advertised.address: a\nlisteners: ["[::]:1", "[::]:2", "0.0.0.0:3"]', []),
        ('advertised.address: a\nlisteners: ["0.0.0.0:1", "[::1]:1"]', []),
        (f"{CLUSTER}listeners: [10.0.0.1:9192, 10.0.0.2:9193, 10.0.0.2:9192]", []),
        (f"{CLUSTER}internal.listener: 10.0.0.1:0\nlisteners: [10.0.0.1:0]", []),
        ("listeners: [127.0.0.1:9192]", []),
    ],
)
def test_no_address_is_listened_on_twice(text: str, found: list[str]) -> None:
    """Such a node would try to start again for ever: who has the address may go away, it thinks."""
    said = problems_of(text) if found else []
    if not found:
        load_config(text)
    assert len(said) == len(found) and all(a in b for a, b in zip(found, said, strict=True)), said


def test_wildcard_listener_with_an_advertised_address() -> None:
    config = load_config("listeners: 0.0.0.0:0\nadvertised.address: kafka-1\n")
    assert config.advertised.address == Address("kafka-1", 0)


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("node.id: 8\n", encoding="utf-8")
    assert load_config(path).node.id == 8
    path.write_text("nde.id: 8\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"my\.yaml line 1: nde\.id"):
        load_config(path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")


def test_sample_lists_every_key_at_its_default() -> None:
    text = (ROOT / "etc/dlog.yaml").read_text(encoding="utf-8")
    assert text == sample(), "run: python -m dlogd.config.sample > etc/dlog.yaml"
    live = "\n".join(
        line[1:] for line in text.splitlines() if line.startswith("#") and line[1:2].isalpha()
    )
    assert list(yaml.safe_load(live)) == list(KEYS)
    assert load_config(live) == Config()
    assert load_config(text) == Config()


def test_every_key_has_a_reason_and_its_own_variable() -> None:
    variables = {bound.key.environment_name for bound in KEYS.values()}
    assert len(variables) == len(KEYS)
    for bound in KEYS.values():
        assert bound.key.doc.endswith("."), bound.key.name
        if bound.key.default is not None:
            text = bound.key.format(bound.key.default)
            assert bound.value_in(load_config(f"{bound.key.name}: {text}")) == bound.key.default


def test_a_reload_takes_over_only_what_may_change() -> None:
    old = load_config("retention.time: 1d\nnode.id: 1\nlog.level: info")
    new = load_config("retention.time: 2d\nnode.id: 2\nlog.level: debug\nlisteners: a:1")
    plan = plan_reload(old, new)
    assert [key.name for key in plan.applied] == ["retention.time", "log.level"]
    assert [key.name for key in plan.needs_restart] == ["node.id", "listeners"]
    assert (plan.config.node.id, plan.config.retention.time_ms) == (1, 172_800_000)
    again = plan_reload(plan.config, new)
    assert (again.applied, len(again.needs_restart)) == ((), 2)


def test_build_takes_typed_values() -> None:
    config = build({"direct_io": DirectIo.OFF, "segment.bytes": 4096, "segment.ms": 5})
    assert (config.direct_io, config.segment.bytes, config.segment.ms) == (DirectIo.OFF, 4096, 5)
    assert config.flush == Config().flush


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    large = tmp_path / "large"
    large.write_bytes(b"#" * (1 << 20) + b"\n")
    for path, words in (
        (fifo, "is not a regular file"),
        (Path("/dev/zero"), "is not a regular file"),
        (tmp_path, "regular file|directory"),
        (large, "is larger than 1048576 bytes"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config(path)
