"""A cursor hands out each record once and in order, however it is filled and emptied."""

from hypothesis import example, given
from hypothesis import strategies as st

from dlog.client.consuming.fetched_batches import scan
from dlog.client.consuming.partition_cursor import PartitionCursor
from dlog.compression import Codec
from dlog.types import PartitionId, TopicPartition
from tests.fakes.bad_batches import no_gzip
from tests.fakes.batches import COMMIT, batch, joined, marker

KEY = TopicPartition("t", PartitionId(0))

# A log: batches of so many records; 0 stands for a control batch, -n for one of n records that
# cannot be decoded.
LOGS = st.lists(st.integers(0, 5), max_size=12)
BAD_LOGS = st.lists(st.integers(-2, 5), max_size=12)
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
        self.bad: list[tuple[int, int]] = []
        end = 0
        for count in counts:
            if count < 0:
                data = no_gzip(end, -count, leader_epoch=end)
                self.bad.append((end, end - count))
            elif count:
                data = batch(end, count, codec=codec, leader_epoch=end)
                self.offsets += range(end, end + count)
            else:
                data = marker(end, 7, COMMIT)
            self.batches.append((end, end + max(1, abs(count)), data))
            end += max(1, abs(count))
        self.end = end

    def read(self, offset: int, batch_count: int) -> memoryview:
        """Return some whole batches, the first the one that holds `offset`."""
        found = [data for _, after, data in self.batches if after > offset]
        return joined(found[:batch_count])

    def expected(self, offset: int, end: int) -> list[int]:
        """Return the offsets of records in a range."""
        return [each for each in self.offsets if offset <= each < end]


@given(LOGS | BAD_LOGS, STEPS, st.sampled_from([Codec.NONE, Codec.LZ4]))
@example([1, -2, 3], [("add", 3), ("records", 9), ("records", 9)], Codec.NONE)
@example([1, 1, -1, 3], [("add", 4), ("columns", 9), ("columns", 1), ("columns", 1)], Codec.LZ4)
def test_each_record_is_given_once_and_in_order(
    counts: list[int], steps: list[tuple[str, int]], codec: Codec
) -> None:
    log = Log(counts, codec)
    cursor = PartitionCursor(KEY, 0)
    for step, number in steps:
        before = cursor.position
        given_offsets: list[int] = []
        if step == "add":
            if cursor.bad_batch is not None:
                continue  # nothing is fetched then
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
        if cursor.bad_batch is not None:
            assert cursor.bad_batch[1:3] in log.bad
            assert cursor.bad_batch.offset <= cursor.position < cursor.bad_batch.resume_offset
            assert not cursor.has_data
        check(cursor, log, before, given_offsets)


def check(cursor: PartitionCursor, log: Log, before: int, given_offsets: list[int]) -> None:
    """Compare what was given from `before` on with the log, and the cursor with itself."""
    assert given_offsets == log.expected(before, cursor.position)
    # None is passed over.
    assert not [each for each in log.bad if before < each[1] <= cursor.position]
    assert cursor.position <= cursor.fetch_offset
    assert (cursor.buffered_bytes > 0) == cursor.has_data
    if not cursor.has_data:
        assert cursor.position == cursor.fetch_offset
    for first, after, _ in log.batches:
        # Of a wrong epoch a leader would say that its log is another one.
        if first < cursor.fetch_offset <= after and cursor.fetch_epoch >= 0:
            is_marker = not log.expected(first, after) and (first, after) not in log.bad
            assert cursor.fetch_epoch == (-1 if is_marker else first)
