"""`dlogctl segment` on files made by the storage engine's own writers, whole and damaged."""

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.batch.header import patch
from dlog.batch.records import Record, encode
from dlog.compression import Codec
from dlogctl.__main__ import main
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.segment.segment_examination import examine
from dlogd.storage.segment.segment_names import file_name

BATCHES = 60
RECORDS_PER_BATCH = 2
Ctl = Callable[..., tuple[int, str, str]]


def write_segment(folder: Path, base_offset: int, batches: int = BATCHES, zeros: int = 0) -> Path:
    """Write a segment whose batches hold two records each; return its .log file."""
    data = bytearray()
    for number in range(batches):
        offset = base_offset + number * RECORDS_PER_BATCH
        records = [
            Record(
                key=b"key-%d" % (offset + index),
                value=b"v" * 100,
                headers=(("h", b"\xff"),),
                timestamp_ms=1000 + offset + index,
                offset=0,
            )
            for index in range(RECORDS_PER_BATCH)
        ]
        batch = encode(records, codec=Codec.ZSTD if number % 2 else Codec.NONE)
        patch(batch, 0, offset, 3)
        data += batch
    path = folder / file_name(base_offset)
    path.write_bytes(bytes(data) + bytes(zeros))
    directory = PosixDirectory(str(folder))
    file = directory.open(path.name)
    found = examine(directory, file, base_offset, durable=True, interval_bytes=2048)
    file.close()
    found.close_times()
    found.store_indexes(directory, durable=False)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition's directory with a closed and an active segment."""
    write_segment(tmp_path, 0)
    write_segment(tmp_path, BATCHES * RECORDS_PER_BATCH, zeros=8192)
    (tmp_path / "leader-epochs").write_text("not a segment")
    return tmp_path


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Ctl:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main(["segment", *map(str, arguments)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run


def test_batches_are_dumped(ctl: Ctl, folder: Path) -> None:
    code, out, _ = ctl("dump", folder / file_name(0), "-o", "json")
    rows = json.loads(out)
    assert (code, len(rows)) == (0, BATCHES)
    assert [row["codec"] for row in rows[:2]] == ["none", "zstd"]
    assert (rows[1]["base_offset"], rows[1]["last_offset"], rows[1]["leader_epoch"]) == (2, 3, 3)
    assert {row["crc"] for row in rows} == {"ok"}
    code, out, _ = ctl("dump", folder / file_name(0), "--from", 5, "--limit", 2, "--no-headers")
    assert [line.split()[2] for line in out.splitlines()] == ["4..5", "6..7"]


def test_records_are_dumped(ctl: Ctl, folder: Path) -> None:
    arguments = ("dump", folder / file_name(0), "--records", "--from", 5, "--limit", 2)
    rows = json.loads(ctl(*arguments, "-o", "json")[1])
    assert [(row["offset"], row["key"]) for row in rows] == [(5, "key-5"), (6, "key-6")]
    assert rows[0]["headers"] == ["h=\\xff"]


def test_indexes_are_dumped(ctl: Ctl, folder: Path) -> None:
    batches = json.loads(ctl("dump", folder / file_name(0), "-o", "json")[1])
    places = {row["position"]: row["base_offset"] for row in batches}
    entries = json.loads(ctl("dump", folder / file_name(0, ".idx"), "-o", "json")[1])
    assert len(entries) > 2
    assert all(places[entry["position"]] == entry["offset"] for entry in entries)
    times = json.loads(ctl("dump", folder / file_name(0, ".tdx"), "-o", "json")[1])
    assert times[-1] == {"timestamp_ms": 1119, "offset": 120}


def test_a_whole_partition_is_good(ctl: Ctl, folder: Path) -> None:
    code, out, error = ctl("check", folder, "-o", "json")
    first, last = json.loads(out)
    assert (code, error) == (0, "")
    assert (first["next_offset"], first["records"], first["state"]) == (120, 120, "good")
    assert (last["next_offset"], last["tail"]) == (240, "8192 preallocated bytes")
    assert ctl("check", folder / file_name(120))[0] == 0


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


def test_damage_in_the_middle_is_found(ctl: Ctl, folder: Path) -> None:
    path = folder / file_name(0)
    positions = [row["position"] for row in json.loads(ctl("dump", path, "-o", "json")[1])]
    damage(path, positions[30] + 70)
    code, out, error = ctl("check", folder)
    assert code == 10
    assert "damaged" in out
    assert f"damaged at position {positions[30]} (offset 60)" in error
    assert f"a good batch follows at {positions[31]}" in error
    code, out, _ = ctl("dump", path, "-o", "tsv", "--no-headers")
    assert [line.split("\t")[-1] for line in out.splitlines()].count("WRONG") == 1
    code, _, error = ctl("dump", path, "--records")
    assert code == 1
    assert "offset 60" in error


def test_a_torn_tail_is_no_damage(ctl: Ctl, folder: Path) -> None:
    path = folder / file_name(120)
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[:-20] + bytes(4096))
    code, out, _ = ctl("check", path, "-o", "json")
    assert code == 0
    assert json.loads(out)[0]["tail"].startswith("torn: ")
    # In the middle of a log the same is damage: the segment was complete once.
    (folder / file_name(0)).write_bytes((folder / file_name(0)).read_bytes()[:-20])
    code, _, error = ctl("check", folder)
    assert code == 10
    assert "ends before offset 118, the next begins at 120" in error


def test_indexes_that_do_not_fit_are_told(ctl: Ctl, folder: Path) -> None:
    index = folder / file_name(0, ".idx")
    damage(index, 48)
    code, _, error = ctl("check", folder)
    assert code == 10
    assert "index: the batch at position" in error
    assert ".idx: the checksum of its entries is wrong; nothing to do, dlogd rebuilds" in error
    damage(folder / file_name(0, ".tdx"), 48)
    error = ctl("check", folder)[2]
    assert "time index: the largest timestamp below" in error
    assert ".tdx: the checksum of its entries is wrong" in error
    index.unlink()
    (folder / file_name(0, ".tdx")).write_bytes(b"nonsense")
    code, _, error = ctl("check", folder / file_name(0))
    assert code == 0
    assert error.count("the next start rebuilds it") == 2


def test_a_partition_or_a_data_directory_is_dumped_and_checked(ctl: Ctl, folder: Path) -> None:
    rows = json.loads(ctl("dump", folder, "-o", "json")[1])
    assert [row["base_offset"] for row in rows] == list(range(0, 240, 2))
    assert [row["segment"] for row in rows[59:61]] == [file_name(0), file_name(120)]
    rows = json.loads(
        ctl("dump", folder, "--records", "--from", 119, "--limit", 2, "-o", "json")[1]
    )
    assert [row["offset"] for row in rows] == [119, 120]
    data = folder / "data"
    partitions = [data / "topics" / f"a.b-{number}.{uuid.UUID(int=number)}" for number in range(2)]
    for partition in partitions:
        partition.mkdir(parents=True)
        write_segment(partition, 0, 2)
    write_segment(partitions[1], 4, 1)
    gone = data / "topics" / f"gone-0.{uuid.UUID(int=9)}.deleted"
    gone.mkdir()
    code, out, error = ctl("check", data)
    assert (code, error) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["PARTITION", "SEGMENT"],
        ["a.b-0", file_name(0)],
        ["a.b-1", file_name(0)],
        ["a.b-1", file_name(4)],
    ]
    assert ctl("check", data / "topics", "-o", "json") == ctl("check", data, "-o", "json")
    code, out, _ = ctl("dump", data, "-o", "tsv", "--from", 3)
    assert [line.split("\t")[:2] for line in out.splitlines()[1:]] == [
        ["a.b-0", file_name(0)],
        ["a.b-1", file_name(0)],
        ["a.b-1", file_name(4)],
    ]
    damage(partitions[1] / file_name(0), 70)
    code, _, error = ctl("check", data)
    assert code == 10
    assert error.startswith(f"dlogctl: {partitions[1] / file_name(0)}: damaged at position 0")
    # A new partition has a directory and no segment yet; nothing is wrong with it.
    (data / "topics" / f"new-0.{uuid.UUID(int=7)}").mkdir()
    assert ctl("check", partitions[0], data / "topics" / f"new-0.{uuid.UUID(int=7)}")[0] == 0


def test_wrong_usage(ctl: Ctl, folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments in (
        ("dump", folder / "leader-epochs"),
        ("dump", folder / "missing.log"),
        ("check", empty),
        ("check",),
    ):
        code, out, error = ctl(*arguments)
        assert (code, out) == (64, "")
        assert error
    (folder / file_name(120, ".idx")).rename(folder / file_name(999, ".idx"))
    assert ctl("check", folder / file_name(999, ".idx"))[0] == 64
