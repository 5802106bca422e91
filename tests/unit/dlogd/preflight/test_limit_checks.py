"""Limits of the system before a start, and the exit code that findings make."""

import os
from pathlib import Path

import pytest

from dlogd.config.choices import IoEngineKind
from dlogd.config.schema import build
from dlogd.node.open_files import open_files_needed
from dlogd.preflight import limit_checks
from dlogd.preflight.findings import Finding, Weight, exit_code_of, later, never, note

CONFIG = build({"connections.max": 100})


@pytest.mark.parametrize(
    ("hard", "count"),
    [(-1, 0), (open_files_needed(100, 40), 0), (open_files_needed(100, 40) - 1, 1)],
)
def test_open_files_must_be_enough_for_the_logs(
    monkeypatch: pytest.MonkeyPatch, hard: int, count: int
) -> None:
    monkeypatch.setattr(limit_checks.resource, "getrlimit", lambda _: (hard, hard))
    found = [
        each for each in limit_checks.problems(CONFIG, 40, runs=True) if "LimitNOFILE" in each.text
    ]
    assert [each.weight for each in found] == [Weight.NEVER] * count


def _aio(folder: Path, most: int, engine: IoEngineKind) -> list[Finding]:
    (folder / "aio-max-nr").write_text(f"{most}\n")
    (folder / "aio-nr").write_text("1000\n")
    return list(limit_checks._asynchronous_io(build({"io.engine": engine}), folder))


def test_asynchronous_io_must_have_room(tmp_path: Path) -> None:
    needed = limit_checks.EVENTS_MAX + limit_checks.DIRECTORY_EVENTS_MAX
    assert _aio(tmp_path, 1000 + needed, IoEngineKind.AIO) == []
    (found,) = _aio(tmp_path, 999 + needed, IoEngineKind.AIO)
    assert found.weight is Weight.NEVER and "sysctl -w fs.aio-max-nr=" in found.text
    (found,) = _aio(tmp_path, 999 + needed, IoEngineKind.AUTO)
    assert found.weight is Weight.NOTE and "until then threads do the I/O" in found.text


def test_a_kernel_that_does_not_say_is_no_problem(tmp_path: Path) -> None:
    assert list(limit_checks._asynchronous_io(CONFIG, tmp_path)) == []


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([], os.EX_OK),
        ([note("a")], os.EX_OK),
        ([note("a"), later("b")], os.EX_TEMPFAIL),
        ([later("b"), never("c"), note("a")], os.EX_CONFIG),
    ],
)
def test_the_worst_finding_is_the_exit_code(findings: list[Finding], code: int) -> None:
    assert exit_code_of(findings) == code
