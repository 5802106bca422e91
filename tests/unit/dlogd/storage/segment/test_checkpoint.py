"""Small files: every damage is found, a crash leaves the old or the new content."""

import asyncio
import errno
import random
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.types import NodeId, Offset
from dlogd.storage.io.checkpoint_files import (
    HIGH_WATERMARKS,
    IDENTITY,
    LIFE,
    Identity,
    Incarnation,
    MalformedFileError,
    decode,
    decode_identity,
    decode_life,
    decode_offsets,
    encode,
    encode_identity,
    encode_offsets,
    load_file,
    remove_file,
    replace_file,
    save_life,
)
from dlogd.storage.io.posix import PosixDirectory
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault, ProcessDied

SAMPLE = Identity(cluster_id="c", node_id=NodeId(3), directory_id=UUID(int=5))


@given(st.text().filter(lambda text: "\0" not in text))
def test_any_text_round_trips(payload: str) -> None:
    assert decode(IDENTITY, encode(IDENTITY, payload)) == payload


@given(st.binary())
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        decode(IDENTITY, data)


def test_every_changed_bit_and_every_cut_is_found() -> None:
    data = encode_identity(SAMPLE)
    for i in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[i // 8] ^= 1 << i % 8
        with pytest.raises(MalformedFileError):
            decode_identity(bytes(damaged))
    for size in range(len(data)):
        with pytest.raises(MalformedFileError):
            decode_identity(data[:size])
    with pytest.raises(MalformedFileError, match="bytes of payload"):
        decode_identity(data + b"x")


def test_other_kinds_versions_and_fields_are_refused() -> None:
    with pytest.raises(MalformedFileError, match="in the place of"):
        decode(HIGH_WATERMARKS, encode_identity(SAMPLE))
    with pytest.raises(MalformedFileError, match="version 2"):
        decode(IDENTITY, encode(IDENTITY, "", version=2))
    for payload in ("", "cluster_id=a\nnode_id=x\ndirectory_id=y\n", "node_id=1\n"):
        with pytest.raises(MalformedFileError, match="lacks or garbles"):
            decode_identity(encode(IDENTITY, payload))
    for payload in ("x a\n", "-1 a\n", "1\n", "1 \n", "\n"):
        with pytest.raises(MalformedFileError, match="has a line"):
            decode_offsets(HIGH_WATERMARKS, encode(HIGH_WATERMARKS, payload))


@given(
    st.dictionaries(
        st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True),
        st.integers(0, 2**63 - 1).map(Offset),
    )
)
def test_offsets_round_trip(offsets: dict[str, Offset]) -> None:
    data = encode_offsets(HIGH_WATERMARKS, offsets)
    assert decode_offsets(HIGH_WATERMARKS, data) == offsets


def test_real_files(tmp_path: Path) -> None:
    directory = PosixDirectory(str(tmp_path))
    assert load_file(directory, IDENTITY) is None
    replace_file(directory, IDENTITY, b"one")
    replace_file(directory, IDENTITY, b"second")
    assert load_file(directory, IDENTITY) == b"second"
    (tmp_path / "identity.tmp").write_bytes(b"a longer rest of an interrupted attempt")
    replace_file(directory, IDENTITY, b"3")
    assert load_file(directory, IDENTITY) == b"3"
    assert directory.names() == [IDENTITY]
    remove_file(directory, IDENTITY)
    remove_file(directory, IDENTITY)
    assert directory.names() == []


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / IDENTITY).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(MalformedFileError, match="at most"):
        load_file(PosixDirectory(str(tmp_path)), IDENTITY)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_leaves_the_old_or_the_new(seed: int) -> None:
    rng = random.Random(seed)
    machine = Machine(rng)
    directory = machine.boot().open_directory("/data/a")
    old, new = encode(IDENTITY, "old\n" * 300), encode(IDENTITY, "new\n" * 500)
    replace_file(directory, IDENTITY, old)
    machine.die_at(rng.randrange(1, 12), lambda: None)
    finished = False
    try:
        replace_file(directory, IDENTITY, new)
        finished = True
    except ProcessDied:
        pass
    machine.power_cut()
    found = load_file(machine.boot().open_directory("/data/a"), IDENTITY)
    assert found == new if finished else found in (old, new)


def test_a_failed_sync_keeps_the_old_content() -> None:
    machine = Machine(random.Random(1))
    directory = machine.boot().open_directory("/data/a")
    replace_file(directory, IDENTITY, b"old")
    machine.disks["/data"].faults.append(DiskFault(operations=("sync",), errno=errno.EIO, count=1))
    with pytest.raises(OSError):
        replace_file(directory, IDENTITY, b"new")
    assert load_file(directory, IDENTITY) == b"old"
    replace_file(directory, IDENTITY, b"new")
    assert load_file(directory, IDENTITY) == b"new"


def test_functions_run_by_an_engine() -> None:
    async def body() -> None:
        machine = Machine(random.Random(1))
        process = machine.boot(asyncio.get_running_loop())
        directory = process.open_directory("/data/a")
        await process.engine.run(lambda: replace_file(directory, IDENTITY, b"x"))
        assert await process.engine.run(lambda: load_file(directory, IDENTITY)) == b"x"

    asyncio.run(body())


OLD, NEW = Incarnation(node_epoch=9), Incarnation(node_epoch=10, registering=UUID(int=7))


def fill(machine: Machine, path: str) -> None:
    """Leave no space on the one disk of a machine."""
    (disk,) = machine.disks.values()
    file = machine.boot().open_directory(path).open("filler", create=True)
    file.preallocate(0, disk.free_bytes())
    file.close()
    assert disk.free_bytes() == 0


def test_the_life_is_noted_on_a_full_disk() -> None:
    machine = Machine(random.Random(1), capacity_bytes=1 << 20)
    directory = machine.boot().open_directory("/data/a")
    save_life(directory, OLD)
    fill(machine, "/data/a")
    directory = machine.boot().open_directory("/data/a")
    save_life(directory, NEW)
    machine.power_cut()
    data = load_file(machine.boot().open_directory("/data/a"), LIFE)
    assert data is not None and decode_life(data) == NEW


def test_the_first_life_needs_space() -> None:
    machine = Machine(random.Random(1), capacity_bytes=1 << 20)
    fill(machine, "/data/a")
    with pytest.raises(OSError, match="No space"):
        save_life(machine.boot().open_directory("/data/a"), NEW)


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_on_a_full_disk_leaves_one_life_or_none(seed: int) -> None:
    machine = Machine(random.Random(seed), capacity_bytes=1 << 20)
    save_life(machine.boot().open_directory("/data/a"), OLD)
    fill(machine, "/data/a")
    directory = machine.boot().open_directory("/data/a")
    machine.die_at(random.Random(seed).randrange(1, 12), lambda: None)
    finished = False
    try:
        save_life(directory, NEW)
        finished = True
    except ProcessDied:
        pass
    machine.power_cut()
    data = load_file(machine.boot().open_directory("/data/a"), LIFE)
    assert data is not None
    try:
        found = decode_life(data)
    except MalformedFileError:
        assert not finished
        return
    assert found == NEW if finished else found in (OLD, NEW)
