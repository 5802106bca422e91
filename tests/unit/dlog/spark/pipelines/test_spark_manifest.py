"""Manifests of archives and the plan of what the next batch holds: without Spark."""

import dataclasses
import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.spark.errors import DataLossError, SparkSourceError
from dlog.spark.pipelines import archive as archiving
from dlog.spark.pipelines.archives.archive_storage import Archive, Staged
from dlog.spark.pipelines.archives.folders import Folder, LocalFolder, is_hidden, open_folder
from dlog.spark.pipelines.archives.manifest import (
    MANIFEST,
    NO_TOPIC_ID,
    STAGING,
    Content,
    DamagedArchiveError,
    Hole,
    Key,
    batch_of,
    check_chain,
    decode,
    encode,
    folder_of,
)
from dlog.spark.pipelines.archives.resumption import (
    Origin,
    PartitionBounds,
    check_same_origin,
    ends_after,
    lag_of,
    plan_batch,
)
from dlog.spark.settings import ClientSettings
from tests.fakes.manifests import TOPIC_ID, manifest, span
from tests.tidy import sources


def bounds(partition: int, start: int, end: int, topic: str = "t") -> PartitionBounds:
    return PartitionBounds(topic=topic, partition=partition, start_offset=start, end_offset=end)


def test_manifest_survives_its_bytes() -> None:
    first = manifest(0, span(0, 0, 10), span(3, 7, 9, lost_from=5))
    assert decode(encode(first), "here") == first


def test_every_damage_of_a_manifest_is_seen() -> None:
    data = encode(manifest(0, span(0, 0, 10)))
    rng = random.Random(7)
    harmless = 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            # Between the values JSON does not mind; there nothing may come out otherwise.
            assert decode(bytes(damaged), "here") == decode(data, "here")
            harmless += 1
        except DamagedArchiveError as error:
            assert "here" in str(error)
    assert harmless < 100
    for cut in range(len(data) - 2):
        with pytest.raises(DamagedArchiveError):
            decode(data[:cut], "here")


def test_manifest_of_a_later_format_is_refused_by_name() -> None:
    document = json.loads(encode(manifest(0)))
    document["format"] = 2
    with pytest.raises(DamagedArchiveError, match=r"DLOG_ARCHIVE_DAMAGED.*format 2"):
        decode(json.dumps(document).encode(), "here")


@pytest.mark.parametrize(
    ("folder", "number"),
    [("batch=00000007", 7), ("batch=7", None), ("_staging", None), ("batch=00000007.x", None)],
)
def test_folders_of_batches_are_told_by_name(folder: str, number: int | None) -> None:
    assert batch_of(folder) == number
    if number is not None:
        assert folder_of(number) == folder


def test_a_chain_of_batches_is_checked() -> None:
    first = manifest(4, span(0, 0, 10))
    second = manifest(5, span(0, 10, 20), span(1, 0, 5), before=first)
    third = manifest(6, span(0, 25, 30, lost_from=20), before=second)
    assert check_chain([first, second, third]) == []
    assert check_chain([first, third]) == ["batch=00000005 is missing"]
    jumped = manifest(5, span(0, 12, 20), before=first)
    (said,) = check_chain([first, jumped])
    assert "begins t-0 at 12" in said and "ended it at 10" in said
    repeated = manifest(5, span(0, 8, 20), before=first)
    assert len(check_chain([first, repeated])) == 1
    lying = dataclasses.replace(second, ends={("t", 0): 20, ("t", 1): 6})
    assert check_chain([first, lying]) == ["batch=00000005 says other ends than its ranges have"]


# Plans


def test_first_batch_begins_where_the_log_begins() -> None:
    assert plan_batch({}, [bounds(0, 5, 9), bounds(1, 3, 3)], 100) == (span(0, 5, 9),)


def test_nothing_is_planned_when_all_is_archived() -> None:
    assert plan_batch({("t", 0): 9}, [bounds(0, 5, 9)], 100) == ()


