"""Data directories: claims and their refusals, names of logs, strays, deletions, grouped work."""

import asyncio
import errno
import random
from pathlib import Path
from uuid import UUID

import pytest

from dlog.errors import ConfigError
from dlog.types import NodeId, Offset, PartitionId, TopicPartition
from dlogd.runtime.tasks import Tasks
from dlogd.storage.directory.data_directory import Claim, DataDirectory, agreed_cluster
from dlogd.storage.directory.log_names import log_name, parse_log_name
from dlogd.storage.io.checkpoint_files import (
    HIGH_WATERMARKS,
    LIFE,
    Identity,
    Incarnation,
    decode_life,
    load_file,
)
from dlogd.storage.io.group_sync import GROUP_MAX, GroupSync
from dlogd.storage.io.posix import PosixDirectory
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault, ProcessDied, read_only

NODE = NodeId(1)
TOPIC_ID = UUID("00112233-4455-4677-8899-aabbccddeeff")
IDENTITY = Identity(cluster_id="c", node_id=NODE, directory_id=UUID(int=7))


def name_of(partition: int = 0, topic: str = "flights", topic_id: UUID = TOPIC_ID) -> str:
    return log_name(TopicPartition(topic, PartitionId(partition)), topic_id)


def real(path: Path) -> DataDirectory:
    return DataDirectory(PosixDirectory(str(path)))


def adopted(path: Path) -> DataDirectory:
    directory = real(path)
    directory.claim()
    directory.adopt(IDENTITY, is_new=True)
    return directory


# -- names


@pytest.mark.parametrize("topic", ["a", "a-1.b_c", "x" * 249, "..."])
@pytest.mark.parametrize("partition", [0, 10, 2_147_483_647])
def test_names_of_logs_tell_whose_they_are(topic: str, partition: int) -> None:
    name = name_of(partition, topic)
    assert len(f"{name}.999.deleted") <= 255
    assert parse_log_name(name) == (TOPIC_ID, partition)
    assert name.startswith(topic[:190])


