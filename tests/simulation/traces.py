"""Traces of two runs of one seed, in processes of their own, compared line by line."""

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def trace_of(module: str, *options: str, hash_seed: int) -> list[str]:
    """Return all lines that a run prints; the hashes of strings are salted with `hash_seed`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout.splitlines()


def same_trace(module: str, *options: str) -> list[str]:
    """Run a seed twice and return its trace; raise AssertionError at the first other line."""
    first, second = (trace_of(module, *options, hash_seed=salt) for salt in (1, 4711))
    assert_same(first, second)
    return first


def assert_same(first: Sequence[str], second: Sequence[str]) -> None:
    """Raise AssertionError with the first line that differs, and the one before."""
    for number, (one, other) in enumerate(zip_longest(first, second), 1):
        if one != other:
            before = first[number - 2] if number > 1 else ""
            raise AssertionError(f"line {number}, after {before!r}:\n{one}\n{other}")