def test_what_retention_took_is_an_error_that_names_it() -> None:
    with pytest.raises(DataLossError, match=r"Offsets 4 to 6 of t-0 are deleted.*--accept-loss"):
        plan_batch({("t", 0): 4}, [bounds(0, 7, 9)], 100)
    taken = plan_batch({("t", 0): 4}, [bounds(0, 7, 9)], 100, accept_loss=True)
    assert taken == (span(0, 7, 9, lost_from=4),)


def test_everything_that_waited_may_be_lost() -> None:
    taken = plan_batch({("t", 0): 4}, [bounds(0, 9, 9)], 100, accept_loss=True)
    assert taken == (span(0, 9, 9, lost_from=4),)


def test_an_added_partition_must_begin_at_zero() -> None:
    ends: dict[Key, int] = {("t", 0): 4}
    assert plan_batch(ends, [bounds(0, 0, 4), bounds(1, 0, 2)], 9) == (span(1, 0, 2),)
    with pytest.raises(DataLossError, match="Offsets 0 to 2 of t-1"):
        plan_batch(ends, [bounds(0, 0, 4), bounds(1, 3, 5)], 9)
    # Of a topic that is new to the archive the beginning may be gone.
    assert plan_batch(ends, [bounds(0, 3, 5, "u")], 9) == (span(0, 3, 5, topic="u"),)


def test_partitions_that_were_empty_are_known_from_then_on() -> None:
    ends = ends_after({}, [bounds(0, 0, 4), bounds(1, 6, 6)], [span(0, 0, 4)])
    assert ends == {("t", 0): 4, ("t", 1): 6}
    with pytest.raises(DataLossError, match="Offsets 6 to 7 of t-1"):
        plan_batch(ends, [bounds(1, 8, 9)], 9)


def test_a_log_that_was_cut_back_is_an_error() -> None:
    with pytest.raises(DataLossError, match="ends at 8, but is archived up to 9"):
        plan_batch({("t", 0): 9}, [bounds(0, 0, 8)], 100, accept_loss=True)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=12),
    offsets_max=st.integers(20, 1_000),
)
def test_batches_hold_every_offset_once_and_all_partitions_get_on(
    sizes: list[int], offsets_max: int
) -> None:
    partitions = [bounds(index, 10, 10 + size) for index, size in enumerate(sizes)]
    ends: dict[Key, int] = {}
    covered: dict[int, list[int]] = {index: [] for index in range(len(sizes))}
    while ranges := plan_batch(ends, partitions, offsets_max):
        assert sum(each.size for each in ranges) <= offsets_max + len(sizes)
        waiting = {
            each.partition for each in partitions if ends.get(each.key, 10) < each.end_offset
        }
        assert {each.partition for each in ranges} == waiting
        for each in ranges:
            assert each.size > 0 and each.lost_from is None
            covered[each.partition] += range(each.start_offset, each.end_offset)
        before = lag_of(ends, partitions)
        ends = ends_after(ends, partitions, ranges)
        assert lag_of(ends, partitions) == before - sum(each.size for each in ranges)
    assert lag_of(ends, partitions) == 0
    assert covered == {index: [*range(10, 10 + size)] for index, size in enumerate(sizes)}


def test_another_cluster_or_another_life_of_a_topic_is_refused() -> None:
    last = manifest(0, span(0, 0, 4))

    def origin(cluster: str, topic_id: str) -> Origin:
        return Origin(cluster_id=cluster, topic_ids={"t": topic_id}, partitions=())

    check_same_origin(None, origin("c9", "x"))
    check_same_origin(last, origin("c1", TOPIC_ID))
    check_same_origin(last, origin("", NO_TOPIC_ID))
    with pytest.raises(SparkSourceError, match=r"DLOG_ARCHIVE_OF_ANOTHER_CLUSTER.*cluster c1"):
        check_same_origin(last, origin("c2", TOPIC_ID))
    told = r"DLOG_ARCHIVE_OF_ANOTHER_TOPIC.*deleted and recreated"
    with pytest.raises(SparkSourceError, match=told):
        check_same_origin(last, origin("c1", TOPIC_ID.replace("6", "7")))


