"""Lags of replicas over all nodes, from the reports of their leaders.

Pure. A node's status is what its `/status` says (`dlogd.status.replication_page`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

WORST_COUNT = 5


def _told(statuses: Iterable[Mapping[str, Any] | None]) -> list[Mapping[str, Any]]:
    return [each["replication"] for each in statuses if each and each.get("replication")]


def lags_of(statuses: Iterable[Mapping[str, Any] | None]) -> dict[int, dict[str, int]]:
    """Return for each node what it has not fetched and flushed yet, over all its leaders."""
    found: dict[int, dict[str, int]] = {}
    for told in _told(statuses):
        for each in told["followers"]:
            lag = found.setdefault(int(each["node"]), {"records": 0, "bytes": 0, "ms": 0})
            lag["records"] += each["lag_records"]
            lag["bytes"] += each["lag_bytes"]
            lag["ms"] = max(lag["ms"], each["lag_ms"])
    return found


def worst_of(statuses: Iterable[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the replicas that are furthest behind, in time."""
    every = [dict(each) for told in _told(statuses) for each in told["worst"]]
    every.sort(key=lambda each: (each["lag_ms"], each["lag_records"]), reverse=True)
    return every[:WORST_COUNT]
