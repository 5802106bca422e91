"""`dlogctl sandbox`: daemons on loopback, in the foreground."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click

from dlog.errors import ConfigError
from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand, LazyGroup
from dlogctl.output.escaping import say, say_error_lines
from dlogctl.sandbox import control
from dlogctl.sandbox.daemon import Daemon, DaemonError
from dlogctl.sandbox.folders import FolderError, check_folder, make_folder
from dlogctl.sandbox.layout import (
    CONTROL_SOCKET,
    OWN_NAMES,
    STATE_FILE,
    NodeLayout,
    SandboxState,
    free_ports,
    known_raft_ports,
    plan_nodes,
    save_raft_ports,
)
from dlogctl.sandbox.supervisor import Supervisor
from dlogctl.settings import common_options, settings_of
from dlogd.config.load import load_config

NODES_MAX = 5


def _parse_overrides(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    overrides = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{each!r} is not key=value")
        overrides[key.strip()] = value
    return overrides


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    subcommand_metavar="[restart NODE... --dir DIR]",
    examples=(
        ("dlogctl sandbox --dir ~/dlog-sandbox", "A node on port 9092."),
        (
            "dlogctl sandbox --dir ~/dlog-sandbox --port 0",
            "Use any free port and print it.",
        ),
        ("dlogctl sandbox --dir ~/dlog-sandbox --nodes 3", "A cluster of three nodes."),
        (
            "dlogctl sandbox --dir ~/dlog-sandbox --config-override flush.policy=never",
            "Configured.",
        ),
    ),
)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), default=1,
              help="How many daemons, which then are one cluster.")  # fmt: skip
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for data, configurations and logs; kept afterwards.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9092,
    show_default=True,
    help="Port of node 1; the next nodes take the next ones. 0: whatever is free.",
)
@click.option(
    "--config-override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_parse_overrides,
    help="A configuration key for all nodes; may be given many times.",
)
@common_options
@click.pass_context
def sandbox(
    context: click.Context,
    nodes: int,
    directory: Path | None,
    port: int,
    overrides: dict[str, str],
) -> int | None:
    """Run daemons on this machine's loopback until Ctrl-C.

    Prints `ready bootstrap=... pids=...` when all serve. A daemon that is killed stays away until
    `dlogctl sandbox restart NODE --dir DIR`.
    """
    if context.invoked_subcommand is not None:
        return None
    if directory is None:
        raise click.UsageError("--dir is missing: where data, configurations and logs go", context)
    directory = directory.absolute()
    ports = free_ports(nodes) if port == 0 else [port + index for index in range(nodes)]
    with _folder_errors():
        _check_if_there(directory)
    raft_ports = known_raft_ports(directory, nodes) if nodes > 1 else []
    layouts = plan_nodes(directory, ports, raft_ports)
    for layout in layouts:
        _check_config(layout, overrides, context)
    with contextlib.ExitStack() as claimed:
        claimed.enter_context(_folder_errors())
        make_folder(directory)
        try:
            claimed.enter_context(control.claim(directory))
        except BlockingIOError:
            raise click.ClickException(
                f"another sandbox runs in {directory}{_in_brackets(_pid_of(directory))}: stop "
                "that one, or take another --dir"
            ) from None
        check_folder(directory, OWN_NAMES)  # again: now nobody else can change it
        if raft_ports:
            save_raft_ports(directory, raft_ports)
        for layout in layouts:
            layout.write_config(overrides)
        settings_of(context).suggest(f"dlogctl --bootstrap 127.0.0.1:{ports[0]} status")
        return _supervise(directory, layouts)


@contextlib.contextmanager
def _folder_errors() -> Iterator[None]:
    """Turn FolderError into an error for people."""
    try:
        yield
    except FolderError as error:
        raise click.ClickException(f"not safe to use: {error}") from None


def _check_if_there(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        check_folder(directory, OWN_NAMES)


def _pid_of(directory: Path) -> int | None:
    """Return the process that wrote the state file last, which need not live any more."""
    try:
        return int(SandboxState.load(directory).pid)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _in_brackets(pid: int | None) -> str:
    return "" if pid is None else f" (pid {pid})"


def _check_config(layout: NodeLayout, overrides: dict[str, str], context: click.Context) -> None:
    """Refuse overrides that the daemon would refuse, before anything is written."""
    try:
        load_config(layout.config_text(overrides), name="--config-override")
    except ConfigError as error:
        # The lines of a file that nobody has written tell nothing.
        problems = [re.sub(r"^--config-override line \d+: ", "", each) for each in error.problems]
        raise click.UsageError(f"--config-override: {'; '.join(problems)}", context) from None


def _supervise(directory: Path, layouts: list[NodeLayout]) -> int:
    # What configures dlogd in our environment is not meant for these daemons; and a restart that
    # may not keep its compiled modules takes twice the time.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DLOG_", "NOTIFY_", "WATCHDOG_", "PYTHONDONTWRITEBYTECODE"))
    }
    command = [sys.executable, "-m", "dlogd"]
    supervisor = Supervisor(
        directory,
        [Daemon(layout, command, environment) for layout in layouts],
        announce=lambda line: say(line),
        say=lambda line: say(f"sandbox: {line}", err=True),
    )
    try:
        clean = asyncio.run(supervisor.run())
    except DaemonError as error:
        reason, *log_lines = str(error).split("\n")
        say_error_lines(log_lines)
        raise click.ClickException(reason) from None
    return exit_codes.OK if clean else exit_codes.FAILURE


def _why_unreachable(directory: Path) -> str:
    """Say why nobody answers at the control socket, and what to do."""
    pid = _pid_of(directory)
    start = f"start one: dlogctl sandbox --dir {directory}"
    if control.is_claimed(directory):
        stop = "press Ctrl-C where it runs" if pid is None else f"kill {pid}"
        return (
            f"the sandbox in {directory} runs{_in_brackets(pid)}, but no node answers at "
            f"{directory / CONTROL_SOCKET}: was it removed? Its daemons serve on. To restart "
            f"nodes again, stop it ({stop}; data stays) and {start}"
        )
    if pid is None:
        return f"no sandbox runs in {directory}; {start}"
    return (
        f"no sandbox runs in {directory}, the last one (pid {pid}) ended without stopping in "
        f"order; {start}"
    )


@sandbox.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl sandbox restart 1 --dir ~/dlog-sandbox", "After `kill -9` of the node."),
        ("dlogctl sandbox restart 1 2 3 --dir ~/dlog-sandbox", "After `kill -9` of all."),
    ),
)
@click.argument("nodes", metavar="NODE...", type=click.IntRange(min=1), nargs=-1, required=True)
@click.option(
    "--dir",
    "directory",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The directory of the sandbox.",
)
@common_options
def restart(nodes: tuple[int, ...], directory: Path) -> int:
    """Start each NODE again, all at once: after it was killed, or stop it first.

    A node is there when it has heard of the metadata, for which most voters must be up: of those
    that are down name all.
    """
    path = directory.absolute()
    with _folder_errors():
        check_folder(path, (STATE_FILE, CONTROL_SOCKET))
    asked = [{"command": "restart", "node": node} for node in dict.fromkeys(nodes)]
    try:
        with ThreadPoolExecutor(len(asked)) as threads:
            answers = list(threads.map(partial(control.ask, path), asked))
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        raise click.ClickException(_why_unreachable(directory)) from None
    if errors := [str(answer["error"]) for answer in answers if "error" in answer]:
        raise click.ClickException("; ".join(errors))
    state = SandboxState.load(directory)
    say(f"restarted bootstrap={state.bootstrap} pids={state.pids}")
    return exit_codes.OK
