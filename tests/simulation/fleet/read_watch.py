"""Counts what consumers read from followers (KIP-392); none gives out more than it may.

Whether a record was committed when a consumer got it is judged where consumers note it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dlogd.server.handlers.fetch import FetchWork


@contextmanager
def watching(registry: Any) -> Iterator[None]:
    """See for a while all reads of replicas that do not lead."""
    read = FetchWork._read

    def watched(work: Any, partition: Any, *arguments: Any) -> Any:
        found = read(work, partition, *arguments)
        if found is not None and found.bytes and partition.closed is not None:
            registry.count("reads from followers")
        return found

    with mock.patch.object(FetchWork, "_read", watched):
        yield
