"""`replication.factor` of a topic: read, it is what is so; set, it moves replicas.

Like `controller.node` it is not stored (docs/decisions/0023): setting it begins reassignments, with
replicas chosen by the same rules as those of a new topic, and returns when they have begun.
"""

from typing import Any

from dlog.errors import InvalidConfigError, InvalidRequestError, UnknownTopicOrPartitionError
from dlogd.metadata.commands.codec import AlterAssignments
from dlogd.metadata.machine.config_changes import AlterOperation
from dlogd.metadata.machine.replication_factor import factor_of, plan_factor
from dlogd.metadata.state.config_values import ConfigSource, ConfigType
from dlogd.metadata.state.effective_configs import ConfigEntry, ConfigSynonym
from dlogd.metadata.state.image import TopicImage
from dlogd.metadata.state.limits import REPLICAS_MAX
from dlogd.server.context import ServerContext
from dlogd.server.handlers.config_resources import ResourceType

KEY = "replication.factor"
DOC = "How many replicas each partition has. Setting it moves replicas; it is not stored."


def is_about_it(resource: Any) -> bool:
    """Whether a resource changes it; then it may change nothing else."""
    return resource.resource_type == ResourceType.TOPIC and any(
        each.name == KEY for each in resource.configs
    )


def describe(topic: TopicImage) -> ConfigEntry:
    """Return what DescribeConfigs says."""
    value = str(factor_of(topic))
    return ConfigEntry(
        name=KEY,
        value=value,
        source=ConfigSource.DEFAULT,
        type=ConfigType.INT,
        read_only=False,
        doc=DOC,
        synonyms=(ConfigSynonym(name=KEY, value=value, source=ConfigSource.DEFAULT),),
    )


async def alter(
    context: ServerContext, resource: Any, deadline_ms: int, *, validate_only: bool
) -> None:
    """Begin to move replicas; raise WireError."""
    if len(resource.configs) > 1:
        raise InvalidRequestError(f"{KEY} is changed by a resource of its own")
    (wanted,) = resource.configs
    image = context.image()
    topic = image.topics.get(resource.resource_name)
    if topic is None:
        raise UnknownTopicOrPartitionError()
    if wanted.config_operation == AlterOperation.DELETE:
        raise InvalidConfigError(
            f"{KEY} cannot be unset, for it is not stored: set it to how many replicas each"
            f" partition is to have, 1 to {REPLICAS_MAX}"
        )
    text = (wanted.value or "").strip().lstrip("0")
    # Python refuses to read numbers of thousands of digits.
    is_number = text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= REPLICAS_MAX
    if wanted.config_operation != AlterOperation.SET or not is_number:
        raise InvalidConfigError(
            f"Invalid value {wanted.value} for configuration {KEY}: set it to 1 to {REPLICAS_MAX}"
        )
    moves = plan_factor(image, topic, int(text), context.loads())
    if not moves:
        return
    command = AlterAssignments(command_id=context.new_id(), reassignments=tuple(moves))
    if validate_only:
        context.rehearse(command)
    else:
        await context.propose(command, deadline_ms)
