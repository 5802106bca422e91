"""The package builds into a wheel with a compiler and without one, and both wheels work."""

import subprocess
import sys

from tests.tidy import sources

ROOT = sources.ROOT


def test_wheels_build_with_and_without_a_compiler() -> None:
    command = [sys.executable, "-m", "scripts.wheels"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compiled ok" in done.stdout and "pure ok" in done.stdout
