"""Lease of this node: whether it may lead, answer and acknowledge now.

Pure. The lease counts from the moment at which the heartbeat *left*, on this node's clock: however
long the answer took, the controller counts from later. Whoever acts under the lease asks
`is_valid(now_ms)` at that moment; no timer has to fire for it to end.
"""

from dataclasses import dataclass

UNANSWERED_MAX = 64
"""Heartbeats whose answer may still come; an older one's is too late to be of use."""
NO_NODE_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The controller's yes to one heartbeat."""

    sequence: int  # of the heartbeat
    node_epoch: int  # whom it is for
    controller_epoch: int
    lease_ms: int


class OwnLease:
    """This node's lease. Owner: the event loop's thread.

    Invariant: without a registration (`node_epoch` -1) the lease is not valid.
    """

    def __init__(self) -> None:
        self.node_epoch = NO_NODE_EPOCH
        self.controller_epoch = -1
        """The newest that this node has heard of; grants of older ones do not count."""
        self.valid_until_ms = 0  # exclusive
        self.valid_until_us = 0  # the same, for those who read that clock anyway
        self.surrendered = False
        """Given up for the rest of this life: the controller may hear of it at any later time."""
        self._sequence = 0
        self._sent_ms: dict[int, int] = {}  # by sequence, ascending

    def begin(self, node_epoch: int) -> None:
        """Start a new registration, without a lease; answers to earlier heartbeats are void."""
        self.node_epoch = node_epoch
        self.surrendered = False
        self.revoke()

    def is_valid(self, now_ms: int) -> bool:
        """Return whether this node may act as a leader at `now_ms`."""
        return now_ms < self.valid_until_ms

    def on_send(self, now_ms: int) -> int:
        """Return the sequence of a heartbeat that leaves after `now_ms`; call before sending."""
        self._sequence += 1
        if len(self._sent_ms) >= UNANSWERED_MAX:
            del self._sent_ms[next(iter(self._sent_ms))]
        self._sent_ms[self._sequence] = now_ms
        return self._sequence

    def on_grant(self, grant: Grant) -> bool:
        """Take a grant; return whether it lengthened the lease."""
        sent_ms = self._sent_ms.pop(grant.sequence, None)
        if sent_ms is None or self.surrendered or grant.node_epoch != self.node_epoch:
            return False
        if self.node_epoch == NO_NODE_EPOCH or grant.controller_epoch < self.controller_epoch:
            return False
        self.controller_epoch = grant.controller_epoch
        until_ms = sent_ms + grant.lease_ms
        if until_ms <= self.valid_until_ms:
            return False
        self.valid_until_ms, self.valid_until_us = until_ms, until_ms * 1000
        return True

    def on_refusal(self, sequence: int, controller_epoch: int, *, fenced: bool) -> None:
        """Take an answer without a lease; `fenced` ends the present one at once."""
        sent_ms = self._sent_ms.pop(sequence, None)
        if sent_ms is not None and controller_epoch >= self.controller_epoch:
            self.controller_epoch = controller_epoch
            if fenced:
                self.revoke()

    def on_controller(self, controller_epoch: int) -> None:
        """Learn from the metadata that a controller of this epoch has begun."""
        self.controller_epoch = max(self.controller_epoch, controller_epoch)

    def surrender(self) -> None:
        """Give the lease up until the next `begin`; heartbeats may say so from now on."""
        self.surrendered = True
        self.revoke()

    def revoke(self) -> None:
        """End the lease now, and do not believe answers to heartbeats that are under way."""
        self.valid_until_ms = self.valid_until_us = 0
        self._sent_ms.clear()
