"""The metadata store on files that are torn, cut, damaged, missing or another's."""

import asyncio
import errno

import pytest

from dlogd.metadata import journal_format
from dlogd.metadata.commands.codec import Command, encode
from dlogd.metadata.journal_files import JournalFiles, MetadataCorruptError
from dlogd.metadata.machine import apply
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage
from dlogd.storage.io.checkpoint_files import METADATA_VERSION
from tests.fakes.faults import DiskFault, ProcessDied
from tests.fakes.metadata_host import (
    JOURNAL_0,
    PATH,
    Host,
    create,
    filled,
    propose,
    register,
    run,
)


def test_a_torn_end_is_cut_wherever_it_is_torn() -> None:
    async def scenario() -> None:
        host = Host()
        before = (await filled(host, 2)).image
        start = len(host.data())
        store = await host.reopen()
        sealed = len(host.data())
        assert sealed > start
        await propose(store, create(9))
        host.machine.crash()
        whole = host.data()
        for end in range(sealed, len(whole)):
            for tail in (b"", bytes(50), b"\xff" * 7, whole[sealed:][:4] * 3):
                if (whole[:end] + tail).startswith(whole):
                    continue
                host.machine.crash()
                host.replace(whole[:end] + tail)
                assert (await host.open()).image == before
        host.machine.crash()
        host.replace(whole + bytes(100))
        assert "t9" in (await host.open()).image.topics

    run(scenario)


@pytest.mark.parametrize("seed", range(60))
def test_starts_that_cannot_flush_make_no_damage_of_a_torn_end(seed: int) -> None:
    """The frame that seals what was read is not on its way to the disk together with that."""

    async def scenario() -> None:
        host = Host(seed)
        store = await filled(host, 2)
        before = set(store.image.topics)
        host.machine.disks["/data"].faults.append(DiskFault(("sync",), path_part="journal"))
        several = (propose(store, create(number)) for number in range(10, 90))
        await asyncio.gather(*several)  # one frame over several blocks
        for _ in range(2):  # the system still has what it could not write
            with pytest.raises(OSError):
                await host.reopen()
        host.machine.power_cut()
        host.machine.heal()
        assert before <= set((await host.open()).image.topics)

    run(scenario)


