"""Page /digest: checksums of one replica, for `dlogctl partition verify`.

    GET /digest?topic=events&partition=0                         how far the replica goes
    GET /digest?topic=events&partition=0&from=0&to=200000        checksums of what is there

Read only (damage that is found is noted, and mended as the scrub's), one at a time for each node,
and slow enough to be no harm. docs/decisions/0025.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import parse_qs

from dlog.errors import WireError
from dlogd.replication.partition.partition import Partition
from dlogd.status.http_heads import HttpError
from dlogd.storage.repair.digest import BYTES_MAX, STEP, DigestWalk

DIGITS_MAX = 19


class Replicas(Protocol):
    """The partitions of a node."""

    @property
    def by_name(self) -> Mapping[tuple[str, int], Partition]:
        """All with an open replica here."""


class DigestPage:
    """Answers for one node."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def answer(self, replicas: Replicas | None, query: str) -> dict[str, Any]:
        """Return what JSON has; raise HttpError."""
        wanted = {name: values[-1] for name, values in parse_qs(query).items()}
        topic, index = wanted.get("topic", ""), _number(wanted, "partition", -1)
        partition = None if replicas is None else replicas.by_name.get((topic, index))
        if partition is None:
            raise HttpError(404, f"no replica of {topic}-{index} is open here")
        plog = partition.log
        found: dict[str, Any] = {
            "topic": topic,
            "partition": index,
            "leader_epoch": partition.leader_epoch,
            "log_start_offset": plog.log_start_offset,
            "high_watermark": min(partition.high_watermark, plog.promised_offset),
            "error": None if plog.failed is None else str(plog.failed),
        }
        if "from" in wanted and plog.failed is None:
            first = _number(wanted, "from", 0)
            end = _number(wanted, "to", found["high_watermark"])
            if not plog.log_start_offset <= first <= end <= found["high_watermark"]:
                raise HttpError(409, f"{topic}-{index} does not hold [{first}, {end})")
            async with self._turn:
                limit = BYTES_MAX * (2 if "whole" in wanted else 1)
                step = max(1, _number(wanted, "step", STEP))
                walk = DigestWalk(plog, first, end, step=step, limit=limit)
                found |= await _digest(walk)
        return found


async def _digest(walk: DigestWalk) -> dict[str, Any]:
    try:
        digest = await walk.run()
    except WireError as error:
        return {"error": str(error)}
    return {
        "from": digest.first_offset,
        "next": digest.next_offset,
        "ranges": [
            {"first": each.first_offset, "next": each.next_offset, "crc": each.crc,
             "bytes": each.bytes}
            for each in digest.ranges
        ],
        "damaged": [list(each) for each in digest.damaged],
    }  # fmt: skip


def _number(wanted: Mapping[str, str], name: str, default: int) -> int:
    text = wanted.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > DIGITS_MAX:
        raise HttpError(400, f"{name}={text[:40]} is no number")
    return int(text)
