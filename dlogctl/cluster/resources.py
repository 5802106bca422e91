"""Resources of config commands: a topic, a node, or the whole cluster."""

from dataclasses import dataclass

import click

from dlog.client.admin import Resource
from dlog.client.blocking import BlockingClient
from dlog.client.views import ConfigEntry
from dlog.errors import BrokerNotAvailableError
from dlogctl.cluster.cluster_view import expect_up
from dlogctl.cluster.config_meaning import Meaning
from dlogctl.session import naming_topic


@dataclass(frozen=True, slots=True)
class Target:
    """A resource that has configs; prints as people call it."""

    resource: Resource
    name: str

    @property
    def is_topic(self) -> bool:
        """Whether it is a topic."""
        return self.resource is Resource.TOPIC

    @property
    def is_cluster(self) -> bool:
        """Whether it is the whole cluster."""
        return self.resource is Resource.BROKER and not self.name

    @property
    def options(self) -> str:
        """How it is named on a command line, with a space before."""
        if self.is_cluster:
            return ""
        return f" --topic {self.name}" if self.is_topic else f" --node {self.name}"

    def name_of(self, meaning: Meaning) -> str | None:
        """Return what a config is called here."""
        if self.is_topic:
            return meaning.topic_name
        return meaning.cluster_name if self.is_cluster else meaning.file_name

    def __str__(self) -> str:
        if self.is_cluster:
            return "the cluster"
        return f"topic {self.name}" if self.is_topic else f"node {self.name}"


def target_of(context: click.Context, topic: str | None, node: int | None = None) -> Target:
    """Return what --topic and --node mean; raise click.UsageError for both."""
    if topic is not None and node is not None:
        raise click.UsageError("--topic or --node, not both", context)
    if topic is not None:
        return Target(Resource.TOPIC, topic)
    return Target(Resource.BROKER, "" if node is None else str(node))


def describe(client: BlockingClient, target: Target) -> list[ConfigEntry]:
    """Return the configs of `target`; the cluster has only those that were set.

    Raises NoNodeError or NodeDownError when a node does not tell its own.
    """
    try:
        with naming_topic(target.name):
            return client.run(lambda: client.admin.describe_configs(target.resource, target.name))
    except BrokerNotAvailableError:
        client.run(lambda: expect_up(client, int(target.name)))
        raise
