"""`dlogctl partition repair`: fetch one replica again from its leader.

Made of reassignments, which every node knows how to do safely: first the partition goes without the
replica, then it gets it back, empty, and the node fetches all of it. What rots in closed segments
is mended by the nodes themselves; this is for what they cannot mend.
"""

import time
from collections.abc import Callable, Sequence

import click

from dlog.client.admin import Resource
from dlog.client.blocking import BlockingClient
from dlog.client.views import PartitionView
from dlogctl import exit_codes
from dlogctl.cluster.moves import sizes_of
from dlogctl.cluster.partition_names import Partition, name_of, one
from dlogctl.groups import ExampleCommand
from dlogctl.output.escaping import confirm, say
from dlogctl.session import connected
from dlogctl.settings import common_options, settings_of
from dlogctl.shell.completion import complete_nodes, complete_topics

MIN_ISR = "min.insync.replicas"
LOOK_AGAIN_S = 0.5


def refusal(partition: Partition, state: PartitionView, node: int, min_isr: int) -> str | None:
    """Return why a replica must not be given up now; None when it may. Pure."""
    name = name_of(partition)
    if node not in state.replicas:
        return f"{name} has no replica on node {node}, only on {_list(state.replicas)}"
    if state.leader < 0:
        return f"no node leads {name}, so the replica cannot be fetched again"
    if state.leader == node:
        others = [each for each in state.replicas if each != node]
        order = _list([*others, node], ",")
        return (
            f"node {node} leads {name}; let another one lead first:"
            f" dlogctl partition reassign {name}={order}, then dlogctl partition elect {name}"
        )
    good = [each for each in state.isr if each != node]
    if len(good) < max(1, min_isr):
        return (
            f"without node {node} only {len(good)} replicas of {name} are in sync, and"
            f" {MIN_ISR} is {min_isr}: acks=all would be refused meanwhile"
        )
    return None


def _list(nodes: Sequence[int], separator: str = ", ") -> str:
    return separator.join(map(str, nodes))


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl partition repair events-3 --node 2", "Node 2 replaces its replica."),
        ("dlogctl partition repair events-3 --node 2 --dry-run", "Would it be safe?"),
    ),
)
@click.argument("name", metavar="PARTITION", shell_complete=complete_topics)
@click.option("--node", type=click.IntRange(min=0), required=True, metavar="ID",
              shell_complete=complete_nodes, help="Node whose replica is replaced.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say whether it would be done.")
@common_options
@click.pass_context
def repair(context: click.Context, name: str, node: int, yes: bool, dry_run: bool) -> int:
    """Fetch a partition's replica on a node anew from the leader; return when it is in sync.

    Refused for the leader, and when fewer than min.insync.replicas other replicas are in sync.
    """
    settings = settings_of(context)
    with connected(settings) as client:
        view = client.run(client.admin.describe_topics)
        key = one(view, name)
        state = view.topics[key[0]].partitions[key[1]]
        why_not = refusal(key, state, node, _min_isr(client, key[0]))
        why_not = why_not or _obstacle(client, key, node)
        if why_not is not None:
            raise click.ClickException(why_not)
        if dry_run:
            say(f"{name_of(key)}: node {node} would delete and refetch its replica")
            return exit_codes.OK
        if not yes:
            confirm(f"Delete the replica of {name_of(key)} on node {node} and fetch it again?")
        # Told before: whatever ends this process, the partition must not stay without the replica.
        say(
            f"{name_of(key)}: node {node} deletes its replica, then fetches it again; if this"
            " command is interrupted:"
            f" dlogctl partition reassign {name_of(key)}={_list(state.replicas, ',')}",
            err=True,
        )
        _assign(client, key, [each for each in state.replicas if each != node])
        _until(client, key, lambda state: node not in state.replicas)
        _until_deleted(client, key, node)
        say(f"{name_of(key)}: the replica on node {node} is deleted; fetching it again", err=True)
        _assign(client, key, state.replicas)
        _until(client, key, lambda state: node in state.isr)
    say(f"{name_of(key)}: the replica on node {node} is in sync")
    settings.suggest(f"dlogctl partition verify {name_of(key)}")
    return exit_codes.OK


def _min_isr(client: BlockingClient, topic: str) -> int:
    entries = client.run(lambda: client.admin.describe_configs(Resource.TOPIC, topic))
    found = next((each.value for each in entries if each.name == MIN_ISR), None)
    return int(found) if found and found.isdecimal() else 1


def _obstacle(client: BlockingClient, key: Partition, node: int) -> str | None:
    """Return what would keep the node from fetching its replica."""
    found = client.run(client.admin.describe_nodes).get(node)
    if found is None or found.is_fenced:
        return f"node {node} is down and could not fetch anything: start it first"
    if client.run(lambda: client.admin.list_reassignments([key])):
        name = name_of(key)
        return (
            f"{name} is being reassigned; wait for that: dlogctl partition reassignments {name}"
            f" --watch --exit-when-done, or end it: dlogctl partition reassign --cancel {name}"
        )
    return None


def _assign(client: BlockingClient, key: Partition, replicas: Sequence[int]) -> None:
    """Let a partition have these replicas."""
    outcomes = client.run(lambda: client.admin.alter_reassignments({key: replicas}))
    error = outcomes.get(key)
    if error is not None:
        raise error


def _until(client: BlockingClient, key: Partition, is_so: Callable[[PartitionView], bool]) -> None:
    """Return when that is so of a partition; what other replicas do does not matter."""
    while True:
        view = client.run(client.admin.describe_topics)
        topic, number = one(view, name_of(key))
        if is_so(view.topics[topic].partitions[number]):
            return
        time.sleep(LOOK_AGAIN_S)


def _until_deleted(client: BlockingClient, key: Partition, node: int) -> None:
    """Return when the node has deleted its log.

    One that gets its place back before that keeps its log, as it is, and nothing is repaired.
    """
    while True:
        held = client.run(lambda: sizes_of(client.admin, [node]))[node]
        if held is not None and key not in held:
            return
        time.sleep(LOOK_AGAIN_S)
