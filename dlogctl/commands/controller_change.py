"""`dlogctl controller add`, `remove` and `transfer`.

What is known here is checked before anything is asked for, so that a refusal names the cure; the
leader of the metadata checks all of it again.
"""

from typing import Any

import click

from dlog.client.admin_views import QuorumView
from dlog.client.blocking import BlockingClient
from dlog.client.views import NodeView
from dlog.errors import InvalidRequestError
from dlog.transport import Address
from dlogctl import exit_codes
from dlogctl.cluster.cluster_view import Cluster, is_healthy, known_quorum, look
from dlogctl.cluster.http_status import WILDCARDS, node_configs
from dlogctl.groups import ExampleCommand
from dlogctl.output.documents import Output
from dlogctl.output.escaping import confirm
from dlogctl.session import connected
from dlogctl.settings import common_options, settings_of
from dlogctl.shell.completion import complete_nodes

LISTENER, CONTROLLERS = "metadata.listener", "controllers"


def _listed(node_ids: list[int]) -> str:
    return ", ".join(map(str, node_ids)) or "none"


def _healthy(quorum: QuorumView, *, without: int = -1) -> list[int]:
    """Return the voters that are well, the leader first."""
    return sorted(
        (v.node_id for v in quorum.voters if v.node_id != without and is_healthy(quorum, v)),
        key=lambda node_id: node_id != quorum.leader_id,
    )


def _tolerance(voters: int) -> str:
    return f"{voters} voters, of which {(voters - 1) // 2} may fail"