# Folders


class ObjectStore(LocalFolder):
    """A folder whose moves are not atomic."""

    has_atomic_moves = False

    def move(self, path: str, target: str) -> bool:
        raise AssertionError("nothing may be moved here")


def stage(folder: Folder, root: Path, number: int, data: bytes = b"first") -> Staged:
    """Write the files of a batch."""
    archive = Archive(folder)
    staged = archive.stage(number)
    assert staged is not None
    name = f"topic=t/{staged.base_name}-0.parquet"
    (root / staged.path / "topic=t").mkdir(parents=True, exist_ok=True)
    (root / staged.path / name).write_bytes(data)
    (root / staged.path / "_SUCCESS").write_bytes(b"")
    assert archive.data_files(staged) == {name: len(data)}
    return staged


def publish(folder: Folder, staged: Staged) -> bool:
    archive = Archive(folder)
    files = archive.data_files(staged)
    plain = manifest(staged.batch, span(0, 0, 4))
    written = dataclasses.replace(plain, owner=staged.owner, files=files)
    return archive.publish(staged, written, lambda _: None)


def write_batch(folder: Folder, root: Path, number: int) -> bool:
    return publish(folder, stage(folder, root, number))


@pytest.mark.parametrize("kind", [LocalFolder, ObjectStore])
def test_of_two_runs_one_publishes_a_batch(tmp_path: Path, kind: type[LocalFolder]) -> None:
    folder = kind(tmp_path)
    archive = Archive(folder)
    assert archive.last() is None and archive.batches() == []
    first, second = stage(folder, tmp_path, 0), stage(folder, tmp_path, 0, b"second")
    assert publish(folder, first)
    assert not publish(folder, second)
    archive.withdraw(second)
    if not folder.has_atomic_moves:
        assert archive.stage(0) is None
    last = archive.last()
    assert last is not None and (last.batch, last.owner) == (0, first.owner)
    assert archive.differences(last) == []
    files = {path: size for path, size in folder.sizes("").items() if not is_hidden(path)}
    assert files == {f"batch=00000000/topic=t/{first.base_name}-0.parquet": 5}


@pytest.mark.parametrize("kind", [LocalFolder, ObjectStore])
def test_what_a_dead_run_left_goes_when_its_batch_is_published(
    tmp_path: Path, kind: type[LocalFolder]
) -> None:
    folder = kind(tmp_path)
    archive = Archive(folder)
    stage(folder, tmp_path, 0, b"of the dead")
    kept = stage(folder, tmp_path, 0)
    archive.clean(0)  # it may live, and publish
    assert len([each for each in folder.sizes("") if each.endswith(".parquet")]) == 2
    assert publish(folder, kept)
    (tmp_path / "batch=00000000" / "foreign.parquet").write_bytes(b"somebody else's")
    archive.clean(1)
    there = {path for path in folder.sizes("") if path.endswith(".parquet")}
    ours = f"batch=00000000/topic=t/{kept.base_name}-0.parquet"
    assert there == {ours, "batch=00000000/foreign.parquet"}


