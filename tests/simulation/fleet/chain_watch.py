"""What must hold of each log after every step of a node that has changed it, seen from above.

`OffsetsChain` (0 <= log start <= high watermark <= log end, flushed and promised <= log end), and
that a member of the ISR has what is committed: not only when a watermark or an ISR moves, but
whatever cut, trimmed, flushed or appended. In the middle of a step both may be broken.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from dlogd.storage.log.log_offsets import LogOffsets
from dlogd.storage.log.partition_log import PartitionLog

OFFSETS = ("log_start_offset", "log_end_offset", "flushed_offset", "promised_offset")


class ChainWatch:
    """Notes which logs have changed; `look` judges them. `data` knows their shadows."""

    def __init__(self, registry: Any, data: Any) -> None:
        self._registry = registry
        self._data = data
        self._changed: dict[PartitionLog, None] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every change of a log's offsets for a while."""
        with ExitStack() as stack:
            for name in OFFSETS:
                stack.enter_context(mock.patch.object(LogOffsets, name, self._noted(name)))
            yield

    def _noted(self, name: str) -> property:
        slot: Any = LogOffsets.__dict__[name]
        changed = self._changed

        def set_offset(log: Any, offset: int) -> None:
            slot.__set__(log, offset)
            changed[log] = None

        return property(slot.__get__, set_offset)

    def note(self, log: PartitionLog) -> None:
        """Something else of a log has changed."""
        self._changed[log] = None

    def look(self) -> None:
        """Judge what the step that has just ended has changed."""
        if not self._changed:
            return
        logs = list(self._changed)
        self._changed.clear()
        for log in logs:
            shadow = self._data.shadow_here(log)
            if shadow is not None and not log.closed:
                self._registry.counts["looks at changed logs"] = (
                    self._registry.counts.get("looks at changed logs", 0) + 1
                )
                self._look_at(log, shadow)

    def _look_at(self, log: PartitionLog, shadow: Any) -> None:
        host = self._data.host_here()
        key = (log.topic_id, log.topic_partition.partition)
        shadow.look_at_log()
        start, end = log.log_start_offset, log.log_end_offset
        watermark = start
        replicas = host.broker.replicas if host.broker is not None else None
        partition = replicas.by_id.get(key) if replicas is not None else None
        if partition is not None and partition.log is log and not partition.is_cutting:
            watermark = partition.high_watermark
        is_flushed_part = log.flushed_offset <= end and log.promised_offset <= end
        if not 0 <= start <= watermark <= end or not is_flushed_part:
            text = f"{start} {watermark} {log.flushed_offset} {log.promised_offset} {end}"
            self._data.violate("OffsetsChain", key, f"{text} at {host.name}")
        self._data.look_at_member(key, host.node_id)
