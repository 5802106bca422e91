"""AddRaftVoter, RemoveRaftVoter and UnregisterBroker: who keeps the metadata, and who is known.

What would lose the quorum is refused, by the leader of the metadata; so is forgetting a node that
runs, that is a voter, or that holds replicas.
"""

from dlog.errors import (
    BrokerIdNotRegisteredError,
    DuplicateVoterError,
    InconsistentClusterIdError,
    InvalidRequestError,
    VoterNotFoundError,
    WireError,
)
from dlog.types import ZERO_TOPIC_ID
from dlogd.metadata.commands.codec import Permit, RemoveNode
from dlogd.metadata.interface import Quorum
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.image import NodeRegistration
from dlogd.server.context import ServerContext, settled
from dlogd.server.handlers import maintenance, quorum
from dlogd.server.request import Handler, Request, error_fields
from dlogd.server.response_builder import Fields, milliseconds

TIMEOUT_MS = 30_000
"""For the requests that do not say how long their clients wait."""


def _office(context: ServerContext, request: Request) -> Quorum:
    """Return who can change the voters; raise WireError where there is nobody."""
    wanted = request.body.cluster_id
    known = context.image().cluster_id
    if wanted is not None and wanted != known:
        raise InconsistentClusterIdError(f"This is cluster {known}, not {wanted}")
    if context.quorum is None:
        raise InvalidRequestError(
            "This node keeps its metadata alone: there is no quorum (its `controllers` are not"
            " configured)"
        )
    return context.quorum


async def answer_add(context: ServerContext, request: Request) -> Fields:
    """Make a voter of an observer that has caught up; returns when the quorum has agreed."""
    body = request.body
    office = _office(context, request)
    if body.voter_id < 0 or not body.listeners:
        raise InvalidRequestError("A voter needs an id and a listener")
    state = await quorum.known_by(office)
    if any(each.node_id == body.voter_id for each in state.voters):
        message = f"Node {body.voter_id} is a voter already"
        if any(each.node_id == body.voter_id for each in state.observers):
            message += ", with another metadata directory: remove it first, then add it"
        raise DuplicateVoterError(message)
    wanted_id = body.voter_directory_id or ZERO_TOPIC_ID
    for each in state.observers:
        if each.node_id == body.voter_id and wanted_id not in (ZERO_TOPIC_ID, each.directory_id):
            raise VoterNotFoundError(
                f"Node {body.voter_id} has the metadata directory {each.directory_id},"
                f" not {wanted_id}"
            )
    listener = body.listeners[0]
    deadline_ms = context.deadline_ms(milliseconds(body.timeout))
    settled(
        await office.change_voters(
            Operation.ADD, body.voter_id, deadline_ms, listener.host, listener.port
        )
    )
    return error_fields(None)


async def answer_remove(context: ServerContext, request: Request) -> Fields:
    """Make an observer of a voter; returns when the quorum has agreed."""
    body = request.body
    office = _office(context, request)
    state = await quorum.known_by(office)
    voter = next((each for each in state.voters if each.node_id == body.voter_id), None)
    wanted_id = body.voter_directory_id or ZERO_TOPIC_ID
    if voter is None or wanted_id not in (ZERO_TOPIC_ID, voter.directory_id):
        raise VoterNotFoundError(f"Node {body.voter_id} with this directory is no voter")
    deadline_ms = context.deadline_ms(TIMEOUT_MS)
    settled(await office.change_voters(Operation.REMOVE, body.voter_id, deadline_ms))
    return error_fields(None)


async def answer_unregister(context: ServerContext, request: Request) -> Fields:
    """Forget a node that is down, holds no replicas and does not vote."""
    node_id = request.body.broker_id
    node = context.image().nodes.get(node_id)
    if node is None:
        raise BrokerIdNotRegisteredError(f"Broker ID {node_id} is not currently registered")
    command = await removal_of(context, node, maintenance.permit_of(context, None))
    await context.propose(command, context.deadline_ms(TIMEOUT_MS))
    return error_fields(None)


async def removal_of(
    context: ServerContext, node: NodeRegistration, permit: Permit | None
) -> RemoveNode:
    """Return the command that forgets a node; raise InvalidRequestError for a voter."""
    if context.quorum is not None:
        state = await quorum.known_by(context.quorum)
        if any(each.node_id == node.node_id for each in state.voters):
            raise InvalidRequestError(
                f"Node {node.node_id} is a voter of the metadata: remove it there first"
            )
    return RemoveNode(
        command_id=context.new_id(),
        node_id=node.node_id,
        node_epoch=node.node_epoch,
        permit=permit,
    )


def refuse(_request: Request, error: WireError) -> Fields:
    """Carry the error at the top."""
    return error_fields(error)


ADD_HANDLER = Handler(answer_add, refuse)
REMOVE_HANDLER = Handler(answer_remove, refuse)
UNREGISTER_HANDLER = Handler(answer_unregister, refuse)
