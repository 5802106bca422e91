"""Known holes as patches: for a while, a function of the daemon is replaced by a wrong one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Make = Callable[[Any], Any]
"""Makes the wrong function from the right one."""
Patch = tuple[Any, str, Make]
"""Owner, attribute, and what takes its place."""


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Open a hole for a while; one hole may need several patches, where one hides the other."""
    originals = [getattr(owner, attribute) for owner, attribute, _ in patches]
    try:
        for (owner, attribute, make), original in zip(patches, originals, strict=True):
            setattr(owner, attribute, make(original))
        yield
    finally:
        for (owner, attribute, _), original in zip(patches, originals, strict=True):
            setattr(owner, attribute, original)
