"""Settings of CPython's cycle collector for this kind of program. Source: Python, `gc`.

What the start built is frozen, so that only what came since is looked at. Requests make no cycles,
so the collector need not look often. A partition is one, of some 50 objects and 6 KB: all is looked
at once a thousand or two have gone (and, CPython's rule, a quarter is new).
"""

import gc

THRESHOLDS = (10_000, 3, 1)
OBJECTS_PER_CONNECTION = 20
"""What a request of each of them adds before the one before it goes. A crowd that is woken by each
append would else count as new every time: all was looked at, for 0.2 s with 10,000 of them."""


def settle() -> None:
    """Begin to collect: what is there now is there to stay."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


def follow(connection_count: int) -> None:
    """Look less often while there are so many connections."""
    young = max(THRESHOLDS[0], OBJECTS_PER_CONNECTION * connection_count)
    now, *older = gc.get_threshold()
    if now != young and tuple(older) == THRESHOLDS[1:]:
        gc.set_threshold(young, *older)
