"""Entry point of `dlogctl`: finds the command and turns errors into exit codes.

The table below names a module for each command; only the one that is asked for is loaded, so that
`dlogctl --help` and a shell's completion answer at once.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import click

from dlog.errors import DlogError, RequestTimedOutError, TransportError
from dlog.version import VERSION
from dlogctl import exit_codes
from dlogctl.groups import LazyGroup
from dlogctl.output.escaping import say, say_error_lines
from dlogctl.settings import Settings, common_options, settings_of

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("dlogctl.commands.status:status", "Show how the cluster is."),
    "topic": ("dlogctl.commands.topic:topic", "Create, list, describe, alter, delete topics."),
    "partition": (
        "dlogctl.commands.partition:partition",
        "List, lead and move partitions.",
    ),
    "node": ("dlogctl.commands.node:node", "Show, drain, restart, remove nodes."),
    "maintenance": (
        "dlogctl.commands.maintenance:maintenance",
        "Hold the lock for work on the cluster.",
    ),
    "controller": (
        "dlogctl.commands.controller:controller",
        "Show and change the controllers.",
    ),
    "produce": ("dlogctl.commands.produce:produce", "Write lines to a topic."),
    "consume": ("dlogctl.commands.consume:consume", "Write the records of topics as lines."),
    "perf": ("dlogctl.commands.perf:perf", "Measure throughput and latency."),
    "pipeline": (
        "dlogctl.commands.pipeline:pipeline",
        "Run jobs on Spark: archive, replay, audit.",
    ),
    "config": ("dlogctl.commands.config:config", "Show, change, explain, check configurations."),
    "log-dirs": ("dlogctl.commands.log_dirs:log_dirs", "Show data directories and their logs."),
    "segment": ("dlogctl.commands.segment:segment", "Look into segment files, offline."),
    "sandbox": ("dlogctl.commands.sandbox:sandbox", "Run a cluster on this machine's loopback."),
    "release": ("dlogctl.commands.release:release", "Show and verify the releases on this host."),
    "context": ("dlogctl.commands.context:context", "Keep settings of several clusters."),
    "completion": (
        "dlogctl.commands.completion:completion",
        "Print the script that lets a shell complete.",
    ),
    "man": ("dlogctl.commands.man:man", "Show the manual page."),
}
DEBUG = "--debug"
COMPLETE = "_DLOGCTL_COMPLETE"  # set by the scripts of `dlogctl.shell.shells`


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=(
        ("dlogctl sandbox --dir ~/dlog-sandbox", "Run a node here, to try things out."),
        ("dlogctl status", "Is the cluster well?"),
        ("dlogctl --bootstrap n1:9092,n2:9092 topic list", "The topics of another cluster."),
        ("dlogctl context set prod --bootstrap n1:9092,n2:9092", "Remember its address."),
    ),
)
@click.version_option(VERSION, prog_name="dlogctl")
@common_options
@click.pass_context
def dlogctl(context: click.Context) -> None:
    """Operate dlog clusters.

    \b
    Exit codes: 0 ok or healthy, 10 unhealthy, not possible now or held for
    maintenance, 2 the cluster cannot be reached or has no such node, 1 any other
    error, 64 wrong usage.
    """
    settings_of(context)


def _complain(text: str) -> None:
    # Standard error may be what is gone.
    if sys.stderr is not None:
        say(f"dlogctl: {text}", err=True)


def _exit_code_of(error: Exception) -> int:
    # Those of some commands say so themselves: their modules are not loaded for others.
    unreachable = isinstance(error, TransportError) or getattr(error, "is_unreachable", False)
    if isinstance(error, RequestTimedOutError) and error.is_answer:
        unreachable = False
    own: int | None = getattr(error, "exit_code", None)
    if own is not None:
        return own
    return exit_codes.UNREACHABLE if unreachable else exit_codes.FAILURE


def _described(error: DlogError | OSError, settings: Settings) -> str:
    if isinstance(error, RequestTimedOutError) and not error.is_answer:
        return (
            f"{error}: the node can be reached, but whether it was done is not known. Most of the"
            " controllers may be away, see: dlogctl status; or it takes longer: --timeout"
        )
    if isinstance(error, TransportError) and _exit_code_of(error) == exit_codes.UNREACHABLE:
        return f"{error}; is dlogd running there? {_whose_address(settings)}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)


def _whose_address(settings: Settings) -> str:
    text, origin = settings.text_of("bootstrap")
    whose = "the default" if origin == "default" else f"from {origin}"
    return f"The address is {text}, {whose}; see: dlogctl context show, dlogctl sandbox --help"


def _usage(error: click.UsageError) -> int:
    where = error.ctx.command_path if error.ctx is not None else "dlogctl"
    _complain(f"{error.format_message().rstrip('.')}; see {where} --help")
    return exit_codes.USAGE


def _run(arguments: Sequence[str]) -> int:
    settings = Settings()
    try:
        result: Any = dlogctl.main(
            args=list(arguments), prog_name="dlogctl", standalone_mode=False, obj=settings
        )
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return exit_codes.USAGE
    except click.UsageError as error:
        return _usage(error)
    except click.Abort:
        _complain("interrupted")
        return exit_codes.FAILURE
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.FAILURE
    except (DlogError, OSError) as error:
        _complain(_described(error, settings))
        if DEBUG in arguments:
            raise
        return _exit_code_of(error)
    return result if isinstance(result, int) else exit_codes.OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    if arguments is not None:
        return _run(arguments)
    # A process of our own: kio need not register its types with hypothesis, where a developer has
    # that installed (0.2 s).
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    if COMPLETE in os.environ:
        importlib.import_module("dlogctl.shell.shells").register()
    sys.excepthook = _tell_all if DEBUG in sys.argv else _tell_briefly
    return _run(sys.argv[1:])


def _tell_all(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show the traceback; the text of an error may come from elsewhere."""
    for each in traceback.format_exception(kind, error, trace):
        say_error_lines(each.rstrip("\n").split("\n"))


def _tell_briefly(
    kind: type[BaseException], error: BaseException, _traceback: TracebackType | None
) -> None:
    """Say in one line what nobody expected."""
    if issubclass(kind, KeyboardInterrupt):
        _complain("interrupted")
        return
    _complain(
        f"an error in dlogctl itself, {kind.__name__}: {error}; run it again with {DEBUG} and "
        "report what it shows"
    )


if __name__ == "__main__":
    sys.exit(main())
