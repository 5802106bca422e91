"""`dlogctl config explain`: what configs mean; with a topic or node, also what holds there."""

import shutil
import textwrap
from dataclasses import asdict
from typing import Any

import click

from dlogctl import exit_codes
from dlogctl.cluster.config_meaning import Meaning, every_meaning, meaning_of, nearest, readable
from dlogctl.cluster.resources import Target, describe, target_of
from dlogctl.commands.config_show import SOURCES, no_config
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Column, Output
from dlogctl.output.escaping import say_lines
from dlogctl.session import connected
from dlogctl.settings import Settings, common_options, settings_of
from dlogctl.shell.completion import complete_configs, complete_nodes, complete_topics

COLUMNS = (
    Column("CONFIG", "name"),
    Column("TYPE", "type"),
    Column("DEFAULT", "default"),
    Column("BOUNDS", "bounds"),
    Column("APPLIES", "applies", wide=True),
    Column("MEANING", "meaning", wide=True),
)
SOURCE_TEXTS = {
    "topic": "set for this topic",
    "node": "set for this node at run time",
    "cluster": "set for the whole cluster",
    "file": "from the node's file",
    "default": "the default: it is not set",
}


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl config explain", "All configs with type, default, bounds."),
        ("dlogctl config explain retention.ms", "One in full; no cluster is needed."),
        ("dlogctl config explain retention.ms --topic events", "Also what holds there, and why."),
    ),
)
@click.argument("keys", nargs=-1, metavar="[KEY...]", shell_complete=complete_configs)
@click.option("--topic", metavar="NAME", shell_complete=complete_topics,
              help="Also what holds for a topic.")  # fmt: skip
@click.option("--node", type=click.IntRange(min=0), metavar="ID", shell_complete=complete_nodes,
              help="Also what holds on a node.")  # fmt: skip
@common_options
@click.pass_context
def explain(
    context: click.Context, keys: tuple[str, ...], topic: str | None, node: int | None
) -> int:
    """Say what configs mean: type, default, bounds, names; and with --topic or --node their value.

    Offline unless a topic or a node is named.
    """
    settings = settings_of(context)
    target = target_of(context, topic, node)
    values = {} if target.is_cluster else _values(settings, target)
    found = [_find(key, target, values) for key in dict.fromkeys(keys)]
    documents = [_document(each, target, values) for each in found or every_meaning()]
    output = Output(settings)
    if output.has_documents:
        output.document(documents)
    elif not output.for_people or not keys:
        output.rows(documents, COLUMNS)
    else:
        say_lines("\n\n".join(_for_people(each) for each in documents))
    if topic is not None and keys:
        settings.suggest(f"dlogctl config set {keys[0]}=VALUE --topic {topic}")
    return exit_codes.OK


def _values(settings: Settings, target: Target) -> dict[str, Any]:
    with connected(settings) as client:
        return {each.name: each for each in describe(client, target)}


def _find(key: str, target: Target, values: dict[str, Any]) -> Meaning:
    meaning = meaning_of(key)
    if meaning is not None:
        return meaning
    if key in values:  # of a server that has configs we do not know
        return Meaning(
            topic_name=key if target.is_topic else None,
            cluster_name=None,
            file_name=None if target.is_topic else key,
            meaning=values[key].doc or "",
            type="",
            default="",
            bounds="",
            applies="",
        )
    if not target.is_cluster:
        raise no_config(key, target)
    near = nearest(key)
    hint = f"did you mean {near}? " if near else ""
    raise click.ClickException(f"there is no config {key}; {hint}see all: dlogctl config explain")


def _document(meaning: Meaning, target: Target, values: dict[str, Any]) -> dict[str, Any]:
    document = {"name": meaning.name, **asdict(meaning), "choices": list(meaning.choices)}
    names = (meaning.topic_name, meaning.cluster_name, meaning.file_name)
    entry = next((values[name] for name in names if name in values), None)
    if entry is not None:
        document["of"] = str(target)
        document["value"] = "(hidden)" if entry.is_sensitive else entry.value
        document["source"] = SOURCES.get(entry.source, "unknown")
    return document


def _for_people(document: dict[str, Any]) -> str:
    name = document["name"]
    width = max(40, min(100, shutil.get_terminal_size().columns))
    lines = [name, *textwrap.wrap(document["meaning"], width - 2, initial_indent="  ",
                                  subsequent_indent="  ")]  # fmt: skip
    for title, text in (
        ("type", document["type"]),
        ("default", readable(name, document["default"])),
        ("bounds", document["bounds"]),
        ("applies", document["applies"]),
        ("for a topic", document["topic_name"]),
        ("for the cluster", document["cluster_name"]),
        ("in a node's file", document["file_name"]),
    ):
        if text:
            lines.append(f"  {title + ':':<18}{text}")
    if "of" in document:
        source = SOURCE_TEXTS.get(document["source"], document["source"])
        shown = f"{readable(name, document['value'])} ({source})"
        lines.append(f"  {document['of'] + ':':<18}{shown}")
    return "\n".join(lines)
