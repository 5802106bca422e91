"""`dlogctl`, the operators' command line: finds the command and turns errors into exit codes.

The table below names a module for each command; only the one that is asked for is loaded, so that
`dlogctl --help` and a shell's completion answer at once.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from dlog.errors import ConnectFailedError, DlogError, TransportError
from dlogctl import exit_codes
from dlogctl.settings import common_options, settings_of
from dlogd.version import VERSION

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("dlogctl.commands.status:status", "Show how the cluster is."),
    "topic": ("dlogctl.commands.topic:topic", "Create, list, describe, alter, delete topics."),
    "config": ("dlogctl.commands.config:config", "Show and check configurations."),
    "segment": ("dlogctl.commands.segment:segment", "Look into segment files, offline."),
    "sandbox": ("dlogctl.commands.sandbox:sandbox", "Run a cluster on this machine's loopback."),
}


class LazyGroup(click.Group):
    """A group whose commands stand in `COMMANDS` and are loaded one by one."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, doc) for name, (_, doc) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="dlogctl")
@common_options
@click.pass_context
def dlogctl(context: click.Context) -> None:
    """Operate dlog clusters.

    \b
    Exit codes: 0 ok or healthy, 10 unhealthy, 2 the cluster cannot be reached,
    1 any other error, 64 wrong usage.
    """
    settings_of(context)


def _complain(text: str) -> None:
    click.echo(f"dlogctl: {text}", err=True)


def _exit_code_of(error: Exception) -> int:
    unreachable = isinstance(error, ConnectFailedError | TransportError)
    return exit_codes.UNREACHABLE if unreachable else exit_codes.FAILURE


def _described(error: DlogError | OSError) -> str:
    if _exit_code_of(error) == exit_codes.UNREACHABLE:
        return f"{error}; is dlogd running there? See --bootstrap and DLOG_BOOTSTRAP"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _run(arguments: Sequence[str]) -> int:
    try:
        result: Any = dlogctl.main(
            args=list(arguments),
            prog_name="dlogctl",
            standalone_mode=False,
            # Also before the command's name; an option given wins.
            default_map={"bootstrap": os.environ.get("DLOG_BOOTSTRAP") or None},
        )
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return exit_codes.USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "dlogctl"
        _complain(f"{error.format_message().rstrip('.')}; see {where} --help")
        return exit_codes.USAGE
    except click.Abort:
        _complain("given up")
        return exit_codes.FAILURE
    except click.ClickException as error:
        _complain(error.format_message())
        return exit_codes.FAILURE
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.FAILURE
    except (DlogError, OSError) as error:
        _complain(_described(error))
        if "--debug" in arguments:
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
    return _run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