def test_damage_in_the_middle_is_refused_wherever_it_is() -> None:
    async def scenario() -> None:
        host = Host()
        await (await filled(host, 2)).close()
        whole = host.data()
        last = len(whole) - len(journal_format.encode_frame(0, 1, ()))
        for position in range(last):
            damaged = bytearray(whole)
            damaged[position] ^= 0x20
            host.machine.crash()
            host.replace(bytes(damaged))
            with pytest.raises(MetadataCorruptError, match="nothing was changed"):
                await host.open()
            host.machine.crash()
            assert host.data() == bytes(damaged)

    run(scenario)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_journal_that_was_cut_is_no_torn_end(
    orderly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All frames before the cut are whole: only the version noted elsewhere tells."""
    monkeypatch.setattr("dlogd.metadata.local_store.NOTE_INTERVAL_S", 0.001)

    async def scenario() -> None:
        host = Host()
        store = await filled(host)
        version = store.image.version
        if orderly:
            await store.close()
        else:
            await asyncio.sleep(0.05)
        host.machine.crash()
        whole = host.data()
        frames = journal_format.decode(whole).frames
        end = whole.rindex(journal_format.FRAME_MAGIC)
        while frames and frames[-1].next_version > version:
            shorter = whole[:end]
            frames, end = (
                journal_format.decode(shorter).frames,
                shorter.rindex(journal_format.FRAME_MAGIC),
            )
        for data in (shorter, shorter + whole[len(shorter) : len(shorter) + 9]):
            host.replace(data)
            with pytest.raises(MetadataCorruptError, match=f"version {version} was reached"):
                await host.reopen()
            assert host.data() == data, "nothing was changed"
        host.machine.crash()
        host.machine.boot().open_directory(PATH).unlink(JOURNAL_0)
        with pytest.raises(MetadataCorruptError, match=f"version {version} was reached"):
            await host.reopen()
        host.replace(whole)
        assert (await host.reopen()).image.version == version

    run(scenario)


def test_a_damaged_or_missing_note_does_not_stop_a_start() -> None:
    async def scenario() -> None:
        host = Host()
        store = await filled(host)
        await store.close()
        host.replace(b"nonsense", METADATA_VERSION)
        assert (await host.reopen()).image.version == store.image.version
        host.machine.disks["/data"].faults.append(
            DiskFault(("create",), errno.ENOSPC, path_part=METADATA_VERSION)
        )
        host.machine.boot().open_directory(PATH).unlink(METADATA_VERSION)
        again = await host.reopen()
        assert again.image.version == store.image.version
        await again.close()

    run(scenario)


def test_missing_and_damaged_files_are_refused() -> None:
    async def scenario() -> None:
        host = Host()
        host.journal_bytes_max = 300
        await filled(host, 20)
        snapshot_name = next(name for name in host.names() if name.endswith(".snapshot"))
        journal_name = snapshot_name.replace("snapshot", "journal")
        host.machine.crash()
        good = {name: host.data(name) for name in (snapshot_name, journal_name)}
        for position in range(0, len(good[snapshot_name]), 7):
            damaged = bytearray(good[snapshot_name])
            damaged[position] ^= 1
            host.replace(bytes(damaged), snapshot_name)
            with pytest.raises(MetadataCorruptError, match="not a complete snapshot"):
                await host.reopen()
            host.machine.crash()
        host.replace(good[snapshot_name], snapshot_name)
        directory = host.machine.boot().open_directory(PATH)
        for name, message in ((snapshot_name, "snapshot is missing"), (journal_name, "is missing")):
            directory.unlink(name)
            directory.sync()
            with pytest.raises(MetadataCorruptError, match=message):
                await host.reopen()
            host.machine.crash()
            directory = host.machine.boot().open_directory(PATH)
            host.replace(good[name], name)
        await host.reopen()

    run(scenario)


def test_a_journal_of_another_place_is_refused() -> None:
    async def scenario() -> None:
        host = Host()
        await filled(host)
        host.machine.crash()
        whole = host.data()
        host.replace(whole, JOURNAL_0.replace("000.", "002."))
        with pytest.raises(MetadataCorruptError, match="continues from version 0"):
            await host.open()

    run(scenario)


def _step(archive: JournalFiles, image: ClusterImage, command: Command) -> ClusterImage:
    """Apply one more command, durably."""
    data = encode(command)
    changed, outcome = apply.apply(image, data)
    assert isinstance(outcome, Applied)
    archive.append(changed.version, [data])
    return changed


@pytest.mark.parametrize("death", range(1, 8))
def test_a_start_on_names_that_a_killed_process_left_loses_none_of_them(death: int) -> None:
    """It died between a rename and the flush of the directory; then the power fails in the start
    that goes on with what it sees."""
    for seed in range(30):
        host = Host(seed)
        told: list[ClusterImage] = []

        def opened(host: Host = host) -> JournalFiles:
            return JournalFiles(host.machine.boot().open_directory(PATH))

        host.machine.die_at(death, lambda: None, "sync_directory")
        with pytest.raises(ProcessDied):
            archive = opened()
            told.append(_step(archive, archive.open(), register()))
            for number in range(3):
                told.append(_step(archive, told[-1], create(number)))
                archive.compact(told[-1])
        host.machine.crash()
        host.machine.die_at(1, lambda: None, "sync_directory")
        with pytest.raises(ProcessDied):
            opened().open()
        host.machine.power_cut()
        assert opened().open() == (told[-1] if told else EMPTY_IMAGE)
