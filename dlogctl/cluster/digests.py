"""Comparison of replicas' digests: differences, places, sources.

Pure. A node's answer is what its `/digest` says (`dlogd.status.digest_page`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about one replica that is not as it should be. `next_offset` is exclusive."""

    node: int
    what: str  # damaged, differs, behind, failed, unreachable
    first_offset: int = -1
    next_offset: int = -1
    reason: str = ""


def common_range(heads: Mapping[int, Answer]) -> tuple[int, int]:
    """Return the offsets that all of these must have: [largest log start, least watermark)."""
    if not heads:
        return 0, 0
    first = max(int(each["log_start_offset"]) for each in heads.values())
    end = min(int(each["high_watermark"]) for each in heads.values())
    return first, max(first, end)


def findings_of_heads(heads: Mapping[int, Answer]) -> list[Finding]:
    """Return the replicas that are out of service."""
    return [
        Finding(node=node, what="failed", reason=str(each["error"]))
        for node, each in sorted(heads.items())
        if each["error"] is not None
    ]


def lags_of_heads(
    heads: Mapping[int, Answer], members: Mapping[int, Answer], high: int
) -> list[Finding]:
    """Return the replicas besides the members of the ISR that lack something below `high`."""
    return [
        Finding(
            node=node,
            what="behind",
            first_offset=int(each["high_watermark"]),
            next_offset=high,
            reason="not in sync",
        )
        for node, each in sorted(heads.items())
        if node not in members and int(each["high_watermark"]) < high
    ]


def compare(answers: Mapping[int, Answer], leader: int) -> list[Finding]:
    """Compare the digests of one piece; ranges that differ are the fault of the fewer.

    Where as many say one thing as another, the leader is believed.
    """
    found = []
    for node, each in sorted(answers.items()):
        if each.get("error") is not None:
            found.append(Finding(node=node, what="failed", reason=str(each["error"])))
        elif each["next"] != answers[leader].get("next", each["next"]):
            reason = f"reports only offsets up to {each['next']}"
            found.append(Finding(node=node, what="failed", reason=reason))
        for first, following in each.get("damaged", ()):
            found.append(
                Finding(node=node, what="damaged", first_offset=first, next_offset=following)
            )
    told = {
        node: {(row["first"], row["next"]): (row["crc"], row["bytes"]) for row in each["ranges"]}
        for node, each in answers.items()
        if each.get("error") is None and not each.get("damaged")
    }
    for place in sorted({place for rows in told.values() for place in rows}):
        values = {node: rows.get(place) for node, rows in told.items()}
        right = _believed(values, leader)
        found += [
            Finding(node=node, what="differs", first_offset=place[0], next_offset=place[1])
            for node, value in sorted(values.items())
            if value != right
        ]
    return _merged(found)


def _believed(values: Mapping[int, Any], leader: int) -> Any:
    counts = Counter(values.values())
    best = max(counts.values())
    winners = [value for value, count in counts.items() if count == best]
    return winners[0] if len(winners) == 1 else values.get(leader, winners[0])


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """Join neighbouring places of one kind on one node."""
    merged: list[Finding] = []
    for each in sorted(found, key=lambda one: (one.node, one.what, one.first_offset)):
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.node, last.what) == (each.node, each.what)
            and 0 <= each.first_offset <= last.next_offset
        ):
            end = max(last.next_offset, each.next_offset)
            merged[-1] = Finding(
                node=last.node, what=last.what, first_offset=last.first_offset, next_offset=end
            )
        else:
            merged.append(each)
    return merged
