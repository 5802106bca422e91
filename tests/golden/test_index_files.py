"""Golden bytes of a partition's small and sparse files: the examples of docs/formats."""

import random
from pathlib import Path

from dlog.types import LeaderEpoch, Offset
from dlogd.storage.log.log_recovery import encode_log_start
from dlogd.storage.segment import leader_epochs, offset_index, time_index
from dlogd.storage.segment.index_files import load_entries, store_entries
from dlogd.storage.segment.leader_epochs import EpochHistory
from dlogd.storage.segment.sparse_index import EntryHeader
from tests.fakes.disk import Machine
from tests.golden.documents import FORMATS, examples

OFFSETS = [(7, 4123), (14, 8243)]
TIMES = [(-1, 7), (1357000000000, 14), (1357000001160, 22)]
IDX = EntryHeader(magic=offset_index.MAGIC, base_offset=368, durable=True, mark=8410)
TDX = EntryHeader(magic=time_index.MAGIC, base_offset=368, durable=True)
TRUE_TDX = EntryHeader(
    magic=time_index.MAGIC, base_offset=368, durable=True, is_true=True, is_decoded=False
)
TRUE_TIMES = [(1356999990000, 7), (1357000000500, 14), (1357000000500, 22)]


def test_indexes() -> None:
    directory = Machine(random.Random(1)).boot().open_directory("/data/a")
    golden = examples("index.md")
    kinds = (
        (IDX, offset_index.ENTRY, OFFSETS),
        (TDX, time_index.ENTRY, TIMES),
        (TRUE_TDX, time_index.ENTRY, TRUE_TIMES),
    )
    for expected, (header, entry, entries) in zip(golden, kinds, strict=True):
        store_entries(directory, "made", header, entry, entries, durable=True)
        made = directory.open("made")
        assert made.pread(made.size(), 0) == expected
        file = directory.open("golden", create=True)
        file.truncate(0)
        file.pwrite(expected, 0)
        found = load_entries(directory, "golden", header, entry)
        assert found is not None
        assert (found.header, found.entries, found.is_whole) == (header, entries, True)


def _example(name: str) -> bytes:
    text = (Path(FORMATS) / name).read_text(encoding="utf-8")
    return text.split("```\n")[1].encode()


def test_leader_epochs() -> None:
    starts = [(0, 0), (3, 1500), (4, 1822)]
    history = EpochHistory([(LeaderEpoch(epoch), Offset(start)) for epoch, start in starts])
    assert history.encode() == _example("leader-epochs.md")
    assert leader_epochs.decode(_example("leader-epochs.md")).entries == starts


def test_log_start() -> None:
    assert encode_log_start(Offset(1500)) == _example("log-start.md")
