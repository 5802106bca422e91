"""Real files and directories: what the protocols of `dlogd.storage.io.files` promise."""

import errno
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.io.posix import (
    PosixDirectory,
    PosixFile,
    Reserve,
    direct_alignment,
    open_directory,
)


@pytest.fixture
def directory(tmp_path: Path) -> PosixDirectory:
    return PosixDirectory(str(tmp_path))


def test_some_files_leave_descriptors_to_others(tmp_path: Path) -> None:
    number = os.open("/dev/null", os.O_RDONLY)
    os.close(number)
    names = re.compile(r"\d+\.log")
    whole = Reserve(names=names, count_max=number)
    below = open_directory(str(tmp_path), whole).directory("t", create=True)
    with pytest.raises(OSError, match="Too many open files"):
        below.open("1.log", create=True)
    assert not below.exists("1.log")
    below.open("other", create=True).close()
    spare = open_directory(str(tmp_path), Reserve(names=names, count_max=number + 1))
    spare.directory("t").open("1.log", create=True).close()


@pytest.fixture(params=[False, True], ids=["buffered", "direct"])
def file(request: pytest.FixtureRequest, directory: PosixDirectory) -> Iterator[PosixFile]:
    opened = directory.open("file", create=True, direct=request.param)
    yield opened
    opened.close()


def test_permission_bits(directory: PosixDirectory, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o4640)
    (tmp_path / "link").symlink_to("file")
    assert directory.mode("file") == directory.mode("link") == 0o4640
    with pytest.raises(FileNotFoundError):
        directory.mode("nothing")


def test_unaligned_reads_and_writes_work_on_every_file(file: PosixFile) -> None:
    file.pwrite(b"hello", 3)
    assert file.pread(100, 0) == b"\0\0\0hello"
    assert file.pread(2, 4) == b"el"
    assert file.pread(10, 100) == b""
    assert file.size() == 8


def test_buffered_reads_see_direct_writes(directory: PosixDirectory) -> None:
    file = directory.open("file", create=True, direct=True)
    file.preallocate(0, 2 * ALIGNMENT)
    assert file.pread(4, 10) == b"\0\0\0\0"
    block = mmap.mmap(-1, ALIGNMENT)
    block.write(b"x" * ALIGNMENT)
    os.pwritev(file.fileno(), [block], 0)
    assert file.pread(4, 10) == b"xxxx"
    file.pwrite(b"yy", 11)
    os.preadv(file.fileno(), [block], 0)
    assert block[10:14] == b"xyyx"
    file.close()


def test_the_buffered_descriptor_survives_unlink(directory: PosixDirectory) -> None:
    file = directory.open("file", create=True, direct=True)
    directory.unlink("file")
    file.pwrite(b"abc", 0)
    assert file.pread(3, 0) == b"abc"
    file.close()
    with pytest.raises(OSError):
        file.pread(3, 0)


def test_preallocate_makes_space_and_never_shrinks(file: PosixFile) -> None:
    file.pwrite(b"data", 0)
    file.preallocate(0, 1 << 20)
    assert file.size() == 1 << 20
    assert os.stat(file.path).st_blocks * 512 >= 1 << 20
    file.preallocate(0, 4096)
    assert file.size() == 1 << 20
    assert file.pread(8, 0) == b"data\0\0\0\0"
    file.truncate(4)
    assert file.size() == 4
    file.truncate(10)
    assert file.pread(100, 0) == b"data" + bytes(6)


def test_read_only_refuses_writes(directory: PosixDirectory) -> None:
    directory.open("file", create=True).close()
    for direct in (False, True):
        file = directory.open("file", read_only=True, direct=direct)
        with pytest.raises(OSError):
            file.pwrite(b"x", 0)
        file.close()
    with pytest.raises(FileNotFoundError):
        directory.open("missing")


def test_a_failed_sync_is_never_retried(
    directory: PosixDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = directory.open("file", create=True)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError):
            file.sync()
    with pytest.raises(OSError, match="not trusted"):
        file.sync()
    file.close()
    fresh = directory.open("file")
    fresh.sync()
    fresh.close()


