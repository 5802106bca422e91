"""What a replay makes of nonsense: damaged progress, archives that are not whole, odd targets."""

import asyncio
import dataclasses
import errno
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pyarrow
import pytest
from pyspark.sql import SparkSession

from dlog.client.blocking import Consumer
from dlog.client.futures import RefusedError
from dlog.errors import InvalidTimestampError
from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.pipelines import replay_task, settling
from dlog.spark.pipelines.archive import ArchiveJob, archive, read_ranges
from dlog.spark.pipelines.archives import folders
from dlog.spark.pipelines.archives.folders import LocalFolder, open_folder
from dlog.spark.pipelines.archives.manifest import ArchivedRange, DamagedArchiveError
from dlog.spark.pipelines.replay import ReplayJob, _check_chain, replay
from dlog.spark.pipelines.replay_state import DisturbedReplayError, Progress, ReplayStart
from dlog.spark.pipelines.replay_task import ReplayTask, _record_at
from dlog.spark.pipelines.settling import SettledEnds
from dlog.spark.settings import ClientSettings
from dlog.types import PartitionId, TopicPartition
from tests.fakes.batches import COMMIT, marker
from tests.fakes.log_nodes import LogNodes
from tests.fakes.manifests import manifest, span
from tests.fakes.spark_tasks import play

START = ReplayStart(
    source_topic="t", target_topic="u", target_id="i", cluster_id="c", placing="keep", ends={0: 0}
)
SETTINGS = ClientSettings(bootstrap="127.0.0.1:1")
JOB = ReplayJob(folder="/a", topic="t", target="u", settings=SETTINGS)


def test_the_last_record_is_waited_for_but_not_for_ever() -> None:
    key = TopicPartition("t", PartitionId(0))

    async def work(servers: LogNodes) -> None:
        servers.logs[0].append(marker(9, 1, COMMIT))

        def look() -> None:
            with Consumer(",".join(map(str, servers.bootstrap))) as consumer:
                assert _record_at(consumer, key, 8, 5.0) is not None
                with pytest.raises(
                    SparkSourceError, match=r"DLOG_READ_TIMEOUT. t-0 .* 9, .*0.3 s.*dlogctl status"
                ):
                    _record_at(consumer, key, 9, 0.3)

        await asyncio.to_thread(look)

    play(work)


def test_another_record_in_that_place_is_a_disturbance() -> None:
    class Other:
        def assign(self, _keys: object, _start: object) -> None:
            pass

        def poll(self, **_limits: object) -> list[Any]:
            return [dataclasses.make_dataclass("R", ["offset", "key", "value"])(10, b"", b"")]

    with pytest.raises(DisturbedReplayError, match="t-0 has no record at 9"):
        _record_at(Other(), TopicPartition("t", PartitionId(0)), 9, 1.0)  # type: ignore[arg-type]


class Moving:
    """One partition: its high watermark and its end at each look, 0.1 s apart; the last stays."""

    def __init__(self, *looks: tuple[int, int]) -> None:
        self.looks = list(looks)
        self.now_s = 0.0

    def latest(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(keys, self.looks[0][0])

    def log_ends(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = dict.fromkeys(keys, self.looks[0][1])
        if len(self.looks) > 1:
            del self.looks[0]
        return found

    def sleep(self, _seconds: float) -> None:
        self.now_s += 0.1

    def settled(self, monkeypatch: pytest.MonkeyPatch, deadline_s: float = 5.0) -> int:
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        monkeypatch.setattr(settling, "time", clock)
        ends = SettledEnds(self, deadline_s)
        ends.watch([TopicPartition("t", PartitionId(0))])
        return ends.wait(TopicPartition("t", PartitionId(0)))


@pytest.mark.parametrize(
    ("looks", "settled", "took_s"),
    [
        ([(5, 5)], 5, 0.3),
        ([(5, 5), (5, 5), (7, 7)], 7, 0.4),  # what the attempt that died had sent came late
        ([(5, 8), (5, 8), (8, 8)], 8, 0.3),  # a replica was silent: consumers did not see it
        ([(5, 8)] * 9 + [(8, 8)], 8, 0.8),
        ([(8, 8), (5, 8), (6, 6)], 6, 0.4),  # another leader, which had not got all
    ],
)
def test_what_is_still_on_its_way_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[int, int]], settled: int, took_s: float
) -> None:
    moving = Moving(*looks)
    assert moving.settled(monkeypatch) == settled
    assert moving.now_s == pytest.approx(took_s)


def test_what_does_not_settle_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SparkSourceError, match=r"DLOG_REPLAY_UNCOMMITTED. t-0 ends at 8, .* up to 5, after 1 s"
    ):
        Moving((5, 8)).settled(monkeypatch, 1.0)
    growing = [(each, each) for each in range(99)]
    with pytest.raises(DisturbedReplayError, match="t-0 still grows after 1 s"):
        Moving(*growing).settled(monkeypatch, 1.0)


class _Gone:
    def latest(self, _keys: object) -> dict[TopicPartition, int]:
        return {}

    log_ends = latest


def test_a_target_that_is_gone_is_told() -> None:
    with pytest.raises(SparkSourceError, match=r"UNKNOWN_TOPIC_OR_PARTITION. t-0 is gone"):
        SettledEnds(_Gone(), 1.0).wait(TopicPartition("t", PartitionId(0)))


class _Refusing:
    """Stands for a task's clients: nothing is taken."""

    def __init__(self, _task: ReplayTask) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def open(self, partition: int) -> int:
        return partition

    def write(self, _target: int, _rows: object) -> None:
        error = RefusedError("u-0: Timestamp 5 ms is too far ahead")
        raise error from InvalidTimestampError("Timestamp 5 ms is too far ahead")


