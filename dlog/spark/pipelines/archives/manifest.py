"""Manifest of one batch of an archive; docs/formats/archive.md.

Pure: bytes to values and back. A batch without a good manifest is not part of the archive. Each
manifest also says how far the archive has come in every partition, so that the newest one alone
tells where to go on.
"""

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlog.spark.errors import SparkSourceError

FORMAT = 1
MANIFEST = "_manifest.json"
STAGING = "_staging"
NO_TOPIC_ID = "00000000-0000-0000-0000-000000000000"
"""What clusters say that know no ids of topics."""
_FOLDER = re.compile(r"batch=(\d{8})")

Key = tuple[str, int]
"""(topic, partition)."""


class DamagedArchiveError(SparkSourceError):
    """An archive that contradicts itself, or a manifest that is none."""

    def __init__(self, message: str, cure: str = "Restore that folder from a copy.") -> None:
        super().__init__("DLOG_ARCHIVE_DAMAGED", message, cure)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRange:
    """Offsets of one partition that a batch holds: up to `end_offset`, exclusive.

    `lost_from`: offsets from there to `start_offset` were gone before they could be archived.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    lost_from: int | None = None

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """Offsets in it; there may be fewer records."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Offsets of a partition, up to `end_offset`, exclusive, that held no record when archived."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What was written: records, bytes of keys and values, and the XOR of all records' hashes."""

    rows: int
    record_bytes: int
    checksum: int
    """Signed, 64 bits: `dlog.spark.pipelines.archives.hashes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One batch.

    Invariant: `ends` has every partition that was seen so far, those of `ranges` included.
    """

    batch: int
    owner: str
    """A random name of whoever wrote it."""
    created_ms: int
    cluster_id: str
    topic_ids: Mapping[str, str]
    ranges: tuple[ArchivedRange, ...]
    ends: Mapping[Key, int]
    content: Content
    files: Mapping[str, int]
    """Bytes of each data file, by its path in the batch's folder."""
    missing: int = 0
    """Offsets of `ranges` without a record that no compaction explains."""
    holes: tuple[Hole, ...] = ()
    """Where these are: the first ones, when there are many."""


def folder_of(batch: int) -> str:
    """Return the name of a batch's folder; a partition column for readers."""
    return f"batch={batch:08d}"


def batch_of(folder: str) -> int | None:
    """Return the number of the batch in a folder of this name; None for any other name."""
    found = _FOLDER.fullmatch(folder)
    return None if found is None else int(found[1])


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def encode(manifest: Manifest) -> bytes:
    """Return the file's bytes: JSON with a digest of all the rest."""
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), end in sorted(manifest.ends.items()):
        ends.setdefault(topic, {})[str(partition)] = end
    document: dict[str, Any] = {
        "format": FORMAT,
        "batch": manifest.batch,
        "owner": manifest.owner,
        "created_ms": manifest.created_ms,
        "cluster_id": manifest.cluster_id,
        "topic_ids": dict(sorted(manifest.topic_ids.items())),
        "ranges": [_range_document(each) for each in manifest.ranges],
        "ends": ends,
        "rows": manifest.content.rows,
        "record_bytes": manifest.content.record_bytes,
        "checksum": manifest.content.checksum,
        "files": dict(sorted(manifest.files.items())),
    }
    if manifest.missing:
        document["missing"] = manifest.missing
        document["holes"] = [dataclasses.asdict(each) for each in manifest.holes]
    document["digest"] = _digest(document)
    return json.dumps(document, indent=1).encode() + b"\n"


def _range_document(each: ArchivedRange) -> dict[str, Any]:
    document = {
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.start_offset,
        "end_offset": each.end_offset,
    }
    if each.lost_from is not None:
        document["lost_from"] = each.lost_from
    return document


def decode(data: bytes, where: str) -> Manifest:
    """Return the manifest; raises DamagedArchiveError for whatever is none, naming `where`."""
    try:
        document = json.loads(data)
        digest = document.pop("digest")
        version = document["format"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedArchiveError(f"{where} is not a manifest of an archive.") from None
    if version != FORMAT:
        raise DamagedArchiveError(
            f"{where} has format {version}; this program knows {FORMAT}.",
            "Use the version of dlog that wrote it, or a newer one.",
        )
    if digest != _digest(document):
        raise DamagedArchiveError(f"{where} is damaged: its digest does not match.")
    try:
        return _manifest(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedArchiveError(
            f"{where} is not a manifest of an archive: {type(error).__name__}: {error}."
        ) from error


def _manifest(document: Mapping[str, Any]) -> Manifest:
    return Manifest(
        batch=document["batch"],
        owner=document["owner"],
        created_ms=document["created_ms"],
        cluster_id=document["cluster_id"],
        topic_ids=document["topic_ids"],
        ranges=tuple(ArchivedRange(**each) for each in document["ranges"]),
        ends={
            (topic, int(partition)): end
            for topic, partitions in document["ends"].items()
            for partition, end in partitions.items()
        },
        content=Content(
            rows=document["rows"],
            record_bytes=document["record_bytes"],
            checksum=document["checksum"],
        ),
        files=document["files"],
        missing=document.get("missing", 0),
        holes=tuple(Hole(**each) for each in document.get("holes", ())),
    )


def check_chain(manifests: Sequence[Manifest]) -> list[str]:
    """Return what is wrong between batches in their order: numbers missing, ranges that jump.

    The first batches may have been deleted.
    """
    found: list[str] = []
    for before, after in itertools.pairwise(manifests):
        if after.batch != before.batch + 1:
            found.append(f"{folder_of(before.batch + 1)} is missing")
            continue
        found += _breaches(before, after)
    return found


def _breaches(before: Manifest, after: Manifest) -> list[str]:
    found = []
    expected = dict(before.ends)
    for each in after.ranges:
        begins = each.start_offset if each.lost_from is None else each.lost_from
        if each.key in before.ends and begins != before.ends[each.key]:
            found.append(
                f"{folder_of(after.batch)} begins {each.topic}-{each.partition} at {begins}, "
                f"{folder_of(before.batch)} ended it at {before.ends[each.key]}"
            )
        expected[each.key] = each.end_offset
    differs = any(after.ends.get(key) != end for key, end in expected.items())
    if differs and not found:
        found.append(f"{folder_of(after.batch)} says other ends than its ranges have")
    return found
