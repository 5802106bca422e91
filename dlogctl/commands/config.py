"""`dlogctl config`: what configuration is in force, and whether a file is right."""

from pathlib import Path
from typing import Any

import click

from dlog.client.admin import Resource
from dlog.client.views import ConfigEntry
from dlog.errors import ConfigError
from dlogctl import exit_codes
from dlogctl.output import Column, Output
from dlogctl.session import connected, naming_topic
from dlogctl.settings import common_options, settings_of
from dlogd.config.load import load_config

COLUMNS = (
    Column("CONFIG", "name"),
    Column("VALUE", "value"),
    Column("SOURCE", "source"),
    Column("READ-ONLY", "read_only", wide=True),
    Column("MEANING", "doc", wide=True),
)
PROBLEM_COLUMNS = (Column("PROBLEM", "problem"),)
# DescribeConfigs names where a value comes from by number (KIP-226).
SOURCES = {1: "topic", 2: "node", 3: "cluster", 4: "file", 5: "default", 6: "log level"}


@click.group()
def config() -> None:
    """Show configurations in force, check files."""


def _row(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": "(hidden)" if entry.is_sensitive else entry.value,
        "source": SOURCES.get(entry.source, "unknown"),
        "read_only": entry.read_only,
        "doc": entry.doc,
    }


@config.command()
@click.option("--topic", metavar="NAME", help="Of a topic.")
@click.option("--node", type=click.IntRange(min=0), metavar="ID", help="Of a node, as it runs.")
@click.option("--all", "with_defaults", is_flag=True, help="What stands at its default too.")
@common_options
@click.pass_context
def show(context: click.Context, topic: str | None, node: int | None, with_defaults: bool) -> int:
    """Show the configs of a topic or a node; of neither: the cluster's own."""
    if topic is not None and node is not None:
        raise click.UsageError("--topic or --node, not both", context)
    settings = settings_of(context)
    resource = Resource.TOPIC if topic is not None else Resource.BROKER
    name = topic if topic is not None else "" if node is None else str(node)
    with connected(settings) as client, naming_topic(topic or ""):
        entries = client.run(lambda: client.admin.describe_configs(resource, name))
    shown = [each for each in entries if with_defaults or not each.is_default]
    rows = [_row(each) for each in sorted(shown, key=lambda each: each.name)]
    Output(settings).rows(rows, COLUMNS)
    if not with_defaults:
        settings.suggest(f"{context.command_path} --all")
    return exit_codes.OK


@config.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@common_options
@click.pass_context
def check(context: click.Context, file: Path) -> int:
    """Check a configuration FILE; name every problem in it with its line."""
    output = Output(settings_of(context))
    problems: tuple[str, ...] = ()
    try:
        load_config(file)
    except ConfigError as error:
        problems = error.problems
    if output.for_people:
        for problem in problems:
            click.echo(f"dlogctl: {problem}", err=True)
        if not problems:
            click.echo(f"{file} is correct")
    elif output.has_documents:
        output.document({"file": str(file), "correct": not problems, "problems": list(problems)})
    else:
        output.rows([{"problem": problem} for problem in problems], PROBLEM_COLUMNS)
    return exit_codes.FAILURE if problems else exit_codes.OK
