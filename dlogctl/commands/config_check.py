"""`dlogctl config check`: check of a configuration file."""

import os
from contextlib import suppress
from pathlib import Path

import click

from dlog.errors import ConfigError
from dlogctl import exit_codes
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say
from dlogctl.settings import common_options, settings_of
from dlogd.config.config_digest import digest_of
from dlogd.config.load import load_config
from dlogd.config.schema import Config
from dlogd.node import cluster_timings, secret_files
from dlogd.storage.io.posix import PosixDirectory

PROBLEM_COLUMNS = (Column("PROBLEM", "problem"),)


@click.command(
    cls=ExampleCommand,
    examples=(("dlogctl config check /etc/dlog/dlog.yaml", "All problems at once, offline."),),
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@common_options
@click.pass_context
def check(context: click.Context, file: Path) -> int:
    """Check a configuration FILE; name every problem in it with its line."""
    output = Output(settings_of(context))
    problems: tuple[str, ...] = ()
    digest = None
    try:
        config = load_config(file)
        digest = digest_of(config)
        found = cluster_timings.problems(config)
        found += secret_files.problems(config, PosixDirectory, _owners(config))
        problems = tuple(f"{file}: {each}" for each in found)
    except ConfigError as error:
        problems = error.problems
    if output.for_people:
        for problem in problems:
            say(f"dlogctl: {problem}", err=True)
        if not problems:
            say(f"{file} is correct, its digest is {digest}")
    elif output.has_documents:
        document = {"file": str(file), "correct": not problems, "problems": list(problems)}
        output.document({**document, "digest": digest})
    else:
        output.rows([{"problem": problem} for problem in problems], PROBLEM_COLUMNS)
    return exit_codes.FAILURE if problems else exit_codes.OK


def _owners(config: Config) -> frozenset[int]:
    """Return who owns the data directories: the user of the daemon."""
    found = set()
    for each in config.data.directories:
        with suppress(OSError):
            found.add(os.stat(each).st_uid)
    return frozenset(found)
