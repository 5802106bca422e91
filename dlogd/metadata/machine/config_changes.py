"""Changes of configs, from the requests AlterConfigs and IncrementalAlterConfigs.

Pure. Done by the proposer: the operations append and subtract are resolved here against the present
value, which the machine then compares again, so that two of them at once cannot lose one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from dlog.errors import InvalidConfigError, InvalidRequestError
from dlogd.metadata.commands.codec import ConfigChange
from dlogd.metadata.state import topic_configs
from dlogd.metadata.state.config_values import ConfigType, split_list
from dlogd.metadata.state.topic_configs import CLUSTER_CONFIGS, TOPIC_CONFIGS


class AlterOperation(IntEnum):
    """What IncrementalAlterConfigs does with a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigScope(IntEnum):
    """Whose configs; the numbers are the protocol's resource types."""

    TOPIC = 2
    CLUSTER = 4  # BROKER with an empty name


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigOperation:
    """One operation as it was asked for; `operation` may be any number."""

    key: str
    operation: int
    value: str | None


def plan_incremental(
    scope: ConfigScope,
    current: Mapping[str, str],
    operations: Iterable[ConfigOperation],
) -> tuple[ConfigChange, ...]:
    """Return the changes that carry out some operations.

    `current` is what is set now. Raises InvalidRequestError or InvalidConfigError.
    """
    changes: dict[str, ConfigChange] = {}
    for each in operations:
        if each.key in changes:
            raise InvalidRequestError(f"Error due to duplicate config keys: {each.key}")
        changes[each.key] = _change(scope, current, each)
    _validate(scope, changes.values())
    return tuple(changes.values())


def plan_replacement(
    scope: ConfigScope, current: Mapping[str, str], configs: Iterable[tuple[str, str | None]]
) -> tuple[ConfigChange, ...]:
    """Return the changes after which exactly `configs` are set (the older AlterConfigs)."""
    wanted: dict[str, str] = {}
    for key, value in configs:
        if key in wanted:
            raise InvalidRequestError(f"Error due to duplicate config keys: {key}")
        if value is None:
            raise InvalidRequestError(f"Null value not supported for: {key}")
        wanted[key] = value.strip()
    changes = [
        ConfigChange(key=key, value=value)
        for key, value in wanted.items()
        if current.get(key) != value
    ]
    _validate(scope, changes)
    dropped = [ConfigChange(key=key, value=None) for key in current if key not in wanted]
    return (*changes, *dropped)


def _change(
    scope: ConfigScope, current: Mapping[str, str], wanted: ConfigOperation
) -> ConfigChange:
    if wanted.operation == AlterOperation.DELETE:
        if wanted.key not in current:
            # What is set, and no version knows any more, may still be deleted.
            topic_configs.check_deleted(wanted.key, of_topic=scope is ConfigScope.TOPIC)
        return ConfigChange(key=wanted.key, value=None)
    if wanted.value is None:
        raise InvalidRequestError(f"Null value not supported for: {wanted.key}")
    if wanted.operation == AlterOperation.SET:
        return ConfigChange(key=wanted.key, value=wanted.value.strip())
    if wanted.operation not in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
        raise InvalidRequestError(f"Unknown operation {wanted.operation} on {wanted.key}")
    table = TOPIC_CONFIGS if scope is ConfigScope.TOPIC else CLUSTER_CONFIGS
    key = table.get(wanted.key)
    if key is None or key.type is not ConfigType.LIST:
        raise InvalidConfigError(
            f"Config value append/subtract is not allowed for {wanted.key}: it is not a list"
        )
    before = split_list(current.get(wanted.key, key.default))
    given = split_list(wanted.value)
    if wanted.operation == AlterOperation.APPEND:
        after = tuple(dict.fromkeys((*before, *given)))
    else:
        after = tuple(word for word in before if word not in given)
    return ConfigChange(
        key=wanted.key, value=",".join(after), compare=True, expected=current.get(wanted.key)
    )


def _validate(scope: ConfigScope, changes: Iterable[ConfigChange]) -> None:
    """Check what is set."""
    values = {change.key: change.value for change in changes if change.value is not None}
    if scope is ConfigScope.TOPIC:
        topic_configs.validate_topic(values)
    else:
        topic_configs.validate_cluster(values)
