"""An outcome is whole when another thread can see that there is one."""

from types import SimpleNamespace
from typing import Any

from dlog.client.futures import BatchResult, RefusedError


class Watched(BatchResult):
    """Notes what another thread would find at the moment of the first sight."""

    seen: tuple[Any, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "is_done" and value:
            object.__setattr__(
                self, "seen", (self.base_offset, self.append_time_ms, repr(self.error))
            )


def test_an_outcome_is_seen_whole() -> None:
    error = RefusedError("t-0: no")
    owner = SimpleNamespace(wake=lambda: None)
    refused, written = Watched(0, owner), Watched(0, owner)
    refused.settle(error=error)
    written.settle(base_offset=7, append_time_ms=8)
    assert refused.seen == (-1, -1, repr(error))
    assert written.seen == (7, 8, "None")
