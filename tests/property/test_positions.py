"""A cursor hands out each record once and in order, however it is filled and emptied."""

from hypothesis import given
from hypothesis import strategies as st

from dlog.client.chunks import scan
from dlog.client.positions import Cursor
from dlog.compression import Codec
from dlog.types import PartitionId, TopicPartition
from tests.fakes.batches import COMMIT, batch, joined, marker

KEY = TopicPartition("t", PartitionId(0))

# A log: batches of so many records; 0 stands for a control batch.
LOGS = st.lists(st.integers(0, 5), max_size=12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4)),
        st.tuples(st.just("records"), st.integers(1, 9)),
        st.tuples(st.just("bytes"), st.integers(1, 40)),
        st.tuples(st.just("columns"), st.integers(1, 9)),
        st.tuples(st.just("rewind"), st.just(0)),
        st.tuples(st.just("seek"), st.integers(0, 30)),
    ),
    max_size=40,
)


class Log:
    """The batches of a log, as the offset of each and what it holds."""

    def __init__(self, counts: list[int], codec: Codec) -> None:
        self.batches: list[tuple[int, int, bytes]] = []  # first offset, next offset, bytes
        self.offsets: list[int] = []
        end = 0
        for count in counts:
            if count:
                data = batch(end, count, codec=codec, leader_epoch=end)
                self.offsets += range(end, end + count)
            else:
                data = marker(end, 7, COMMIT)
            self.batches.append((end, end + max(1, count), data))
            end += max(1, count)
        self.end = end

    def read(self, offset: int, batch_count: int) -> memoryview:
        """Return some whole batches, the first the one that holds `offset`."""
        found = [data for _, after, data in self.batches if after > offset]
        return joined(found[:batch_count])

    def expected(self, offset: int, end: int) -> list[int]:
        """Return the offsets of records in a range."""
        return [each for each in self.offsets if offset <= each < end]


@given(LOGS, STEPS, st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_each_record_is_given_once_and_in_order(
    counts: list[int], steps: list[tuple[str, int]], codec: Codec
) -> None:
    log = Log(counts, codec)
    cursor = Cursor(KEY, 0)
    for step, number in steps:
        before = cursor.position
        given_offsets: list[int] = []
        if step == "add":
            data = log.read(cursor.fetch_offset, number)
            cursor.add(scan(data, cursor.fetch_offset)[0])
        elif step == "records":
            records = cursor.take_records(number)
            assert len(records) <= number
            assert all(each.value == b"v%d" % each.offset for each in records)
            given_offsets = [each.offset for each in records]
        elif step == "bytes":
            records = cursor.take_records(100, number)
            size = sum(len(each.key or b"") + len(each.value or b"") for each in records)
            assert len(records) <= 1 or size <= number
            given_offsets = [each.offset for each in records]
        elif step == "columns":
            columns = cursor.take_columns(number)
            assert len(columns) <= number
            given_offsets = list(memoryview(columns.offset_data).cast("q"))
        elif step == "rewind":
            cursor.rewind()
            assert cursor.fetch_offset == before
        else:
            cursor.seek(number)
            before = number
        if step in ("records", "bytes", "columns") and cursor.has_data:
            assert given_offsets
        check(cursor, log, before, given_offsets)


def check(cursor: Cursor, log: Log, before: int, given_offsets: list[int]) -> None:
    """Compare what was given from `before` on with the log, and the cursor with itself."""
    assert given_offsets == log.expected(before, cursor.position)
    assert cursor.position <= cursor.fetch_offset
    assert (cursor.buffered_bytes > 0) == cursor.has_data
    if not cursor.has_data:
        assert cursor.position == cursor.fetch_offset
    for first, after, _ in log.batches:
        # Of a wrong epoch a leader would say that its log is another one.
        if first < cursor.fetch_offset <= after and cursor.fetch_epoch >= 0:
            assert cursor.fetch_epoch == (first if log.expected(first, after) else -1)