def test_what_the_target_does_not_take_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_task, "_Writer", _Refusing)
    rows: Iterable[Any] = [pyarrow.record_batch({"target": pyarrow.array([0], pyarrow.int32())})]
    task = ReplayTask(settings=SETTINGS, topic="u", bases={0: 0})
    with pytest.raises(
        SparkSourceError,
        match=r"DLOG_WRITE_FAILED. replaying into u: RefusedError: u-0.*INVALID_TIMESTAMP.*configs",
    ):
        list(task(rows))


# Progress


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[]", b"null", b"{}", b'{"ends": 3}', b'{"ends": {"x": 1}}']
)
def test_damaged_progress_is_named(tmp_path: Path, data: bytes) -> None:
    for name in ("start.json", "batch=00000003.json"):
        progress = Progress(LocalFolder(tmp_path), name)
        path = tmp_path / "_replays" / name / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        with pytest.raises(DamagedArchiveError, match=rf"_replays/{name}/{name}.*another --name"):
            if name == "start.json":
                progress.begin(START)
            else:
                progress.done()


def test_a_start_with_other_fields_is_damage(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    assert Progress(folder, "r").begin(START) == START
    path = tmp_path / "_replays" / "r" / "start.json"
    for change in ({"more": 1}, {"ends": {"0": "many"}}):
        path.write_text(json.dumps({**START.document(), **change}))
        with pytest.raises(DamagedArchiveError, match=r"start\.json"):
            Progress(folder, "r").begin(START)


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".", "..", "a\0b"])
def test_a_replay_has_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match=r"The replay's name is .* one folder"):
        Progress(LocalFolder(tmp_path), name)


# Archives


def test_no_batch_is_left_out() -> None:
    one, two = manifest(1, span(0, 0, 4)), manifest(2, span(0, 4, 8))
    four = manifest(4, span(0, 12, 16))
    _check_chain(JOB, [one, two], None)  # the first batches may be gone when nobody needs them
    _check_chain(JOB, [one, two], 1)
    _check_chain(JOB, [], 5)
    with pytest.raises(DamagedArchiveError, match="/a: batch=00000003 is missing"):
        _check_chain(JOB, [one, two, four], None)
    with pytest.raises(DamagedArchiveError, match="/a: batch=00000001 is missing"):
        _check_chain(JOB, [two], 1)


@pytest.mark.parametrize(
    "name", ["startingTimestamp", "endingtimestamp", "STARTINGOFFSETSBYTIMESTAMP"]
)
def test_a_pipeline_reads_what_it_has_planned(name: str) -> None:
    wanted = [ArchivedRange(topic="t", partition=0, start_offset=0, end_offset=4)]
    with pytest.raises(OptionError, match=rf"DLOG_OPTION_CONFLICT. Option {name} "):
        read_ranges(None, {name: "5"}, wanted, 10)  # type: ignore[arg-type]


def test_a_topic_that_readers_take_for_none_is_not_archived(tmp_path: Path) -> None:
    """Spark and Hive write that name for null: whoever reads the archive finds no topic there."""
    topics = ("t", "__HIVE_DEFAULT_PARTITION__")
    job = ArchiveJob(topics=topics, folder=str(tmp_path), settings=SETTINGS)
    with pytest.raises(OptionError, match=r"DLOG_OPTION_VALUE. .*__HIVE_DEFAULT_PARTITION__"):
        archive(None, job)  # type: ignore[arg-type]


# Folders


@pytest.mark.parametrize(
    "name", ["with space", "café", "per%20cent", "hash#x", "q?x", "br[1]", "a:b"]
)
def test_spark_and_we_mean_the_same_folder(tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    for number, given in enumerate((path, f"file:{path}", f"file://{path}", f"file://host{path}")):
        folder = open_folder(given)
        # As Hadoop's Path takes it: nothing is escaped.
        assert folder.uri == f"file://{path}"
        assert folder.write_new(f"{number}.json", b"x")
        assert (tmp_path / name / f"{number}.json").read_bytes() == b"x"


def test_a_file_outlives_the_host_with_the_folders_that_were_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay whose start is lost would write everything once more."""
    synced: list[Path] = []
    monkeypatch.setattr(folders, "_sync_directory", synced.append)
    assert LocalFolder(tmp_path).write_new("_replays/one/start.json", b"x")
    replays = tmp_path / "_replays"
    assert synced == [tmp_path, replays, replays / "one"]


def test_a_full_disk_leaves_nothing_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    (tmp_path / "deep").mkdir()
    with pytest.raises(OSError, match="No space left"):
        LocalFolder(tmp_path).write_new("deep/start.json", b"x")
    assert list((tmp_path / "deep").iterdir()) == []


def test_dots_and_links_lead_to_one_folder(tmp_path: Path) -> None:
    (tmp_path / "deep" / "down").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "down")
    # Hadoop would say tmp_path/x without a look at the link.
    folder = open_folder(f"{tmp_path}/link/../x")
    assert folder.uri == f"file://{tmp_path}/deep/x"


def test_a_session_that_may_run_tasks_twice_is_refused_before_anything_is_looked_at() -> None:
    conf = SimpleNamespace(get=lambda name, _default: {"spark.speculation": "true"}[name])
    with pytest.raises(OptionError, match=r"\[DLOG_SPECULATION\].*two tasks would write the same"):
        replay(cast(SparkSession, SimpleNamespace(conf=conf)), JOB)
