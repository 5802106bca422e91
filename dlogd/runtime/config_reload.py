"""Plan of a configuration reload: which changed keys take effect in a running node.

Pure. `dlogd.service` loads the file on SIGHUP, asks `plan_reload` and carries the plan out.
"""

from dataclasses import dataclass

from dlogd.config.schema import KEYS, Config, build


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKey:
    """One key whose value in the file is not the running one; values as the file writes them."""

    name: str
    running: str
    wanted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadPlan:
    """The configuration to run with from now on, and what to tell about it."""

    config: Config
    applied: tuple[ChangedKey, ...]
    needs_restart: tuple[ChangedKey, ...]


def plan_reload(running: Config, wanted: Config) -> ReloadPlan:
    """Take over what may change in a running node; name what may not."""
    applied: list[ChangedKey] = []
    needs_restart: list[ChangedKey] = []
    values = {}
    for name, bound in KEYS.items():
        before, after = bound.value_in(running), bound.value_in(wanted)
        if before == after:
            continue
        changed = ChangedKey(
            name=name, running=bound.key.format(before), wanted=bound.key.format(after)
        )
        if bound.key.reloadable:
            values[name] = after
            applied.append(changed)
        else:
            needs_restart.append(changed)
    return ReloadPlan(
        config=build(values, running), applied=tuple(applied), needs_restart=tuple(needs_restart)
    )
