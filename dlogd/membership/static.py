"""Members from the configuration: peers that are listed, for a laptop without gossip.

Nobody looks whether a peer lives, so its state is uncertain for ever; only this node is alive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dlogd.membership.members import (
    Member,
    MembershipCounters,
    MemberState,
    OnMembers,
    Source,
    decode_tags,
)


class StaticMembership:
    """Implements `Membership` over a fixed list. The own node is what it announces."""

    def __init__(self, peers: Sequence[Member]) -> None:
        self.counters = MembershipCounters()
        self._members = {each.node_id: each for each in peers}
        self._callbacks: list[OnMembers] = []

    @property
    def problem(self) -> str | None:
        """Return None: a list is never out of date."""
        return None

    def members(self) -> tuple[Member, ...]:
        """Return the peers and this node, sorted by node id."""
        return tuple(self._members[node_id] for node_id in sorted(self._members))

    def subscribe(self, callback: OnMembers) -> None:
        """Call back after each change, which only `announce` makes."""
        self._callbacks.append(callback)

    def announce(self, tags: Mapping[str, str]) -> None:
        """Show this node as the tags say; raise MalformedTagsError."""
        own = replace(decode_tags(tags, MemberState.ALIVE), source=Source.CONFIG)
        old = self.members()
        self._members[own.node_id] = own
        new = self.members()
        if new != old:
            self.counters.changes_total += 1
            for callback in self._callbacks:
                callback(old, new)

    async def start(self) -> None:
        """Do nothing: all is known."""

    async def stop(self) -> None:
        """Do nothing."""
