"""Incarnations of a topic: which topic id is current although nodes lag behind. Pure.

An id that was never heard of is that of a topic made anew. One that was replaced does not come back
for `FORMER_S`: a node tells it that has not heard yet of the topic's end. Unless it is a node that
has told the present id before: no node goes back in time, so the present id is the older one, and
it was the node that told it first that lagged. (Kafka's Java client believes whoever spoke last.)
"""

from uuid import UUID

from dlog.transport import Address
from dlog.types import ZERO_TOPIC_ID

FORMER_S = 10.0
"""Nodes that lag for longer have lost their leases (3 s as configured by itself). No longer than
that, because it may be the present id that a node which died since was alone to tell."""


class _Life:
    """The present id of one name, who has told it, and until when former ones are refused."""

    __slots__ = ("former", "told_by", "topic_id")

    def __init__(self, topic_id: UUID, former: dict[UUID, float]) -> None:
        self.topic_id = topic_id
        self.told_by: set[Address] = set()
        self.former = former


class TopicIncarnations:
    """The present ids of topics by name, also of those that are gone. Owner: the cache."""

    def __init__(self) -> None:
        self._lives: dict[str, _Life] = {}
        # Names that nobody knows any more, and until when their ids are remembered; in order.
        self._gone: dict[str, float] = {}

    def accept(self, name: str, topic_id: UUID, via: Address | None, now_s: float) -> bool:
        """Take in what `via` calls a topic; return whether it is the present one, or a newer."""
        if topic_id == ZERO_TOPIC_ID:  # the cluster does not tell
            return True
        life = self._lives.get(name)
        if life is None:
            life = self._lives[name] = _Life(topic_id, {})
        elif topic_id != life.topic_id:
            if now_s < life.former.get(topic_id, now_s) and via not in life.told_by:
                return False
            former = {each: end_s for each, end_s in life.former.items() if now_s < end_s}
            former.pop(topic_id, None)
            former[life.topic_id] = now_s + FORMER_S
            life = self._lives[name] = _Life(topic_id, former)
        self._gone.pop(name, None)
        if via is not None:
            life.told_by.add(via)
        return True

    def on_gone(self, name: str, now_s: float) -> None:
        """Remember a topic that there is no more only for as long as nodes may lag."""
        if name in self._lives:
            self._gone.setdefault(name, now_s + FORMER_S)
        while self._gone:
            first, end_s = next(iter(self._gone.items()))
            if now_s < end_s:
                break
            del self._gone[first], self._lives[first]