@pytest.mark.parametrize(
    "name",
    ["", "lost+found", "a-0", f"a-01.{TOPIC_ID}", f"a-0.{TOPIC_ID}.deleted", f"-0.{TOPIC_ID}"],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert parse_log_name(name) is None


# -- claims


def test_a_new_directory_and_the_same_again(tmp_path: Path) -> None:
    first = real(tmp_path)
    assert first.claim() == Claim(path=str(tmp_path), identity=None, has_logs=False)
    first.adopt(IDENTITY, is_new=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "identity",
        "lock",
        "spare",
        "stray",
        "topics",
    ]
    first.release()
    first.release()
    again = real(tmp_path)
    assert again.claim().identity == IDENTITY
    again.release()


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    first = real(tmp_path)
    first.claim()
    with pytest.raises(ConfigError, match=r"in use by another process: stop the other dlogd"):
        real(tmp_path).claim()
    first.release()
    real(tmp_path).claim()


def test_a_damaged_identity_is_refused(tmp_path: Path) -> None:
    adopted(tmp_path).release()
    (tmp_path / "identity").write_bytes(b"dlog identity 1 3 00000000\nabc")
    with pytest.raises(ConfigError, match=r"identity is damaged .*: restore it"):
        real(tmp_path).claim()


SMALL_FILES = ("life", "high-watermarks", "promised-offsets", "clean-shutdown")


@pytest.mark.parametrize("name", ["identity", *SMALL_FILES])
def test_a_directory_in_the_place_of_a_small_file_is_refused(tmp_path: Path, name: str) -> None:
    adopted(tmp_path).release()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    again = real(tmp_path)
    with pytest.raises(ConfigError, match=rf"/{name} is a directory, .*: move it away"):
        again.claim()
        again.adopt(IDENTITY, is_new=False)
        again.survey(lambda _: True)
    again.release()


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_link_to_nowhere_is_no_more_than_a_damaged_file(tmp_path: Path, name: str) -> None:
    adopted(tmp_path).release()
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    again = adopted(tmp_path)
    (complaint,) = again.survey(lambda _: True).complaints
    assert complaint == f"{tmp_path}/{name} is not used: it is a link that leads nowhere"
    assert not (tmp_path / "clean-shutdown").is_symlink()
    again.save_life(Incarnation(node_epoch=3))
    again.save_offsets(HIGH_WATERMARKS, {})
    again.release()


@pytest.mark.parametrize(
    "fault",
    [read_only(), DiskFault(operations=("write",)), DiskFault(operations=("sync",))],
    ids=["read-only", "write", "sync"],
)
def test_a_directory_that_does_not_work_shows_at_the_claim(fault: DiskFault) -> None:
    machine = Machine(random.Random(1))
    root = machine.boot().open_directory("/data/a")
    machine.disks["/data"].faults.append(fault)
    with pytest.raises(OSError):
        DataDirectory(root).claim()


def test_direct_io_can_be_required() -> None:
    machine = Machine(random.Random(1))
    machine.disks["/data"].direct_supported = False
    root = machine.boot().open_directory("/data/a")
    with pytest.raises(ConfigError, match="cannot do direct I/O"):
        DataDirectory(root).claim(direct_required=True)


def claim(path: str, **identity: object) -> Claim:
    fields = {
        "cluster_id": "c",
        "node_id": NODE,
        "directory_id": UUID(bytes=path.encode().ljust(16)),
    }
    return Claim(path=path, identity=Identity(**{**fields, **identity}), has_logs=True)  # type: ignore[arg-type]


NEW = Claim(path="/new", identity=None, has_logs=False)


@pytest.mark.parametrize(
    ("claims", "configured", "expected"),
    [
        ([NEW], None, None),
        ([NEW], "c", "c"),
        ([claim("/a"), NEW], None, "c"),
        ([claim("/a"), claim("/b")], "c", "c"),
    ],
)
def test_agreement(claims: list[Claim], configured: str | None, expected: str | None) -> None:
    assert agreed_cluster(claims, NODE, configured) == expected


@pytest.mark.parametrize(
    ("claims", "configured", "words"),
    [
        ([claim("/a", node_id=NodeId(2))], None, "belongs to node 2, this is node 1"),
        ([claim("/a")], "d", "belongs to cluster c, cluster.id says d"),
        ([claim("/a"), claim("/b", cluster_id="d")], None, "belongs to cluster d, /a says c"),
        (
            [claim("/a", directory_id=UUID(int=1)), claim("/b", directory_id=UUID(int=1))],
            None,
            "one is a copy",
        ),
        ([Claim(path="/a", identity=None, has_logs=True)], None, "logs but no identity file"),
    ],
)
def test_contradictions_are_refused(
    claims: list[Claim], configured: str | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        agreed_cluster(claims, NODE, configured)
    assert len(raised.value.problems) == 1


def test_all_contradictions_are_told_at_once() -> None:
    claims = [claim("/a", node_id=NodeId(2)), claim("/b", cluster_id="d", node_id=NodeId(3))]
    with pytest.raises(ConfigError) as raised:
        agreed_cluster(claims, NODE, "c")
    assert len(raised.value.problems) == 3


# -- logs


def test_strays_are_set_aside_and_never_lost(tmp_path: Path) -> None:
    directory = adopted(tmp_path)
    names = [name_of(0), name_of(1), name_of(0, topic_id=UUID(int=9))]
    directory.make_log_directories([*names, "something-else"])
    (tmp_path / "topics" / names[1] / "data").write_bytes(b"records")
    (tmp_path / "topics" / "a file").write_bytes(b"x")
    survey = directory.survey(lambda key: key == (TOPIC_ID, 0))
    assert survey.names == {(TOPIC_ID, 0): names[0]}
    assert sorted(survey.strays) == sorted([*names[1:], "something-else", "a file"])
    assert (tmp_path / "stray" / names[1] / "data").read_bytes() == b"records"
    directory.make_log_directories([names[1]])
    survey = directory.survey(lambda key: False)
    assert sorted(path.name for path in (tmp_path / "stray").iterdir()) == sorted(
        [*names, f"{names[1]}.2", "something-else", "a file"]
    )
    assert not list((tmp_path / "topics").iterdir())


def test_deletion_is_marked_first_and_found_again(tmp_path: Path) -> None:
    directory = adopted(tmp_path)
    directory.make_log_directories([name_of(0), name_of(1)])
    directory.mark_deleted([name_of(1), name_of(5)])
    survey = directory.survey(lambda key: True)
    assert list(survey.names.values()) == [name_of(0)]
    assert survey.deleted == [directory.deleted_name(name_of(1))] and not survey.strays
    directory.remove_deleted(survey.deleted[0])
    directory.remove_deleted(survey.deleted[0])
    with pytest.raises(ValueError, match="not marked"):
        directory.remove_deleted(name_of(0))
    assert [path.name for path in (tmp_path / "topics").iterdir()] == [name_of(0)]


def test_small_files_of_the_last_run(tmp_path: Path) -> None:
    directory = adopted(tmp_path)
    directory.save_offsets(HIGH_WATERMARKS, {name_of(0): Offset(5)})
    directory.save_clean_shutdown({name_of(0): Offset(7)})
    survey = directory.survey(lambda key: True)
    assert survey.clean_ends == {name_of(0): 7} and survey.high_watermarks == {name_of(0): 5}
    assert not (tmp_path / "clean-shutdown").exists()
    assert not directory.survey(lambda key: True).clean_ends
    (tmp_path / "high-watermarks").write_bytes(b"nonsense")
    survey = directory.survey(lambda key: True)
    assert survey.high_watermarks == {} and "high-watermarks is not used" in survey.complaints[0]


def test_a_full_directory_knows_whose_life_it_is() -> None:
    machine = Machine(random.Random(1), capacity_bytes=1 << 20)
    directory = DataDirectory(machine.boot().open_directory("/data/a"))
    directory.claim()
    directory.adopt(IDENTITY, is_new=True)
    directory.save_life(Incarnation(node_epoch=3))
    (disk,) = machine.disks.values()
    root = machine.boot().open_directory("/data/a")
    root.open("filler", create=True).preallocate(0, disk.free_bytes())
    directory.save_life(Incarnation(node_epoch=4))
    data = load_file(root, LIFE)
    assert data is not None and decode_life(data) == Incarnation(node_epoch=4)


def test_which_log_holds_records(tmp_path: Path) -> None:
    directory = adopted(tmp_path)
    directory.make_log_directories([name_of(0)])
    log_path = tmp_path / "topics" / name_of(0)
    assert not directory.holds_records(name_of(0))
    (log_path / "00000000000000000000.log").write_bytes(b"")
    assert not directory.holds_records(name_of(0))
    (log_path / "00000000000000000005.log").write_bytes(b"x")
    assert directory.holds_records(name_of(0))
    (log_path / "00000000000000000005.log").write_bytes(b"")
    (log_path / "log-start").write_bytes(b"of a log whose records were all deleted")
    assert directory.holds_records(name_of(0))


@pytest.mark.parametrize("seed", range(30))
def test_the_clean_marker_never_outlives_the_first_step_of_a_start(seed: int) -> None:
    """Whatever the power cut leaves: either the marker and no survey, or no marker."""
    rng = random.Random(seed)
    machine = Machine(rng)
    directory = DataDirectory(machine.boot().open_directory("/data/a"))
    directory.claim()
    directory.adopt(IDENTITY, is_new=True)
    directory.save_clean_shutdown({name_of(0): Offset(7)})
    directory.release()
    machine.die_at(rng.randrange(1, 25), lambda: None)
    surveyed = False
    try:
        directory.claim()
        directory.adopt(IDENTITY, is_new=False)
        directory.survey(lambda key: True)
        surveyed = True
    except ProcessDied:
        pass
    machine.power_cut()
    again = DataDirectory(machine.boot().open_directory("/data/a"))
    again.claim()
    again.adopt(IDENTITY, is_new=False)
    ends = again.survey(lambda key: True).clean_ends
    assert ends in ({}, {name_of(0): 7}) and not (surveyed and ends)


# -- grouped work


def test_work_of_many_shares_a_few_runs() -> None:
    async def body() -> None:
        machine = Machine(random.Random(1))
        process = machine.boot(asyncio.get_running_loop())
        groups: list[list[str]] = []
        tasks = Tasks()
        work = GroupSync(
            "test", tasks, process.engine.run, lambda items: groups.append(list(items))
        )
        names = [str(i) for i in range(GROUP_MAX * 2 + 5)]
        await asyncio.gather(*(work.do(name) for name in names))
        assert [name for group in groups for name in group] == names
        assert len(groups) == 3
        await work.do("later")
        assert groups[-1] == ["later"]
        await tasks.close()

    asyncio.run(body())


def test_an_error_reaches_everybody_of_its_group() -> None:
    async def body() -> None:
        machine = Machine(random.Random(1))
        process = machine.boot(asyncio.get_running_loop())
        tasks = Tasks()
        failures = [1]

        def work(items: list[str]) -> None:
            if failures:
                failures.pop()
                raise OSError(errno.EIO, "Input/output error", "/data")

        grouped = GroupSync("test", tasks, process.engine.run, work)
        results = await asyncio.gather(
            *(grouped.do(str(i)) for i in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, OSError) and result.errno == errno.EIO for result in results)
        await grouped.do("again")
        await tasks.close()

    asyncio.run(body())


def test_closing_ends_those_who_wait() -> None:
    async def body() -> None:
        machine = Machine(random.Random(1))
        process = machine.boot(asyncio.get_running_loop())
        machine.disks["/data"].stick()
        tasks = Tasks()
        grouped = GroupSync("test", tasks, process.engine.run, lambda items: None)
        waiting = [asyncio.ensure_future(grouped.do(str(i))) for i in range(GROUP_MAX + 5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await tasks.close()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(
            result is None or isinstance(result, asyncio.CancelledError) for result in results
        )

    asyncio.run(body())
