"""Earlier versions of dlog, out of the history of this repository, for upgrades in tests."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("dlog", "dlogd", "dlogctl")


def extract(commit: str, folder: Path) -> Path:
    """Put the packages of a commit into a folder, in Python alone; skip the test without it."""
    command = ["git", "-C", str(ROOT), "archive", commit, "--", *PACKAGES]
    packed = subprocess.run(command, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"the history has no {commit}: a shallow clone, or no repository")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder
