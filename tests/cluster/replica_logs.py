"""The logs of all replicas, as their files are, beside each other: equal below the high watermark.

For nodes that have ended, in good order where offsets are judged. Reads segments and small files as
docs/formats tells, with nothing of the daemon's.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dlog.batch.header import CRC_POSITION, iter_headers, verify_crc
from dlog.errors import CorruptMessageError
from tests.histories.history import FinalLog, LogKey


class OnDisk(NamedTuple):
    """What tells one batch from another."""

    next_offset: int
    leader_epoch: int
    crc: int


def folder_of(data: Sequence[Path], key: LogKey) -> Path | None:
    """Return in which of its data directories a node has a replica, None when in none."""
    name = f"{key.topic}-{key.partition}.{key.topic_id}"
    found = [path / "topics" / name for path in data if (path / "topics" / name).is_dir()]
    assert len(found) <= 1, f"{key} is there more than once: {found}"
    return found[0] if found else None


def batches(folder: Path) -> dict[int, OnDisk]:
    """Return the whole batches of a log by their base offsets, up to where the last one ends."""
    found: dict[int, OnDisk] = {}
    for path in sorted(folder.glob("*.log")):
        content = path.read_bytes()
        try:
            for position, head in iter_headers(content, 0, len(content)):
                if not verify_crc(content, position, head.batch_bytes):
                    break
                found[head.base_offset] = OnDisk(head.next_offset, head.leader_epoch, head.crc)
        except CorruptMessageError:
            continue  # zeros behind the last batch
    return found


def flip_a_bit(folders: Sequence[Path], rng: random.Random) -> Path | None:
    """Flip a bit of a batch in a closed segment of one of these logs; return the segment.

    None when there is none. Closed ones are what the scrub reads.
    """
    closed = [path for folder in folders for path in sorted(folder.glob("*.log"))[:-1]]
    if not closed:
        return None
    path = rng.choice(closed)
    content = path.read_bytes()
    heads = list(iter_headers(content, 0, len(content)))
    position, head = rng.choice(heads)
    place = rng.randrange(position + CRC_POSITION, position + head.batch_bytes)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([content[place] ^ 1 << rng.randrange(8)]))
    return path


def is_whole(segment: Path) -> bool:
    """Return whether all batches of a closed segment have the right checksums.

    One that is gone (by retention, or with a replica that is fetched anew) has nothing to mend.
    """
    try:
        content = segment.read_bytes()
    except FileNotFoundError:
        return True
    try:
        return all(
            verify_crc(content, position, head.batch_bytes)
            for position, head in iter_headers(content, 0, len(content))
        )
    except CorruptMessageError:
        return False


class Offsets(NamedTuple):
    """What the small files of a node that has ended say of one log."""

    log_start_offset: int
    high_watermark: int
    log_end_offset: int


def offsets_of(folder: Path) -> Offsets | None:
    """Return where a log begins and ends, and what of it is committed; None when a file lacks it.

    A node writes them at an orderly stop.
    """
    data = folder.parent.parent
    ends = _lines(data / "clean-shutdown").get(folder.name)
    high_watermark = _lines(data / "high-watermarks").get(folder.name)
    if ends is None or high_watermark is None:
        return None
    segments = sorted(folder.glob("*.log"))
    start = int(segments[0].stem) if segments else 0
    if (raised := folder / "log-start").exists():
        start = max(start, int(raised.read_text().splitlines()[1]))
    return Offsets(start, high_watermark, ends)


def _lines(path: Path) -> dict[str, int]:
    if not path.exists():
        return {}
    lines = path.read_text().splitlines()[1:]
    return {name: int(offset) for offset, _, name in (line.partition(" ") for line in lines)}


def chain_breaches(
    finals: Sequence[FinalLog],
    replicas: Mapping[LogKey, Sequence[int]],
    data: Mapping[int, Sequence[Path]],
) -> list[str]:
    """Return where the offsets of a replica are not in order, or not those of its batches.

    `data` has the data directories of each node.
    """
    wrong = []
    for final in finals:
        for node in replicas[final.key]:
            folder = folder_of(data[node], final.key)
            told = None if folder is None else offsets_of(folder)
            if folder is None or told is None:
                wrong.append(f"offsets-chain: node {node} has not said log={final.key}")
                continue
            found = batches(folder)
            end = max((each.next_offset for each in found.values()), default=told.log_start_offset)
            epochs = [found[base].leader_epoch for base in sorted(found)]
            if (
                not 0 <= told.log_start_offset <= told.high_watermark <= told.log_end_offset == end
                or told.high_watermark > final.high_watermark
                or epochs != sorted(epochs)
            ):
                wrong.append(
                    f"offsets-chain: node {node}: {told}, batches end at {end}, of epochs"
                    f" {sorted(set(epochs))}, the high watermark is {final.high_watermark}"
                    f" log={final.key}"
                )
    return wrong


def differences(
    finals: Sequence[FinalLog],
    replicas: Mapping[LogKey, Sequence[int]],
    data: Mapping[int, Sequence[Path]],
) -> list[str]:
    """Return where replicas are not whole, or not the same, below the high watermark.

    `data` has the data directories of each node.
    """
    wrong = []
    for final in finals:
        own = {node: data[node] for node in replicas[final.key]}
        for node, path in own.items():
            folder = folder_of(path, final.key)
            if folder is None:
                wrong.append(f"replica-missing: node {node} has no log={final.key}")
                continue
            wrong += _not_whole(final, node, batches(folder))
        wrong += _not_equal(final, own)
    return wrong


def _not_whole(final: FinalLog, node: int, found: dict[int, OnDisk]) -> list[str]:
    offset = final.log_start_offset
    if offset not in found:
        before = [base for base in found if base < offset]
        offset = max(before, default=offset)
    while offset < final.high_watermark:
        if offset not in found:
            return [f"replica-hole: node {node} has nothing at offset {offset} log={final.key}"]
        offset = found[offset].next_offset
    return []


def _not_equal(final: FinalLog, data: Mapping[int, Sequence[Path]]) -> list[str]:
    first: dict[int, tuple[int, OnDisk]] = {}
    for node, path in data.items():
        folder = folder_of(path, final.key)
        for base, batch in (batches(folder) if folder else {}).items():
            if not final.log_start_offset <= base < final.high_watermark:
                continue
            other, known = first.setdefault(base, (node, batch))
            if known != batch:
                return [
                    f"replicas-differ: offset {base} is {known} on node {other} and {batch} on"
                    f" node {node} log={final.key}"
                ]
    return []
