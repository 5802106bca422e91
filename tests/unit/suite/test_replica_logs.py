"""The comparison of replicas' files: each difference is found, and padding is none."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from dlog.batch.records import Record, encode
from tests.cluster.replica_logs import chain_breaches, differences
from tests.histories.history import FinalLog, LogKey

KEY = LogKey(UUID(int=7), "t", 0)


def batch(offset: int, value: bytes, epoch: int = 0) -> bytes:
    record = Record(value=value, timestamp_ms=1)
    return bytes(encode([record], base_offset=offset, leader_epoch=epoch))


GOOD = [batch(0, b"a"), batch(1, b"b"), batch(2, b"c", 1)]


def found(directory: Path, *replicas: Sequence[bytes], end: int = 3, start: int = 0) -> list[str]:
    """Return the differences between nodes that have these batches."""
    data = {}
    for node, content in enumerate(replicas, 1):
        folder = directory / str(node) / "topics" / f"t-0.{KEY.topic_id}"
        folder.mkdir(parents=True)
        (folder / f"{start:020}.log").write_bytes(b"".join(content) + bytes(8192))
        data[node] = [directory / str(node)]
    final = FinalLog(KEY, start, end, ())
    texts = differences([final], {KEY: tuple(data)}, data)
    return [text.partition(":")[0] for text in texts]


def test_equal_replicas_are_equal(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD, GOOD, [*GOOD, batch(3, b"not yet committed", 1)]) == []


def test_another_record_is_a_difference(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD, [GOOD[0], batch(1, b"x"), GOOD[2]]) == ["replicas-differ"]


def test_another_epoch_is_a_difference(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD, [*GOOD[:2], batch(2, b"c", 2)]) == ["replicas-differ"]


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    assert found(tmp_path / "end", GOOD, GOOD[:2]) == ["replica-hole"]
    assert found(tmp_path / "middle", GOOD, [GOOD[0], GOOD[2]]) == ["replica-hole"]
    damaged = bytearray(GOOD[1])
    damaged[-1] ^= 1
    assert "replica-hole" in found(tmp_path / "damage", GOOD, [GOOD[0], bytes(damaged), GOOD[2]])


def test_a_missing_log_is_told(tmp_path: Path) -> None:
    data = {1: [tmp_path / "1"]}
    final = FinalLog(KEY, 0, 1, ())
    assert differences([final], {KEY: (1,)}, data)[0].startswith("replica-missing")


def chained(
    directory: Path, start: int, high_watermark: int, end: int, *content: bytes
) -> list[str]:
    """Return what is wrong with the offsets that a node has written beside these batches."""
    name = f"t-0.{KEY.topic_id}"
    folder = directory / "topics" / name
    folder.mkdir(parents=True)
    (folder / f"{0:020}.log").write_bytes(b"".join(content) + bytes(8192))
    (folder / "log-start").write_text(f"dlog log-start 1 2 00000000\n{start}\n")
    for kind, offset in (("clean-shutdown", end), ("high-watermarks", high_watermark)):
        (directory / kind).write_text(f"dlog {kind} 1 2 00000000\n7 u-0.x\n{offset} {name}\n")
    final = FinalLog(KEY, 0, 3, ())
    texts = chain_breaches([final], {KEY: (1,)}, {1: [directory]})
    return [text.partition(":")[0] for text in texts]


def test_offsets_in_order_are_no_breach(tmp_path: Path) -> None:
    assert chained(tmp_path / "a", 0, 3, 3, *GOOD) == []
    assert chained(tmp_path / "b", 1, 2, 3, *GOOD) == []


def test_offsets_in_disorder_are_told(tmp_path: Path) -> None:
    breach = ["offsets-chain"]
    assert chained(tmp_path / "a", 3, 2, 3, *GOOD) == breach
    assert chained(tmp_path / "b", 0, 4, 3, *GOOD) == breach
    assert chained(tmp_path / "c", 0, 3, 4, *GOOD) == breach
    assert chained(tmp_path / "d", 0, 4, 4, *GOOD, batch(3, b"d", 1)) == breach  # beyond all others
    assert chained(tmp_path / "e", 0, 3, 3, *GOOD[:2], batch(2, b"c", -1)) == breach
    assert chain_breaches([FinalLog(KEY, 0, 3, ())], {KEY: (1,)}, {1: [tmp_path / "f"]})
