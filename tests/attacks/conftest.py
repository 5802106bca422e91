"""The scene of each attack, and the table of all bounds in the end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attacks.scene import IS_LONG, Row, Scene

PROPERTY = "attack row"
HEADS = ("attack", "bound", "measured", "verdict")

_rows: list[Row] = []


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Scene]:
    """Give the scene of an attack, named as its test is."""
    name = request.node.name.removeprefix("test_").replace("_", " ")
    scene = Scene(name, tmp_path)
    yield scene
    for row in scene.rows:
        record_property(PROPERTY, row.encode())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the rows; with workers this runs in the controller."""
    if report.when == "teardown":
        _rows.extend(
            Row.decode(str(text)) for name, text in report.user_properties if name == PROPERTY
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of the long form."""
    if not IS_LONG or not _rows:
        return
    terminalreporter.section("attacks")
    lines = [HEADS, *(row.cells for row in _rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADS))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminalreporter.line("  ".join(cells).rstrip())
