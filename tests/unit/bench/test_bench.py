"""What the bench's numbers rest on: correct batches, honest bounds, medians."""

import asyncio
import struct
from copy import copy
from pathlib import Path

import pytest

from bench import arena, before, plot, report
from bench.load import latency, nats, segment_times, walk, wire
from bench.load.clients import task
from bench.rows.row import Target, medians_of
from bench.run import all_rows
from dlog.batch import header, native, records
from dlog.compression import Codec
from tests.tidy import sources


def test_batches_are_well_formed() -> None:
    batch = wire.batch(64, 1024)
    view = memoryview(batch)
    found = header.decode_header(view)
    assert (found.batch_bytes, found.record_count) == (len(batch), 64)
    assert header.verify_crc(view, 0, len(batch))
    decoded = records.decode(view)
    assert [len(record.value or b"") for record in decoded] == [1024] * 64
    assert all(record.key is None for record in decoded)
    assert list(wire.batches(memoryview(batch + batch[:100]))) == [(64, 64)]


def test_frames_say_their_length() -> None:
    for frame in (
        wire.produce("topic", 3, wire.batch(1, 100)),
        wire.fetch("topic", 3, 7, bytes_max=1000),
    ):
        assert struct.unpack_from(">i", frame) == (len(frame) - 4,)


def test_percentiles() -> None:
    found = latency.summary([n * 1000 for n in range(1, 1001)])
    assert found == {"p50_us": 501, "p99_us": 991, "p999_us": 1000, "max_us": 1000}
    assert latency.summary([])["p50_us"] == 0


def test_targets() -> None:
    medians = {"dlog": {"x": 3.0}, "kafka": {"x": 2.0}}
    at_least = Target(metric="x", at_least=1.5)
    assert at_least.value(medians) == 1.5
    assert at_least.met(1.5)
    assert not at_least.met(1.49)
    at_most = Target(metric="x", theirs=None, at_most=2.9)
    assert at_most.value(medians) == 3.0
    assert not at_most.met(3.0)
    assert Target(metric="x", theirs="nats", at_most=1).value(medians) is None


def test_bounds_in_words() -> None:
    assert Target(metric="x", at_least=0.5).text() == "≥ 0.5x"
    assert Target(metric="x", theirs=None, at_least=3e6).text() == "≥ 3,000,000"
    assert Target(metric="x", theirs=None, at_most=150).text() == "≤ 150"


@pytest.mark.parametrize("count", [1, 999, 1000, 12_345])
def test_clients_get_the_same_records_one_by_one_and_in_chunks(count: int) -> None:
    load = task.Task("here:1", "topic", 4, count, 100)
    one_by_one = list(load.each())
    chunk = load.chunk()
    in_chunks = [value for size in load.chunk_sizes() for value in chunk[:size]]
    assert one_by_one == in_chunks
    assert len(one_by_one) == count
    assert task.checksum(one_by_one) == task.checksum_of(count, 100)
    assert task.checksum(one_by_one[1:]) != task.checksum_of(count, 100)


def test_a_reader_that_missed_something_has_no_result() -> None:
    load = task.Task("here:1", "topic", 4, 10, 100)
    assert task.result_of(load, task.Seen(10, 1000, 7), 2.0, 1.0)["records_per_s"] == 5
    for seen in (task.Seen(9, 900), task.Seen(10, 999)):
        with pytest.raises(SystemExit, match="were read"):
            task.result_of(load, seen, 2.0, 1.0)


def test_medians() -> None:
    runs = {"dlog": [{"a": 1.0}, {"a": 9.0}, {"a": 2.0}], "nats": []}
    assert medians_of(runs) == {"dlog": {"a": 2.0}}
    assert medians_of({"dlog": [{"gap_max_s": 1.0}] * 2 + [{"gap_max_s": 9.0}]})["dlog"] == {
        "gap_max_s": 9.0
    }


def test_every_row_has_a_name_a_place_in_the_table_and_metrics() -> None:
    rows = all_rows()
    assert [row.name for row in rows] == list(report.SHOWN)
    for row in rows:
        assert row.title
        assert set(report.SHOWN[row.name]) <= set(report.METRICS)
        assert {target.metric for target in row.targets} <= set(report.METRICS)


