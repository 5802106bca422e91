"""Completion of arguments in a shell: topics, configs, nodes.

Asks the cluster, but not for long, and says nothing when that fails: somebody is typing. The client
is loaded only when the cluster is asked.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

import click

from dlog.errors import DlogError, UnsupportedVersionError
from dlogctl.settings import Settings, settings_of

DEADLINE_S = 0.7
"""How long the cluster may take, all together."""


def _ask(context: click.Context, question: Callable[[Any], Awaitable[list[str]]]) -> list[str]:
    """Return what `question`, given a client, finds in time; else nothing."""
    given = settings_of(context)
    hurried = Settings(
        given={**given.given, "timeout": f"{DEADLINE_S}s"}, context_option=given.context_option
    )

    async def in_time(client: Any) -> list[str]:
        async with asyncio.timeout(DEADLINE_S):
            return await question(client)

    session = importlib.import_module("dlogctl.session")
    try:
        with session.connected(hurried) as client:
            found: list[str] = client.run(lambda: in_time(client))
    except (DlogError, OSError, click.ClickException):
        return []
    # The shell puts them on the command line as they are.
    return [name for name in found if name.isprintable()]


async def _topics(client: Any) -> list[str]:
    view = await client.admin.describe_topics()
    return sorted(name for name, topic in view.topics.items() if not topic.is_internal)


def complete_topics(context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    """Return the topics that begin with `text`, without those already named."""
    given: Any = context.params.get("names") or ()
    return [name for name in _ask(context, _topics) if name.startswith(text) and name not in given]


def complete_nodes(context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    """Return the ids of the nodes that begin with `text`."""

    async def nodes(client: Any) -> list[str]:
        try:
            return [str(each) for each in await client.admin.describe_nodes()]
        except UnsupportedVersionError:
            return [str(each) for each in sorted((await client.admin.describe_cluster()).nodes)]

    given = [str(each) for each in context.params.get("node_ids") or ()]
    return [name for name in _ask(context, nodes) if name.startswith(text) and name not in given]


def complete_configs(context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    """Return the configs that begin with `text`: of the topic named, else of the cluster."""
    return [name for name in _configs(context) if name.startswith(text)]


def complete_pairs(context: click.Context, _parameter: click.Parameter, text: str) -> list[str]:
    """Return `key=`, and after that the values where a config has few."""
    key, equals, begun = text.partition("=")
    if not equals:
        return [f"{name}=" for name in _configs(context) if name.startswith(text)]
    explained = importlib.import_module("dlogctl.cluster.config_meaning").meaning_of(key)
    choices = explained.choices if explained is not None else ()
    return [f"{key}={word}" for word in choices if word.startswith(begun)]


def _configs(context: click.Context) -> list[str]:
    """Return names of configs: as the cluster tells them for a topic, else those we know."""
    topic = context.params.get("topic") or _topic_argument(context)
    if topic is not None:
        admin = importlib.import_module("dlog.client.admin")

        async def configs(client: Any) -> list[str]:
            entries = await client.admin.describe_configs(admin.Resource.TOPIC, topic)
            return sorted(each.name for each in entries)

        if found := _ask(context, configs):
            return found
    names: list[str] = importlib.import_module("dlogctl.cluster.config_meaning").names(
        of_topics=topic is not None or "topic" in context.command_path.split()
    )
    return names


def _topic_argument(context: click.Context) -> str | None:
    """Return the topic of `topic alter NAME`, when it is typed already."""
    name = context.params.get("name")
    of_topics = "topic" in context.command_path.split()
    return str(name) if of_topics and name and context.info_name == "alter" else None
