"""Settings of nodes that operators change at run time: drain, controller, level, maintenance.

Read and written by DescribeConfigs and IncrementalAlterConfigs, so that every Kafka tool can:

- `node.drain` of a broker resource with a name: `none`, `leaders` or `replicas`; kept in the
  metadata, over restarts of the node.
- `controller.node` of the broker resource without a name, which is the whole cluster: the node that
  is the controller. Setting it hands the office over, and returns when the new one acts.
- `feature.level` of the same resource: which commands and formats of the metadata are in use. It is
  raised when every node runs software that knows the new one, and never goes back.
- `maintenance.lock` of the same resource: who works on the cluster
  (`dlogd.server.handlers.maintenance`).
- `node.registration` of a broker resource with a name can only be deleted: what UnregisterBroker
  does, for a client that has to give `maintenance.token` with it.

Any node answers for all: docs/decisions/0023-operators-apis.md has the reasons.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from dlog.errors import (
    BrokerIdNotRegisteredError,
    InvalidConfigError,
    InvalidRequestError,
    RequestTimedOutError,
    UnsupportedVersionError,
    WireError,
)
from dlog.types import NO_NODE, NodeId
from dlogd.config.schema import KEYS
from dlogd.metadata.commands.codec import DrainNode, Permit, SetFeatureLevel
from dlogd.metadata.machine.config_changes import AlterOperation
from dlogd.metadata.raft.membership import Operation
from dlogd.metadata.state.config_values import ConfigSource, ConfigType
from dlogd.metadata.state.effective_configs import ConfigEntry, ConfigSynonym
from dlogd.metadata.state.image import ClusterImage, Drain, NodeRegistration
from dlogd.metadata.state.topic_configs import CLUSTER_CONFIGS, TOPIC_CONFIGS
from dlogd.server.context import WAITED_IN_VAIN, ServerContext, settled
from dlogd.server.handlers import maintenance, quorum, raft_voters

DRAIN = "node.drain"
CONTROLLER = "controller.node"
LEVEL = "feature.level"
REGISTRATION = "node.registration"
LOOK_AGAIN_S = 0.01
DIGITS_MAX = 20
"""Of a number; Python refuses to read numbers of thousands of digits."""
LEVEL_DIGITS_MAX = 4
FOREIGN = frozenset({"replica.alter.log.dirs.io.max.bytes.per.second"})
"""What Kafka's tools take back of nodes, beside throttles that there are here."""
DRAINS = {drain.name.lower(): drain for drain in Drain}


def node_of(image: ClusterImage, name: str) -> NodeRegistration | None:
    """Return the node that a broker resource names, None when there is none."""
    node_id = _node_id(name)
    return None if node_id is None else image.nodes.get(node_id)


def _node_id(text: str) -> NodeId | None:
    return NodeId(int(text)) if text.isdecimal() and len(text) <= DIGITS_MAX else None


def is_about_settings(resource: Any) -> bool:
    """Whether a resource with a name, or without one, changes these settings and nothing else."""
    names = {each.name for each in resource.configs}
    if resource.resource_name:
        names.discard(maintenance.TOKEN)
        return len(names) == 1 and names <= {DRAIN, REGISTRATION}
    return len(names) == 1 and names <= {CONTROLLER, LEVEL, maintenance.LOCK}


def is_nothing(image: ClusterImage, resource: Any) -> bool:
    """Whether a resource only takes back what a node cannot have, as Kafka's tools do."""
    return node_of(image, resource.resource_name) is not None and all(
        is_taken_back(each) for each in resource.configs
    )


def is_taken_back(operation: Any) -> bool:
    """Whether an operation takes back what is not there, in order."""
    return operation.config_operation == AlterOperation.DELETE and operation.name in FOREIGN


def check_known(image: ClusterImage, resource: Any) -> None:
    """Raise InvalidConfigError for a config of a node that nobody has, set or taken back."""
    if node_of(image, resource.resource_name) is None:
        return
    known = (KEYS, TOPIC_CONFIGS, CLUSTER_CONFIGS, FOREIGN)
    for each in resource.configs:
        if not any(each.name in names for names in known):
            raise InvalidConfigError(f"Unknown node config name: {each.name}")


