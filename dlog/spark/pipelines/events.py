"""Progress events of pipelines, for people, metrics and tests.

A pipeline calls its observer with each event, in order, before it goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A batch has come so far: planned, written, sealed, published, cleaned ..."""

    name: str
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A batch is done for good. `records` were moved, `lag` offsets are left to do.

    `lost` offsets were gone before they could be moved; `missing` ones, between others, hold no
    record although nothing explains it.
    """

    batch: int
    records: int
    record_bytes: int
    offsets: int
    files: int
    seconds: float
    lag: int
    lost: int = 0
    missing: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run that looks for differences has found so many of a kind."""

    kind: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run is over: `error` is empty when it went well."""

    seconds: float
    error: str = ""


Event = Phase | BatchDone | Found | Ended
Observer = Callable[[Event], None]


def nobody(_event: Event) -> None:
    """Observe nothing."""
