"""Plan of a rolling restart: who has to be restarted, in which order, and why.

Pure. The order is stable: by rack, then by id, so that two nodes of one rack follow each other and
the other racks stay whole meanwhile; the active controller comes last, because each of its restarts
makes another node the controller, and that one may still be due.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlogctl.cluster.cluster_view import Cluster
from dlogctl.cluster.returns import Statuses

EVERY = -1
"""Stands for all nodes that are not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What every node shall run; None: whatever it runs is right."""

    version: str | None = None
    digests: Mapping[int, str] | None = None
    """Of the configuration, by node; EVERY: of all that have none of their own here."""
    started_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """A node that has to be restarted, and why."""

    node_id: int
    rack: str | None
    is_controller: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is due, in order, and of whom nobody can tell."""

    due: Sequence[Due]
    unknown: Sequence[int]


def plan_of(cluster: Cluster, statuses: Statuses, target: Target) -> Plan:
    """Compare what each node says of itself with the target."""
    due, unknown = [], []
    for node_id, state in cluster.nodes.items():
        status = statuses.get(node_id)
        if status is None:
            unknown.append(node_id)
            continue
        reasons = tuple(_reasons(node_id, status, target))
        if reasons:
            is_controller = node_id == cluster.controller_id
            due.append(Due(node_id, state.rack, is_controller, reasons))
    due.sort(key=lambda each: (each.is_controller, each.rack or "", each.node_id))
    return Plan(due, sorted(unknown))


def _reasons(node_id: int, status: Mapping[str, Any], target: Target) -> list[str]:
    reasons = []
    version = status.get("version")
    if target.version is not None and version != target.version:
        reasons.append(f"version {version}, not {target.version}")
    config = status.get("config") or {}
    digests = target.digests or {}
    wanted = digests.get(node_id, digests.get(EVERY))
    if wanted is not None and config.get("digest") != wanted:
        reasons.append(f"configuration {config.get('digest')}, not {wanted}")
    waiting = config.get("waiting_keys") or ()
    if waiting:
        reasons.append(f"keys wait for a restart: {', '.join(waiting)}")
    started_ms = status.get("started_at_ms")
    if target.started_after_ms is not None and (started_ms or 0) <= target.started_after_ms:
        reasons.append("it has not been restarted yet")
    return reasons
