"""The command line as such: usage, nodes that do not answer, help, checks, what a terminal gets."""

import contextlib
import json
import os
import pty
import re
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlog.wire.apis import ApiKey
from dlog.wire.frame import RequestHeader
from dlogctl.__main__ import COMMANDS
from dlogctl.output import terminal
from dlogctl.output.documents import format_bytes, format_cell, format_duration
from dlogd.config.config_digest import digest_of
from dlogd.config.schema import Config
from tests.fakes.command_line import NO_CONTEXTS, NO_TOPIC, Ctl, World, ctl, world
from tests.fakes.peer import error, zero_time

__all__ = ["ctl", "world"]  # the fixtures


def test_nobody_there(ctl: Ctl) -> None:
    result = ctl("--bootstrap", "127.0.0.1:1", "status", "--timeout", "0.2")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "dlogctl: cannot connect to 127.0.0.1:1: Connection refused; is dlogd running there? The "
        "address is 127.0.0.1:1, from --bootstrap; see: dlogctl context show, dlogctl sandbox "
        "--help\n"
    )


def test_a_node_that_takes_the_request_and_says_nothing(ctl: Ctl, world: World) -> None:
    """As one whose quorum is away: it runs, so nobody has to look for it."""
    world.peer.raw[ApiKey.INCREMENTAL_ALTER_CONFIGS] = lambda _header, _frame: None
    result = ctl("topic", "alter", "t", "--set", "retention.ms=9", "--timeout", "3")
    assert result.code == 2
    assert result.err == (
        f"dlogctl: no answer within 3 s from {world.peer.address}: the node can be reached, but"
        " whether it was done is not known. Most of the controllers may be away, see: dlogctl"
        " status; or it takes longer: --timeout\n"
    )


def test_a_node_that_speaks_something_else(ctl: Ctl, world: World) -> None:
    def nonsense(header: RequestHeader, _frame: memoryview) -> bytes:
        return struct.pack(">ii", 6, header.correlation_id) + b"\0\0"

    world.peer.raw[ApiKey.API_VERSIONS] = nonsense
    result = ctl("topic", "list", "--timeout", "3")
    assert result.code in (1, 2)
    assert result.err.startswith("dlogctl: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topic"],
        ["topic", "create"],
        ["topic", "create", "x", "-c", "novalue"],
        ["topic", "list", "-o", "xml"],
        ["--bootstrap", "nowhere", "status"],
        ["config", "show", "--topic", "t", "--node", "1"],
    ],
)
def test_wrong_usage(ctl: Ctl, arguments: list[str]) -> None:
    result = ctl(*arguments)
    assert (result.code, result.out) == (64, "")
    assert result.err


MISUSES = (
    ("--nonsense", 64, r"No such option '?--nonsense'?; see dlogctl --help"),
    ("topic list --bogus", 64, r"No such option '?--bogus'?; see dlogctl topic list --help"),
    ("topic create x -p zero", 64, r".*--partitions.*'zero'.*; see dlogctl topic create --help"),
    ("topic create x -p 0", 64, r".*--partitions.* 0 is not in .*"),
    ("--timeout soon status", 64, r".*--timeout.*'soon' is not a duration; examples: 2, 2s, .*"),
    ("--timeout 50ms status", 64, r".*--timeout.*'50ms' is below 0.1 s.*"),
    (f"--timeout {'9' * 3000} status", 64, r".*--timeout.*'9{40}...' is above 31622400 s, .*"),
    ("topic alter missing --config a=b --timeout 200ms", 1, NO_TOPIC),
    ("--bootstrap h:99999 status", 64, r".*--bootstrap.*'h:99999' is not host:port; see .*"),
    (
        "--bootstrap no.invalid:1 status",
        2,
        r"cannot connect to no.invalid:1: .* --bootstrap; see.*",
    ),
    ("topic alter missing -s a=b --timeout 0.2", 1, NO_TOPIC),
    ("topic alter missing -p 9 --timeout 0.2", 1, NO_TOPIC),
    ("config show --topic missing --timeout 0.2", 1, NO_TOPIC),
    ("config check /no/such.yaml", 1, r"/no/such.yaml: cannot be read: No such file.*"),
    ("config check /", 64, r".*'/' is a directory; see dlogctl config check --help"),
    ("segment check /no/such", 64, r".*'/no/such' does not exist; see .*"),
    ("segment check /proc", 64, r"/proc is neither a data directory .* nor a partition's .*"),
    ("segment dump /etc/hosts", 64, r"/etc/hosts is not named like a segment's file .*"),
    ("sandbox", 64, r"--dir is missing: .*; see dlogctl sandbox --help"),
    ("sandbox --dir /etc/hosts", 64, r".*'/etc/hosts' is a file; see .*"),
    ("sandbox --dir /proc/nope", 1, r"/proc/nope.*: No such file or directory"),
    ("sandbox --dir /tmp/dlog-none --nodes 6", 64, r".*--nodes.*6 is not in the range 1<=x<=5.*"),
    ("sandbox --dir /tmp/dlog-none --nodes 0", 64, r".*--nodes.*0 is not in .*"),
    ("sandbox --dir /tmp/dlog-none --port 99999", 64, r".*--port.*99999 is not in .*"),
    ("sandbox --dir /tmp/dlog-none --config-override a", 64, r".*'a' is not key=value; see .*"),
    (
        "sandbox --dir /tmp/dlog-none --config-override flush.policy=x --config-override a.b=1",
        64,
        r"--config-override: flush.policy: 'x' .*; a.b: unknown key.*; see dlogctl sandbox --help",
    ),
    ("sandbox restart 1 --dir /tmp", 1, r".*/tmp: name a directory of your own.*"),
    ("sandbox restart one --dir /tmp", 64, r".*NODE.*'one'.*"),
)


