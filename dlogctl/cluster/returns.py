"""Return of a node after a restart: what it still lacks, and whether that shrinks.

Pure. It judges this node alone: a fault elsewhere is named and does not count. What a wait may
trust is progress, not time: a node that replays its log for an hour is on its way
(strimzi-kafka-operator#5263), and one on which nothing moves is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlogctl.cluster.cluster_view import Cluster, is_healthy, lag_of
from dlogctl.cluster.lags import lags_of
from dlogctl.cluster.partition_names import some

CAUGHT_UP_MS = 1_000

Statuses = Mapping[int, Mapping[str, Any] | None]
"""What each node says in /status; None: it does not answer."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a node lacks until it is back."""

    reasons: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Faults of others, which a restart of this node neither made nor mends."""
    amounts: tuple[int, ...] = ()
    """What is left, in numbers that shrink; the first that differs tells."""
    words: str = ""
    """How far it says it is, in words that change."""

    @property
    def is_back(self) -> bool:
        """Whether nothing is left."""
        return not self.reasons


def epoch_of(node_id: int, statuses: Statuses) -> int:
    """Return the newest epoch of a node that any node knows; -1 when nobody tells."""
    told = [-1]
    for status in statuses.values():
        nodes = (status or {}).get("nodes") or ()
        told += [int(each["node_epoch"]) for each in nodes if each["node_id"] == node_id]
    return max(told)


def left_of(
    cluster: Cluster,
    node_id: int,
    statuses: Statuses,
    failed_directories: Sequence[str],
    since: int | None,
) -> Left:
    """Judge one node; `since` is the epoch that it had before its restart."""
    reasons = []
    status = statuses.get(node_id)
    epoch = epoch_of(node_id, statuses)
    is_old = since is not None and epoch <= since
    if is_old:
        known = f"its epoch is {epoch}" if epoch >= 0 else "no node tells its epoch"
        reasons.append(f"it has not registered since epoch {since}: {known}")
    is_fenced = cluster.nodes[node_id].is_fenced
    if is_fenced:
        reasons.append("it is fenced: it has not come back, or does not hold its lease yet")
    state = str(status["state"]) if status else "silent"
    words = "; ".join(status.get("problems", ())) if status else ""
    if status and state != "active":
        reasons.append(f"it is {state}: {words}")
    entries = _metadata_lag(cluster, node_id)
    if entries:
        reasons.append(f"it lacks {entries} entries of the metadata, or does not follow them")
    held = list(cluster.held_by(node_id))
    out = [f"{topic}-{each.partition}" for topic, each in held if node_id not in each.isr]
    if out:
        reasons.append(f"it is out of the ISR of {len(out)} of {len(held)} partitions: {some(out)}")
    reasons += [f"data directory {each}" for each in failed_directories]
    lag = lags_of(statuses.values()).get(node_id, {})
    return Left(
        reasons=reasons,
        elsewhere=_elsewhere(cluster, node_id),
        amounts=(int(is_old), int(is_fenced), len(out), int(lag.get("bytes", 0)), entries),
        words=f"{state} {words}",
    )


def _metadata_lag(cluster: Cluster, node_id: int) -> int:
    """Return how many entries the node lacks; one when it is silent, none where nobody knows.

    One that had them all a moment ago follows: others come in while the metadata change.
    """
    quorum = cluster.quorum
    if quorum is None:
        return 0
    every = [*quorum.voters, *quorum.observers]
    own = next((each for each in every if each.node_id == node_id), None)
    if own is None:
        return 0
    if not is_healthy(quorum, own):
        return max(lag_of(quorum, own) or 0, 1)
    behind_ms = max(each.last_fetch_ms for each in quorum.voters) - own.last_caught_up_ms
    return (lag_of(quorum, own) or 0) if behind_ms > CAUGHT_UP_MS else 0


def _elsewhere(cluster: Cluster, node_id: int) -> list[str]:
    found = [f"node {each} is fenced" for each in cluster.others_fenced(node_id)]
    if without := cluster.leaderless():
        found.append(f"{some(without)} have no leader")
    short = [
        f"{topic}-{each.partition}"
        for topic, each in cluster.partitions()
        if each.leader >= 0 and set(each.replicas) - set(each.isr) - {node_id}
    ]
    if short:
        found.append(f"{some(short)} lack replicas on other nodes")
    return found


class Progress:
    """Whether what is left has shrunk. Owner: one wait."""

    def __init__(self) -> None:
        self._best: tuple[int, ...] | None = None
        self._words: set[str] = set()

    def note(self, left: Left) -> bool:
        """Take a look; return whether there was progress since the last one.

        A number that falls is progress, and so is a word that was never said before: recovery
        counts. What goes up and down again is none, or a node that starts over would be waited for
        without end.
        """
        moved = self._best is None or left.amounts < self._best
        if moved:
            self._best = left.amounts
        if left.words not in self._words:
            self._words.add(left.words)
            moved = True
        return moved