def test_directories(directory: PosixDirectory) -> None:
    child = directory.directory("child", create=True)
    again = directory.directory("child", create=True)
    assert child.path == again.path
    with pytest.raises(FileNotFoundError):
        directory.directory("none")
    child.open("b", create=True).close()
    child.open("a", create=True).close()
    assert child.names() == ["a", "b"]
    child.rename("a", "c")
    assert child.exists("c") and not child.exists("a")
    child.rename("c", "b")
    assert child.names() == ["b"]
    child.sync()
    with pytest.raises(NotADirectoryError):
        child.directory("b", create=True)
    directory.remove_tree("child")
    assert directory.names() == []
    usage = directory.usage()
    assert 0 < usage.free_bytes <= usage.total_bytes


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_is_not_opened_as_a_file(
    directory: PosixDirectory, direct: bool, read_only: bool
) -> None:
    directory.directory("child", create=True)
    count = len(os.listdir("/proc/self/fd"))
    with pytest.raises(IsADirectoryError, match="child"):
        directory.open("child", direct=direct, read_only=read_only)
    assert len(os.listdir("/proc/self/fd")) == count


def test_move_between_directories(directory: PosixDirectory) -> None:
    one = directory.directory("one", create=True)
    two = directory.directory("two", create=True)
    one.directory("log", create=True).open("file", create=True).close()
    one.move("log", two, "moved")
    assert one.names() == [] and two.directory("moved").names() == ["file"]
    one.open("other", create=True).close()
    with pytest.raises(FileExistsError):
        one.move("other", two, "moved")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b"])
def test_names_are_single_components(directory: PosixDirectory, name: str) -> None:
    with pytest.raises(ValueError, match="single path component"):
        directory.open(name, create=True)


def test_locks_exclude_each_other(directory: PosixDirectory) -> None:
    lock = directory.lock("lock")
    with pytest.raises(BlockingIOError):
        directory.lock("lock")
    lock.release()
    lock.release()
    directory.lock("lock").release()


def test_alignment_is_told_or_unknown(directory: PosixDirectory) -> None:
    file = directory.open("file", create=True)
    alignment = direct_alignment(file.fileno())
    assert alignment is None or alignment == 0 or ALIGNMENT % alignment == 0
    file.close()


def test_direct_falls_back_where_it_is_refused(
    directory: PosixDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument", path)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    file = directory.open("file", create=True, direct=True)
    assert not file.direct
    file.pwrite(b"abc", 0)
    file.close()


def test_too_coarse_alignment_falls_back(
    directory: PosixDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlogd.storage.io.posix.direct_alignment", lambda fd: 65536)
    file = directory.open("file", create=True, direct=True)
    assert not file.direct
    file.close()


def test_probing_by_a_read_where_statx_does_not_tell(
    directory: PosixDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlogd.storage.io.posix.direct_alignment", lambda fd: None)
    file = directory.open("file", create=True, direct=True)
    assert file.direct
    file.close()


def test_a_directory_is_made_with_its_parents_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a start is killed in between: no name is relied upon before it is flushed."""
    synced: list[str] = []
    kills: list[int] = []

    def sync(directory: PosixDirectory) -> None:
        if kills and len(synced) == kills[0]:
            kills.clear()
            raise KeyboardInterrupt
        synced.append(directory.path)

    monkeypatch.setattr(PosixDirectory, "sync", sync)
    for count in range(4):
        path = tmp_path / str(count) / "a" / "b"
        synced.clear()
        kills.append(count)
        with pytest.raises(KeyboardInterrupt):
            open_directory(str(path))
        assert open_directory(str(path)).path == str(path)
        assert {str(each) for each in (tmp_path, path.parent.parent, path.parent)} <= {*synced}
        assert path.stat().st_mode & 0o777 == 0o750


def test_a_directory_whose_parent_may_not_be_read_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: PosixDirectory) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(PosixDirectory, "sync", refuse)
    assert open_directory(str(tmp_path)).path == str(tmp_path)
