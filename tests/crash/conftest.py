"""Disks that somebody fills, and clients that do not wait for long: for all tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.client.cluster import partition_calls
from tests.crash.disks import Mounted, mounted_disk


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    """Mount a disk of its own for a test."""
    with mounted_disk(tmp_path, str(request.param)) as found:
        yield found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take an append on a full disk for refused after 2 s, not 6."""
    monkeypatch.setattr(partition_calls, "ANSWER_SLACK_S", 1.0)