def describe_node(node: NodeRegistration) -> list[ConfigEntry]:
    """Return the settings of one node."""
    source = ConfigSource.DEFAULT if node.drain == Drain.NONE else ConfigSource.NODE
    doc = (
        "What an operator wants off the node. leaders: it leads nothing while others can, and gets"
        " no new replicas. replicas: what it holds moves to others, too."
    )
    return [_entry(DRAIN, node.drain.name.lower(), source, doc)]


def describe_cluster(context: ServerContext) -> list[ConfigEntry]:
    """Return the settings of the whole cluster; none where the node is alone.

    A node that keeps its metadata alone has one level, and never another.
    """
    image = context.image()
    if context.quorum is None:
        return []
    entries = []
    if (value := maintenance.describe(context)) is not None:
        doc = (
            "The operator who works on the cluster. Meanwhile no other may drain or remove a node."
        )
        entries.append(_entry(maintenance.LOCK, value, ConfigSource.CLUSTER, doc))
    newest = min((node.level_max for node in image.nodes.values()), default=image.feature_level)
    doc = (
        "Which commands and formats of the metadata are in use. All nodes know up to"
        f" {newest}. It can be raised to that, and never goes back."
    )
    entries.append(_entry(LEVEL, str(image.feature_level), ConfigSource.CLUSTER, doc))
    node_id = image.controller.node_id
    if node_id != NO_NODE:
        doc = "The node that is the controller. Setting it to another voter hands the office over."
        entries.append(_entry(CONTROLLER, str(node_id), ConfigSource.CLUSTER, doc))
    return entries


def _entry(name: str, value: str, source: ConfigSource, doc: str) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=value,
        source=source,
        type=ConfigType.STRING,
        read_only=False,
        doc=doc,
        synonyms=(ConfigSynonym(name=name, value=value, source=source),),
    )


async def alter(
    context: ServerContext, resource: Any, deadline_ms: int, *, validate_only: bool
) -> None:
    """Change the one setting that a resource names; raise WireError."""
    operations: Sequence[Any] = [e for e in resource.configs if e.name != maintenance.TOKEN]
    if len(operations) > 1:
        raise InvalidRequestError(f"Error due to duplicate config keys: {operations[0].name}")
    wanted = operations[0]
    if resource.resource_name:
        permit = maintenance.permit_of(context, maintenance.token_of(resource.configs))
        change = _drain if wanted.name == DRAIN else _forget
        await change(context, resource.resource_name, wanted, permit, deadline_ms, validate_only)
    elif wanted.name == maintenance.LOCK:
        await maintenance.alter(context, wanted, deadline_ms, validate_only=validate_only)
    elif wanted.name == LEVEL:
        await _raise_level(context, wanted, deadline_ms, validate_only)
    else:
        await _transfer(context, wanted, deadline_ms, validate_only)


async def _drain(
    context: ServerContext,
    name: str,
    wanted: Any,
    permit: Permit | None,
    deadline_ms: int,
    validate_only: bool,
) -> None:
    node = _known(context, name)
    if wanted.config_operation == AlterOperation.DELETE:
        drain: Drain | None = Drain.NONE
    elif wanted.config_operation == AlterOperation.SET:
        drain = DRAINS.get((wanted.value or "").strip().lower())
    else:
        drain = None
    if drain is None:
        raise InvalidConfigError(
            f"Invalid value {wanted.value} for configuration {DRAIN}: set it to one of"
            f" {', '.join(DRAINS)}"
        )
    command = DrainNode(
        command_id=context.new_id(), node_id=node.node_id, drain=drain, permit=permit
    )
    if validate_only:
        context.rehearse(command)
    elif node.drain != drain:
        await context.propose(command, deadline_ms)


def _known(context: ServerContext, name: str) -> NodeRegistration:
    node = node_of(context.image(), name)
    if node is None:
        raise BrokerIdNotRegisteredError(f"There is no node {name}")
    return node


