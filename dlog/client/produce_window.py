"""How far a producer may be ahead of its oldest batch. Pure.

A leader remembers the last five batches of a producer per partition, and recognises no others when
they are repeated. So it is not enough that no more are on the wire: what is done counts too, as
long as a batch before it is not. That one may have to be repeated, at this leader or the next.
"""

INFLIGHT_MAX = 5
"""As many batches of a producer as a leader remembers per partition."""

Order = tuple[int, ...]


class ProduceWindow:
    """What of a partition is done before a batch that is older. Owner: its queue."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: list[Order] = []

    def __bool__(self) -> bool:
        return bool(self._done)

    def add(self, order: Order) -> None:
        """Note a batch that is done, and may be in the log, before an older one. Idempotent."""
        if order not in self._done:
            self._done.append(order)

    def clear(self) -> None:
        """Forget all: an epoch begins, of which leaders remember nothing."""
        self._done.clear()

    def has_room(self, oldest: Order, underway: int) -> bool:
        """Return whether `oldest` is still remembered when one more is appended.

        `underway`: how many more that are not done may be appended, the oldest one counted.
        """
        self._done = [order for order in self._done if order > oldest]
        return len(self._done) + underway < INFLIGHT_MAX
