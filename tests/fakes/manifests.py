"""Manifests of archives with one topic, and the ranges in them."""

from dlog.spark.pipelines.archives.manifest import ArchivedRange, Content, Manifest

TOPIC_ID = "6f9a6b2e-0f1c-4f53-9a3e-0d6c5b1f2a34"


def span(
    partition: int, start: int, end: int, lost_from: int | None = None, topic: str = "t"
) -> ArchivedRange:
    """Return a range of a partition."""
    return ArchivedRange(
        topic=topic, partition=partition, start_offset=start, end_offset=end, lost_from=lost_from
    )


def manifest(batch: int, *ranges: ArchivedRange, before: Manifest | None = None) -> Manifest:
    """Return the manifest of a batch, which continues the one before."""
    ends = {**(before.ends if before else {}), **{each.key: each.end_offset for each in ranges}}
    return Manifest(
        batch=batch,
        owner="me",
        created_ms=1_700_000_000_000,
        cluster_id="c1",
        topic_ids={"t": TOPIC_ID},
        ranges=ranges,
        ends=ends,
        content=Content(rows=3, record_bytes=30, checksum=-(1 << 63)),
        files={"topic=t/date=2026-11-22/part-0.parquet": 1234},
    )
