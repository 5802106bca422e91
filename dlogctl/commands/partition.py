"""`dlogctl partition`: its commands, each in a module of its own."""

import click

from dlogctl.groups import LazyGroup

COMMANDS = {
    "list": ("dlogctl.commands.partition_show:list_partitions", "List partitions."),
    "elect": (
        "dlogctl.commands.partition_change:elect",
        "Elect preferred leaders, or unclean ones.",
    ),
    "reassign": (
        "dlogctl.commands.partition_change:reassign",
        "Move replicas to other nodes, or cancel that.",
    ),
    "rebalance": (
        "dlogctl.commands.partition_rebalance:rebalance",
        "Even out replicas and leaders over nodes.",
    ),
    "verify": (
        "dlogctl.commands.partition_verify:verify",
        "Compare replicas by checksums of their disks.",
    ),
    "repair": (
        "dlogctl.commands.partition_repair:repair",
        "Replace a replica by a copy of its leader.",
    ),
    "reassignments": (
        "dlogctl.commands.partition_show:reassignments",
        "List the replicas that move now.",
    ),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=(
        ("dlogctl partition list --leaderless", "Partitions without a leader."),
        ("dlogctl partition elect", "Preferred leaders for all partitions."),
        ("dlogctl partition reassign events-0=2,3,1", "New places of its replicas."),
    ),
)
def partition() -> None:
    """List partitions, elect their leaders, move their replicas.

    A partition is named events-0; where several may be given, events means all of that topic.
    """
