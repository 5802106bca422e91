"""The rows about clients, with small loads: every client does what its row says, and is checked."""

from pathlib import Path

import pytest

from bench.arena import Arena
from bench.rows import clients, codec
from bench.rows.row import Row
from bench.run import run_row

ROWS = {row.name: row for row in [*clients.rows(), *codec.rows()]}


@pytest.fixture(name="few", autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arena, "pick", lambda _, full, quick: min(quick, 1500))


@pytest.mark.parametrize("name", [name for name in ROWS if not name.endswith("-1k")])
def test_a_row_measures_every_client(tmp_path: Path, name: str) -> None:
    row: Row = ROWS[name]
    found = run_row(row, tmp_path, runs=1, quick=True, only=[], say=lambda _: None)
    assert list(found["medians"]) == list(row.contenders)
    assert all(target["value"] > 0 for target in found["targets"])


def test_records_that_are_missing_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arena, "record_count", lambda *_: 7)
    with pytest.raises(RuntimeError, match="7 of"):
        run_row(
            ROWS["client-produce-many-100"],
            tmp_path,
            runs=1,
            quick=True,
            only=["confluent-kafka"],
            say=lambda _: None,
        )


def test_records_that_are_others_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "checksum_of", lambda *_: 7)
    with pytest.raises(RuntimeError, match="something else"):
        run_row(
            ROWS["client-consume-many-100"],
            tmp_path,
            runs=1,
            quick=True,
            only=["confluent-kafka"],
            say=lambda _: None,
        )