def _parse_address(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> Address | None:
    try:
        return None if text is None else Address.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


async def _metadata_address(client: BlockingClient, cluster: Cluster, node_id: int) -> Address:
    """Return where a node listens for the metadata, as it says itself."""
    state = cluster.node(node_id)
    node = NodeView(node_id=node_id, address=state.address, rack=state.rack)
    configs = await node_configs(client, node, [LISTENER, CONTROLLERS])
    entries = (each.partition("@") for each in configs.get(CONTROLLERS, "").split(","))
    own = next((address for name, _, address in entries if name.strip() == str(node_id)), None)
    text = configs.get(LISTENER) or own
    if not text:
        raise click.ClickException(
            f"node {node_id} has no {LISTENER} of its own; say where others reach its metadata:"
            f" dlogctl controller add {node_id} --address HOST:PORT"
        )
    found = Address.parse(text)
    return Address(state.address.host, found.port) if found.host in WILDCARDS else found


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl controller add 4", "Node 4, which follows the metadata so far, votes too."),
        (
            "dlogctl controller add 4 --address n4:9093",
            "Address of its metadata, for the other nodes.",
        ),
        ("dlogctl controller add 4 --dry-run", "Could it?"),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@click.option("--address", callback=_parse_address, metavar="HOST:PORT",
              help="Its metadata listener. Default: what the node says.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be, change nothing.")
@common_options
@click.pass_context
def add(context: click.Context, node_id: int, address: Address | None, dry_run: bool) -> int:
    """Let NODE vote on the metadata. It must follow the metadata already.

    The node list of `controllers` in the configuration files is only for the first start; change it
    there too, so that a node that begins anew finds the others.
    """
    settings = settings_of(context)
    with connected(settings) as client:
        cluster = client.run(lambda: look(client))
        quorum = known_quorum(cluster)
        observers = [each.node_id for each in quorum.observers]
        if cluster.voter(node_id) is not None:
            raise click.ClickException(_votes_already(node_id, has_new_disk=node_id in observers))
        if node_id not in observers:
            raise click.ClickException(
                f"node {node_id} does not follow the metadata; those that do are"
                f" {_listed(observers)}: start it with `controllers` in its configuration, see:"
                " dlogctl controller list"
            )
        where = address or client.run(lambda: _metadata_address(client, cluster, node_id))
        if not dry_run:
            with_cure(
                client, lambda: client.admin.add_voter(node_id, where), "dlogctl controller list"
            )
    count = _tolerance(len(quorum.voters) + 1)
    would = "would vote" if dry_run else "votes now"
    Output(settings).done(
        f"node {node_id} {would}, at {where}: {count}",
        node=node_id,
        result="would be added" if dry_run else "added",
        address=str(where),
    )
    settings.suggest("dlogctl controller list")
    return exit_codes.OK


def _votes_already(node_id: int, *, has_new_disk: bool) -> str:
    """Say why a voter is not added; one that came back with another directory follows as well."""
    if not has_new_disk:
        return f"node {node_id} votes already; see: dlogctl controller list"
    return (
        f"node {node_id} votes with the metadata directory that it had before; it came back with"
        f" another one (a new disk). Remove that vote first: dlogctl controller remove {node_id},"
        f" then: dlogctl controller add {node_id}"
    )


def with_cure(client: BlockingClient, work: Any, cure: str) -> None:
    """Do something, and say after a refusal what to look at."""
    try:
        client.run(work)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{str(error).rstrip('.')}; see: {cure}") from None


def _check_removal(cluster: Cluster, node_id: int) -> None:
    """Raise click.ClickException when the rest would be no quorum."""
    quorum = known_quorum(cluster)
    voters = [each.node_id for each in quorum.voters]
    if node_id not in voters:
        raise click.ClickException(
            f"node {node_id} is not a voter; the voters are: {_listed(voters)};"
            " see: dlogctl controller list"
        )
    if len(voters) == 1:
        raise click.ClickException(
            f"node {node_id} is the only voter, and the cluster's metadata cannot lose it;"
            " add another one first: dlogctl controller add NODE"
        )
    left = _healthy(quorum, without=node_id)
    needed = (len(voters) - 1) // 2 + 1
    if len(left) < needed:
        raise click.ClickException(
            f"without node {node_id} only {_listed(left)} of {len(voters) - 1} voters would be"
            f" healthy, and {needed} are needed: the quorum would be lost; bring the others back"
            " first, see: dlogctl controller list"
        )
    if node_id == quorum.leader_id:
        heirs = [each for each in left if cluster.can_be_controller(each)]
        raise click.ClickException(
            f"node {node_id} is the controller: hand that over first: dlogctl controller transfer"
            f" {(heirs or left)[0]}"
        )


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl controller remove 3", "Asks first. Node 3 follows the metadata from then on."),
        ("dlogctl controller remove 3 --yes", "Without asking."),
        ("dlogctl controller remove 3 --dry-run", "Would there be a quorum left?"),
    ),
)
@click.argument(
    "node_id", type=click.IntRange(min=0), metavar="NODE", shell_complete=complete_nodes
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be, change nothing.")
@common_options
@click.pass_context
def remove(context: click.Context, node_id: int, yes: bool, dry_run: bool) -> int:
    """Let NODE vote on the metadata no longer; it becomes an observer.

    Refused when the rest would be no quorum.
    """
    settings = settings_of(context)
    with connected(settings) as client:
        cluster = client.run(lambda: look(client))
        quorum = known_quorum(cluster)
        _check_removal(cluster, node_id)
        count = _tolerance(len(quorum.voters) - 1)
        if not dry_run:
            if not yes:
                question = f"Remove node {node_id} from the voters? There will be {count}."
                confirm(question)
            with_cure(client, lambda: client.admin.remove_voter(node_id), "dlogctl controller list")
    would = "would vote no longer" if dry_run else "votes no longer"
    Output(settings).done(
        f"node {node_id} {would}: {count}",
        node=node_id,
        result="would be removed" if dry_run else "removed",
    )
    settings.suggest("dlogctl controller list")
    return exit_codes.OK


@click.command(
    cls=ExampleCommand,
    examples=(
        ("dlogctl controller transfer 2", "Node 2 shall be the controller."),
        ("dlogctl controller transfer", "Some other healthy voter shall."),
    ),
)
@click.argument("node_id", type=click.IntRange(min=0), metavar="[NODE]", required=False,
                shell_complete=complete_nodes)  # fmt: skip
@common_options
@click.pass_context
def transfer(context: click.Context, node_id: int | None) -> int:
    """Make NODE, a voter, the controller; returns when it acts as one."""
    settings = settings_of(context)
    with connected(settings) as client:
        cluster = client.run(lambda: look(client))
        quorum = known_quorum(cluster)
        target = _target(cluster, quorum, node_id)
        if target != quorum.leader_id:
            client.run(lambda: client.admin.transfer_controller(target))
    was = quorum.leader_id
    text = "is the controller" if was == target else f"is the controller now, after node {was}"
    Output(settings).done(
        f"node {target} {text}",
        node=target,
        result="unchanged" if was == target else "transferred",
        before=was,
    )
    settings.suggest("dlogctl controller list")
    return exit_codes.OK


def _target(cluster: Cluster, quorum: QuorumView, wanted: int | None) -> int:
    """Return who shall be the controller; raise click.ClickException when nobody can."""
    healthy = _healthy(quorum, without=quorum.leader_id)
    others = [each for each in healthy if cluster.can_be_controller(each)]
    if wanted is None:
        if not others:
            raise click.ClickException(
                "there is no other healthy voter that is up; see: dlogctl controller list"
            )
        return others[0]
    if wanted == quorum.leader_id or wanted in others:
        return wanted
    if wanted in healthy:
        raise click.ClickException(
            f"node {wanted} votes, but is not up: as the controller it could not act; those that"
            f" can are {_listed(others)}; see: dlogctl node list"
        )
    raise click.ClickException(
        f"node {wanted} is not a healthy voter; the others are {_listed(others)};"
        " see: dlogctl controller list"
    )
