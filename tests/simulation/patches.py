"""Known holes as patches: for a while, a function of the daemon is replaced by a wrong one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

Make = Callable[[Any], Any]
"""Makes the wrong function from the right one."""
Patch = tuple[Any, str, Make]
"""Owner, attribute, and what takes its place."""


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Open a hole for a while; one hole may need several patches, where one hides the other."""
    with ExitStack() as stack:
        for owner, attribute, make in patches:
            wrong = make(getattr(owner, attribute))
            stack.enter_context(mock.patch.object(owner, attribute, wrong))
        yield
