"""Window of a producer: its distance from its oldest batch, and skipped sequences. Pure.

A leader remembers the last five batches of a producer per partition, and recognises no others when
they are repeated. So it is not enough that no more are on the wire: what is done counts too, as
long as a batch before it is not. That one may have to be repeated, at this leader or the next.

What was given up may arrive yet, from a connection that nobody waits for any more, and close the
gap that a leader has complained of: copies of later ones are appended then that come behind it.
"""

INFLIGHT_MAX = 5
"""As many batches of a producer as a leader remembers per partition."""

Order = tuple[int, ...]


class ProduceWindow:
    """What of a partition is done before a batch that is older, or given up. Owner: its queue."""

    __slots__ = ("_done", "_lost")

    def __init__(self) -> None:
        self._done: list[Order] = []
        # The last one that was given up and may be in the log, or get there; (): it is settled.
        self._lost: Order = ()

    def __bool__(self) -> bool:
        return bool(self._done)

    def add(self, order: Order) -> None:
        """Note a batch that is done, and may be in the log, before an older one. Idempotent."""
        if order not in self._done:
            self._done.append(order)

    @property
    def has_lost(self) -> bool:
        """Whether something was given up since a batch was known to be in the log, and may be."""
        return bool(self._lost)

    def lose(self, order: Order) -> None:
        """Note a batch that was given up, and may be in the log or get there."""
        self._lost = max(self._lost, order)

    def on_written(self, order: Order) -> None:
        """Take in that a batch is in the log: of those before it, no more come."""
        if order >= self._lost:
            self._lost = ()

    def clear(self) -> None:
        """Forget all: an epoch begins, of which leaders remember nothing."""
        self._done.clear()
        self._lost = ()

    def has_room(self, oldest: Order, underway: int) -> bool:
        """Return whether `oldest` is still remembered when one more is appended.

        `underway`: how many more that are not done may be appended, the oldest one counted.
        """
        self._done = [order for order in self._done if order > oldest]
        return len(self._done) + underway < INFLIGHT_MAX
