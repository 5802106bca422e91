"""Runs the tests that have just failed once more, alone, if chance can be why; for `.ci/run`.

python -m scripts.repeat_failed

Exit code 0 when all of them may be repeated, are few, and pass now; they are named as flaky: each
is a defect, of the test or of the product, to be mended. Tests in which nothing is left to chance
(golden, property, simulation, tidy) are never repeated. docs/decisions/0027-repeated-tests.md.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
FOLDERS = (
    "attacks",
    "behaviour",
    "clients",
    "cluster",
    "crash",
    "daemon",
    "fuzz",
    "hosts",
    "spark",
    "suites",
    "unit",
)
FILES_MAX = 3


def refusal(failed: Iterable[str]) -> str | None:
    """Return why these tests are not repeated, None when they are."""
    nodes = sorted(failed)
    if not nodes:
        return "no test is known to have failed: it was something else"
    for node in nodes:
        folder = node.removeprefix("tests/").partition("/")[0]
        if "::" not in node or folder not in FOLDERS:
            return f"{node} is not a test of real processes, sockets or threads"
    files = {node.partition("::")[0] for node in nodes}
    if len(files) > FILES_MAX:
        return f"tests of {len(files)} files failed, more than {FILES_MAX}"
    return None


def main() -> int:
    """Repeat what failed; return the exit code."""
    failed = json.loads(LAST_FAILED.read_text()) if LAST_FAILED.exists() else {}
    why_not = refusal(failed)
    if why_not is not None:
        print(f"repeat: not repeated: {why_not}", flush=True)
        return 1
    print("repeat: alone this time: " + ", ".join(sorted(failed)), flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "--lf", "--lfnf=none"], cwd=ROOT, check=False
    )
    if done.returncode == 0:
        for node in sorted(failed):
            print(f"repeat: FLAKY, to be mended: {node}", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