@pytest.mark.parametrize("met", [True, False])
def test_results_become_a_table_and_a_plot(tmp_path: Path, met: bool) -> None:
    target = {
        "metric": "mb_per_s",
        "ours": "dlog",
        "theirs": "kafka",
        "bound": "≥ 1.5x",
        "value": 2.0 if met else 1.0,
        "met": met,
    }
    row = {
        "name": "prebuilt",
        "title": "prebuilt batches",
        "date": "2026-01-01",
        "runs": 5,
        "quick": False,
        "targets": [target],
        "all": {},
        "medians": {"dlog": {"mb_per_s": 600.0}, "kafka": {"mb_per_s": 300.0}},
    }
    results = report.load(tmp_path / "results.json")
    report.merge(results, row, {"commit": "abc", "system": "Linux"}, "python -m bench")
    report.save(results, tmp_path / "results.json")
    plot.draw(results, tmp_path / "results.json")
    text = (tmp_path / "results.md").read_text()
    assert ("missed" in text) != met
    assert "dlog: 600 MB/s" in text
    assert (tmp_path / "node.png").stat().st_size > 1000
    assert report.load(tmp_path / "results.json") == results


def test_every_picture_can_be_read_at_once() -> None:
    results = report.load(sources.ROOT / "bench" / "results" / "results.json")
    for names in plot.PICTURES.values():
        assert set(names) <= set(report.SHOWN)
        assert 0 < len(plot.bars_of(results, names)) <= plot.BARS_MAX


def test_acknowledgements_of_jetstream_are_counted() -> None:
    connection = nats.Connection.__new__(nats.Connection)
    ack = b'MSG _INBOX.bench 1 30\r\n{"stream":"BENCH", "seq":12}\r\n'

    class Socket:
        """Gives the bytes of three acknowledgements, cut in the middle."""

        def __init__(self) -> None:
            self.parts = [ack + ack[:20], ack[20:] + ack]

        def recv(self, _: int) -> bytes:
            return self.parts.pop(0)

    connection.socket = Socket()  # type: ignore[assignment]
    connection._data = b""
    assert connection.answers() == 1
    assert connection.answers() == 2


def test_a_version_before_takes_part_in_the_rows_of_one_node(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make install"):
        before.take_part(all_rows(), tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "dlogd").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(before, "CONTENDERS", found := dict(arena.CONTENDERS))
        chosen = before.take_part([copy(row) for row in all_rows()], tmp_path)
        assert before.BEFORE in found
    assert {"produce-1k", "round-trip"} <= {row.name for row in chosen}
    assert {tuple(row.contenders) for row in chosen} == {("dlog-before", "dlog")}


def test_neighbouring_runs_are_compared_where_the_machine_drifts() -> None:
    olds, news = [10.0, 20.0, 40.0, 80.0], [11.0, 22.0, 44.0, 60.0]
    runs = {
        name: [{"p50_us": value} for value in values]
        for name, values in (("dlog-before", olds), ("dlog", news))
    }
    row = {"name": "r", "all": runs, "medians": medians_of(runs)}
    line = before.markdown({"rows": {"r": row}}, Path(__file__).parent, "c").splitlines()[-1]
    assert line == "| r | p50, us | 30 | 33 | 1.100x | 1.100 to 1.100 |"


def test_a_walk_is_measured_only_if_it_reads_the_records() -> None:
    found = walk.measure(16, 100, 0)
    assert all(value > 0 for value in found.values())
    assert {"walk_ns", "crc_ns", "twin_ns", "crc_ratio", "twin_ratio"} == set(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "walk_records", lambda *_: (walk.BASE_MS, 0, walk.BASE_MS))
        with pytest.raises(SystemExit, match="other times"):
            walk.measure(16, 100, 0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_times_of_a_segment_are_measured_in_a_real_log(tmp_path: Path, codec: Codec) -> None:
    found = asyncio.run(segment_times.measure(tmp_path / "log", codec, 10, 1 << 18))
    assert all(value > 0 for value in found.values())
    assert set(report.SHOWN["segment-times"]) <= set(found)