@pytest.mark.parametrize(("line", "code", "message"), MISUSES, ids=[each[0] for each in MISUSES])
def test_misuse_gets_one_line_that_names_cause_and_cure(
    ctl: Ctl, world: World, line: str, code: int, message: str
) -> None:
    def nothing(request: Any, module: Any, _header: RequestHeader) -> Any:
        raise AssertionError("nothing should be asked")

    refused = error(3)

    def unknown_configs(request: Any, module: Any, _header: RequestHeader) -> Any:
        result = module.DescribeConfigsResult(
            error_code=refused,
            error_message=None,
            resource_type=2,
            resource_name="missing",
            configs=(),
        )
        return module.DescribeConfigsResponse(throttle_time=zero_time(), results=(result,))

    def unknown_growth(request: Any, module: Any, _header: RequestHeader) -> Any:
        result = module.CreatePartitionsTopicResult(name="missing", error_code=refused)
        return module.CreatePartitionsResponse(throttle_time=zero_time(), results=(result,))

    world.peer.answers[ApiKey.DESCRIBE_CONFIGS] = unknown_configs
    world.peer.answers[ApiKey.CREATE_PARTITIONS] = unknown_growth
    world.peer.answers[ApiKey.CREATE_TOPICS] = nothing
    result = ctl(*line.split())
    assert (result.code, result.out) == (code, "")
    assert re.fullmatch(f"dlogctl: (?i:{message})\n", result.err), result.err
    assert not Path("/tmp/dlog-none").exists()


def test_a_file_is_checked(ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "dlog.yaml"
    file.write_text("node.id: 1\n")
    assert ctl("config", "check", str(file)).code == 0
    file.write_text("node.idd: 1\nflush.policy: sometimes\n")
    wrong = ctl("config", "check", str(file))
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.count("\n") == 2
    assert "line 1" in wrong.err
    assert "did you mean node.id" in wrong.err
    as_json = ctl("config", "check", str(file), "-o", "json")
    assert (as_json.code, as_json.err) == (1, "")
    document = json.loads(as_json.out)
    assert (document["file"], document["correct"]) == (str(file), False)
    assert document["problems"] == [
        each.removeprefix("dlogctl: ") for each in wrong.err.splitlines()
    ]
    assert yaml.safe_load(ctl("config", "check", str(file), "-o", "yaml").out) == document
    assert ctl("config", "check", str(file), "-o", "tsv", "--no-headers").out.count("\n") == 2
    file.write_text("node.id: 1\n")
    as_json = ctl("-o", "json", "config", "check", str(file))
    assert as_json.code == 0
    document = json.loads(as_json.out)
    assert (document["correct"], document["problems"]) == (True, [])
    assert document["digest"] == digest_of(Config())


def test_times_that_do_not_go_together_are_found_offline(ctl: Ctl, tmp_path: Path) -> None:
    file = tmp_path / "dlog.yaml"
    file.write_text(
        'node.id: 1\ncluster.id: c\ncluster.secret.file: /s\ncontrollers: ["1@h:1"]\n'
        "lease.duration: 1s\n"
    )
    wrong = ctl("config", "check", str(file))
    assert wrong.code == 1
    assert "lease.duration must be at least 5 times lease.heartbeat" in wrong.err


def test_help_and_version(ctl: Ctl) -> None:
    shown = ctl("--help")
    assert shown.code == 0
    for name, (_, doc) in COMMANDS.items():
        assert name in shown.out
        assert doc in shown.out
    assert ctl("--version").out.startswith("dlogctl, version ")


def test_every_command_helps(ctl: Ctl) -> None:
    for name in COMMANDS:
        assert ctl(name, "--help").code == 0


def on_a_terminal(arguments: list[str], environ: Mapping[str, str]) -> str:
    """Run dlogctl on a terminal 70 columns wide and return what it shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "dlogctl", *arguments], dict(environ))
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 4096):
            shown += piece
    os.waitpid(pid, 0)
    os.close(terminal)
    return shown.decode()


def test_a_table_on_a_terminal_takes_names_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.show_table(["NAME"], [["[red]x[/red]"]], [False], "t")
    assert "[red]x[/red]" in capsys.readouterr().out


def test_a_terminal_gets_rules_and_colours(world: World) -> None:
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "70"}
    environ["XDG_CONFIG_HOME"] = NO_CONTEXTS
    environ["DLOG_BOOTSTRAP"] = str(world.peer.address)
    shown = on_a_terminal(["topic", "list"], environ)
    assert "─" in shown
    assert "UNDER-REPLICATED" in shown
    assert "\x1b[31m" in on_a_terminal(["status"], environ)


def test_cells() -> None:
    assert [format_cell(each) for each in (None, "", [], True, [1, 2], 3)] == [
        "-", "-", "-", "yes", "1,2", "3",
    ]  # fmt: skip
    assert [format_bytes(each) for each in (None, -1, 5, 1536, 1 << 50)] == [
        None, None, "5 B", "1.5 KiB", "1024.0 TiB",
    ]  # fmt: skip
    assert [format_duration(each) for each in (None, 0.0123, 5, 300, 9000, 1e6)] == [
        None, "12.3 ms", "5 s", "5 min", "2 h", "12 d",
    ]  # fmt: skip
