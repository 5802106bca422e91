"""Every command as a whole: help, examples, the manual page, what is loaded for it."""

import shlex
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from dlog.version import VERSION
from dlogctl.__main__ import COMMANDS, dlogctl, main
from dlogctl.commands import (
    completion,
    config,
    config_change,
    config_check,
    config_explain,
    config_show,
    consume,
    context,
    controller,
    controller_change,
    controller_show,
    log_dirs,
    maintenance,
    man,
    node,
    node_drain,
    node_plan,
    node_restart,
    node_return,
    node_roll,
    node_show,
    partition,
    partition_change,
    partition_rebalance,
    partition_repair,
    partition_show,
    partition_verify,
    perf,
    perf_consume,
    perf_end_to_end,
    perf_produce,
    pipeline,
    pipeline_archive,
    pipeline_audit,
    pipeline_delays,
    pipeline_replay,
    produce,
    release,
    sandbox,
    segment,
    status,
    topic,
    topic_change,
    topic_show,
    topic_trim,
)
from dlogctl.groups import ExampleCommand, LazyGroup, fill_watch
from dlogctl.settings import CommonOption
from dlogctl.shell.man_page import man_page
from tests.tidy import sources

MODULES = {
    module.__name__
    for module in (
        *(completion, config, config_change, config_check, config_explain, config_show, context),
        *(log_dirs, maintenance, man, sandbox, segment, status, topic, topic_change),
        *(topic_show, topic_trim),
        *(controller, controller_change, controller_show),
        *(node, node_drain, node_plan, node_restart, node_return, node_roll, node_show, release),
        *(partition, partition_change, partition_rebalance, partition_repair, partition_show),
        partition_verify,
        *(pipeline, pipeline_archive, pipeline_audit, pipeline_delays, pipeline_replay),
        *(consume, perf, perf_consume, perf_end_to_end, perf_produce, produce),
    )
}
MAN_PAGE = sources.ROOT / "docs" / "man" / "dlogctl.1"
# What makes a start slow; none of it is needed to show help.
HEAVY = (
    "asyncio",
    "kio",
    "numpy",
    "pyarrow",
    "pyspark",
    "rich",
    "ssl",
    "yaml",
    "dlog.client",
    "hypothesis",
)


def everything(
    command: click.Command = dlogctl, path: str = ""
) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        parent = click.Context(command)
        for name in command.list_commands(parent):
            child = command.get_command(parent, name)
            assert child is not None
            yield from everything(child, f"{path} {name}".strip())


ALL = dict(everything())


def test_the_tables_name_modules_that_are_there() -> None:
    groups = [each for each in ALL.values() if isinstance(each, LazyGroup)]
    assert dlogctl in groups
    named = {target.partition(":")[0] for group in groups for target, _ in group.table.values()}
    assert named == MODULES


@pytest.mark.parametrize("path", ALL)
def test_every_command_helps_with_examples(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    command = ALL[path]
    assert isinstance(command, ExampleCommand | LazyGroup)
    assert command.help
    assert command.examples
    assert "Examples:" in shown
    for line, meaning in command.examples:
        assert line in shown
        assert meaning
    if isinstance(command, LazyGroup):
        for name, (_, doc) in command.table.items():
            assert doc in shown
            assert doc.endswith(".")
            child = ALL[f"{path} {name}".strip()]
            assert not child.hidden


def _command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return what a line is about, and the words after its name."""
    command: click.Command = dlogctl
    while words:
        if isinstance(command, click.Group) and words[0] in command.list_commands(
            click.Context(command)
        ):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None
            command = found
        elif words[0] in ("--bootstrap", "--context") and command is dlogctl:
            del words[:2]
        else:
            break
    return command, words


def _commands_in(line: str) -> Iterator[list[str]]:
    """Yield the words of each dlogctl in a line of a shell."""
    words: list[str] = []
    for word in [*shlex.split(line), "|"]:
        if word in ("|", "<", ">", "&&", ">>"):
            if words[:1] == ["dlogctl"]:
                yield words[1:]
            words = []
        else:
            words.append(word)


@pytest.mark.parametrize("path", ALL)
def test_every_example_is_understood(path: str) -> None:
    command = ALL[path]
    assert isinstance(command, ExampleCommand | LazyGroup)
    named = []
    for line, _ in command.examples:
        for words in _commands_in(line):
            found, rest = _command_of(words)
            named.append(found)
            # Reads the words without looking whether files are there; takes no unknown option.
            context = click.Context(found, resilient_parsing=True)
            values, left, _ = found.make_parser(context).parse_args(args=fill_watch(rest))
            assert not left or isinstance(found, click.Group), line
            required = [each.name for each in found.params if each.required]
            assert all(values.get(name) for name in required if name), line
    assert command in named or isinstance(command, LazyGroup) or path == "completion"


def test_watch_takes_only_an_interval() -> None:
    assert fill_watch(["--watch", "t"]) == ["--watch=2s", "t"]
    assert fill_watch(["t", "--watch"]) == ["t", "--watch=2s"]
    assert fill_watch(["--watch", "500ms", "t"]) == ["--watch", "500ms", "t"]
    assert fill_watch(["--watch=1s", "t"]) == ["--watch=1s", "t"]


def test_common_options_stand_apart(capsys: pytest.CaptureFixture[str]) -> None:
    main(["topic", "list", "--help"])
    own, common = capsys.readouterr().out.split("Common options:")
    assert "--internal" in own
    assert "--bootstrap" not in own
    assert "--bootstrap" in common


def test_every_command_that_does_something_takes_the_common_options() -> None:
    names = {each.name for each in dlogctl.params if isinstance(each, CommonOption)}
    assert len(names) == 8
    for path, command in ALL.items():
        if not isinstance(command, click.Group) or command.invoke_without_command:
            taken = {each.name for each in command.params if isinstance(each, CommonOption)}
            assert taken == names, path


@pytest.mark.parametrize(
    "line",
    [
        *("--help", "topic --help", "config --help", "perf --help", "completion bash"),
        *("node --help", "controller --help", "partition --help", "pipeline --help"),
    ],
)
def test_help_loads_nothing_heavy(line: str) -> None:
    program = (
        "import sys; from dlogctl.__main__ import main; code = main(sys.argv[1:]);"
        "print('loaded:', *sys.modules); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *line.split()],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = done.stdout.rpartition("loaded:")[2].split()
    assert "dlogctl.__main__" in loaded
    slow = [name for name in loaded if name.startswith(HEAVY)]
    assert not slow, f"{line} loads {slow}"


def test_the_manual_page_is_up_to_date() -> None:
    assert MAN_PAGE.read_text(encoding="utf-8") == man_page(dlogctl, VERSION), "run: make man"


def test_the_manual_page_tells_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    for path, command in ALL.items():
        if isinstance(command, click.Group) and not command.invoke_without_command:
            continue
        assert f".SS {path}\n".replace("-", "\\-") in page
        for option in command.params:
            if isinstance(option, click.Option) and option.name != "help":
                assert option.opts[0].replace("-", "\\-") in page, (path, option.opts)
    for line in page.splitlines():
        # A line of text that begins with a control character would vanish.
        assert not line.startswith("'")
        assert not line.startswith(".") or line.split()[0] in {
            *(".TH", ".SH", ".SS", ".TP", ".PP", ".nf", ".fi", '.\\"'),
        }, line


def test_names_of_commands_stand_in_the_order_of_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    places = [shown.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