def test_a_run_that_loses_while_it_syncs_plans_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner deletes what the other one has staged, which may be at its files for long."""
    origin = Origin(cluster_id="c1", topic_ids={"t": TOPIC_ID}, partitions=(bounds(0, 0, 4),))
    content = Content(rows=4, record_bytes=0, checksum=0)
    monkeypatch.setattr(archiving, "find_origin", lambda *_: origin)
    monkeypatch.setattr(archiving, "find_again", lambda *_: origin)
    monkeypatch.setattr(archiving, "count_rows", lambda *_: content.rows)
    monkeypatch.setattr(archiving._Run, "_write_files", lambda *_: content)
    sync = LocalFolder.sync

    def overtaken(folder: LocalFolder, path: str) -> None:
        monkeypatch.setattr(LocalFolder, "sync", sync)
        assert write_batch(folder, tmp_path, 0)
        Archive(folder).clean(1)
        sync(folder, path)

    monkeypatch.setattr(LocalFolder, "sync", overtaken)
    job = archiving.ArchiveJob(
        topics=("t",), folder=str(tmp_path), settings=ClientSettings(bootstrap="127.0.0.1:1")
    )
    done = archiving.archive(None, job)  # type: ignore[arg-type]
    assert (done.batches, done.lag) == (0, 0)
    last = Archive(LocalFolder(tmp_path)).last()
    assert last is not None and (last.batch, list(last.files.values())) == (0, [5])


@pytest.mark.parametrize("kind", [LocalFolder, ObjectStore])
def test_a_batch_without_manifest_is_not_there(tmp_path: Path, kind: type[LocalFolder]) -> None:
    archive = Archive(kind(tmp_path))
    assert write_batch(archive.folder, tmp_path, 0)
    (tmp_path / "batch=00000001" / "topic=t").mkdir(parents=True)
    (tmp_path / "batch=00000001" / "topic=t" / "part-0.parquet").write_bytes(b"half")
    last = archive.last()
    assert last is not None and last.batch == 0
    assert [each.batch for each in archive.all()] == [0]
    if not archive.folder.has_atomic_moves:
        assert write_batch(archive.folder, tmp_path, 1)
        last = archive.last()
        assert last is not None and last.batch == 1 and "topic=t/part-0.parquet" not in last.files


def test_leftovers_go_and_what_may_still_be_published_stays(tmp_path: Path) -> None:
    archive = Archive(LocalFolder(tmp_path))
    for name in ("batch=00000001.a", "batch=00000002.b", "rubbish"):
        (tmp_path / STAGING / name).mkdir(parents=True)
    archive.clean(2)
    assert archive.folder.names(STAGING) == ["batch=00000002.b"]


def test_manifest_of_another_batch_is_damage(tmp_path: Path) -> None:
    archive = Archive(LocalFolder(tmp_path))
    assert archive.folder.write_new(f"{folder_of(3)}/{MANIFEST}", encode(manifest(2)))
    with pytest.raises(DamagedArchiveError, match="that of batch 2"):
        archive.last()


def test_local_files_are_written_once_and_folders_moved_once(tmp_path: Path) -> None:
    folder = open_folder(tmp_path.as_uri())
    assert folder.write_new("a/x", b"1") and not folder.write_new("a/x", b"2")
    assert folder.read("a/x") == b"1" and folder.read("a/none") is None
    assert folder.write_new("b/x", b"3")
    assert not folder.move("b", "a")
    (tmp_path / "empty").mkdir()
    assert not folder.move("b", "empty")
    assert folder.move("b", "c/d") and folder.sizes("c") == {"d/x": 1}
    folder.sync("")
    folder.delete("c")
    folder.delete("c")
    assert folder.names() == ["a", "empty"] and os.listdir(tmp_path / "a") == ["x"]


def test_a_folder_of_a_relative_path_and_one_that_needs_spark(tmp_path: Path) -> None:
    assert open_folder("some/where").uri == (Path.cwd() / "some/where").as_uri()
    with pytest.raises(ValueError, match="classic Spark session"):
        open_folder("s3a://bucket/x")


def test_the_example_in_the_document_is_a_manifest() -> None:
    path = sources.ROOT / "docs" / "formats" / "archive.md"
    text = path.read_text(encoding="utf-8").partition("```json\n")[2].partition("```")[0]
    found = decode(text.encode(), "the document")
    assert encode(found).decode() == text
    assert found.ranges == (span(0, 12, 20, lost_from=10, topic="flights"),)
    assert found.missing == 2
    assert found.holes == (Hole(topic="flights", partition=0, start_offset=14, end_offset=16),)


def test_a_batch_without_holes_has_the_manifest_that_it_always_had() -> None:
    assert not {"holes", "missing"} & json.loads(encode(manifest(0, span(0, 0, 5)))).keys()