async def _forget(
    context: ServerContext,
    name: str,
    wanted: Any,
    permit: Permit | None,
    deadline_ms: int,
    validate_only: bool,
) -> None:
    node = _known(context, name)
    if wanted.config_operation != AlterOperation.DELETE:
        raise InvalidConfigError(f"{REGISTRATION} can only be deleted: it forgets the node")
    command = await raft_voters.removal_of(context, node, permit)
    if validate_only:
        context.rehearse(command)
    else:
        await context.propose(command, deadline_ms)


async def _raise_level(
    context: ServerContext, wanted: Any, deadline_ms: int, validate_only: bool
) -> None:
    if wanted.config_operation == AlterOperation.DELETE:
        raise InvalidConfigError(f"{LEVEL} cannot be unset: it never goes back; set it to a number")
    text = (wanted.value or "").strip()
    is_number = text.isdecimal() and len(text) <= LEVEL_DIGITS_MAX
    if wanted.config_operation != AlterOperation.SET or not is_number:
        raise InvalidConfigError(
            f"Invalid value {wanted.value} for configuration {LEVEL}: set it to a number"
        )
    level = int(text)
    if level == context.image().feature_level:
        return
    command = SetFeatureLevel(command_id=context.new_id(), level=level)
    try:
        if validate_only:
            context.rehearse(command)
        else:
            await context.propose(command, deadline_ms)
    except (InvalidRequestError, UnsupportedVersionError) as error:
        # Who asked knows configs; UNSUPPORTED_VERSION would speak of the request.
        raise InvalidConfigError(
            f"{LEVEL} stays {context.image().feature_level}: {error}"
        ) from error


async def _transfer(
    context: ServerContext, wanted: Any, deadline_ms: int, validate_only: bool
) -> None:
    """Hand the office of the controller over, and wait until the new one acts."""
    if context.quorum is None:
        raise InvalidRequestError("This node keeps its metadata alone: it stays the controller")
    if wanted.config_operation == AlterOperation.DELETE:
        raise InvalidConfigError(
            f"{CONTROLLER} cannot be unset: set it to the node id of the voter that is to be it"
        )
    text = (wanted.value or "").strip()
    node_id = _node_id(text)
    if wanted.config_operation != AlterOperation.SET or node_id is None:
        raise InvalidConfigError(
            f"Invalid value {wanted.value} for configuration {CONTROLLER}: set it to a node id"
        )
    state = await quorum.known_by(context.quorum)
    voters = [each.node_id for each in state.voters]
    if node_id not in voters:
        raise InvalidConfigError(f"Node {node_id} is no voter of the metadata; these are: {voters}")
    node = context.image().nodes.get(node_id)
    if node_id != state.leader_id and (node is None or not node.active):
        # Its Raft runs before it has registered, and while it stops; no lease would be granted.
        why = "has not registered" if node is None else "is fenced or shuts down"
        raise InvalidConfigError(f"Node {node_id} {why}: as the controller it could not act")
    if validate_only:
        return
    if node_id != state.leader_id:
        try:
            settled(await context.quorum.change_voters(Operation.TRANSFER, node_id, deadline_ms))
        except InvalidRequestError as error:
            raise InvalidConfigError(str(error)) from error
    await _until_it_acts(context, node_id, deadline_ms)


async def _until_it_acts(context: ServerContext, node_id: NodeId, deadline_ms: int) -> None:
    while context.image().controller.node_id != node_id:
        if context.clock.now_ms() >= deadline_ms:
            raise RequestTimedOutError(
                f"Node {node_id} is not the controller yet: {WAITED_IN_VAIN}"
            )
        await asyncio.sleep(LOOK_AGAIN_S)


def refusal_of_mixture(resource: Any) -> WireError | None:
    """Return why a resource that names these settings beside others is refused, if it does."""
    for each in resource.configs:
        if each.name in (DRAIN, CONTROLLER, LEVEL, REGISTRATION, maintenance.LOCK):
            return InvalidRequestError(f"{each.name} is changed by a resource of its own")
        if each.name == maintenance.TOKEN:
            return InvalidRequestError(f"{each.name} only goes with {DRAIN} or {REGISTRATION}")
    return None
