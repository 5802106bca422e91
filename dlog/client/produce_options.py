"""Options of producers: defaults, units and bounds, shared by both producers.

Pure; shared by both producers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dlog.batch.header import HEADER_BYTES
from dlog.compression import Codec, compress
from dlog.types import INT32_MAX

Acks = Literal["none", "leader", "all"]

ACKS: Mapping[str, int] = {"none": 0, "leader": 1, "all": -1}
CODECS: Mapping[str, Codec] = {codec.name.lower(): codec for codec in Codec}

LINGER_MS = 5.0
BATCH_BYTES = 1_000_000
"""A little below the 1 MiB that a topic allows by default."""
MEMORY_BYTES = 64 * 1024 * 1024
REQUEST_BYTES = 8 * 1024 * 1024
REQUEST_TIMEOUT_MS = 30_000
DELIVERY_TIMEOUT_MS = 120_000
BLOCK_MS = 60_000
ABANDON_MS = 3_000
"""Enough for a healthy cluster, and not too long for one who has pressed Ctrl-C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How records are gathered."""

    codec: Codec
    batch_bytes: int
    memory_bytes: int
    linger_s: float
    delivery_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options of a producer; `Producer` says what each means. Raises ValueError for a bad one."""

    acks: Acks | None
    compression: str
    linger_ms: float
    batch_bytes: int
    memory_bytes: int
    request_bytes: int
    request_timeout_ms: int
    delivery_timeout_ms: int
    block_ms: int
    abandon_ms: int
    idempotent: bool | None
    gapless: bool

    def __post_init__(self) -> None:
        if self.acks is not None and self.acks not in ACKS:
            raise ValueError(f"acks {self.acks!r} is none of {', '.join(ACKS)}")
        if self.compression not in CODECS:
            raise ValueError(f"compression {self.compression!r} is none of {', '.join(CODECS)}")
        if self.idempotent and self.acks == "none":
            raise ValueError("an idempotent producer needs acks")
        if not HEADER_BYTES <= self.batch_bytes <= INT32_MAX:
            raise ValueError(f"batch_bytes is {HEADER_BYTES} to {INT32_MAX}")
        if self.memory_bytes < self.batch_bytes:
            raise ValueError("memory_bytes is less than batch_bytes")
        self._check_numbers()
        # Raises UnsupportedCompressionTypeError now and not when the first batch is full.
        compress(self.codec, b"")

    def _check_numbers(self) -> None:
        for name in ("linger_ms", "block_ms", "abandon_ms"):
            if not getattr(self, name) >= 0:  # a NaN is neither
                raise ValueError(f"{name} is negative")
        for name in ("request_bytes", "request_timeout_ms", "delivery_timeout_ms"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is not positive")
        if self.request_timeout_ms > INT32_MAX:
            raise ValueError(f"request_timeout_ms is at most {INT32_MAX}")

    @property
    def codec(self) -> Codec:
        """The compression as its number."""
        return CODECS[self.compression]

    @property
    def is_idempotent(self) -> bool:
        """Whether batches are numbered, as far as `acks` is known by now."""
        return self.acks != "none" if self.idempotent is None else self.idempotent

    def batching(self) -> Batching:
        """Return what the accumulator has to know."""
        return Batching(
            codec=self.codec,
            batch_bytes=self.batch_bytes,
            memory_bytes=self.memory_bytes,
            linger_s=self.linger_ms / 1000,
            delivery_timeout_s=self.delivery_timeout_ms / 1000,
        )
