"""Judge histories that were kept: `python -m tests.histories FILE.jsonl ...`."""

import sys
from pathlib import Path

from tests.histories.checkers import check
from tests.histories.files import load


def main() -> int:
    """Print each breach, and how much was judged."""
    history = load(map(Path, sys.argv[1:]))
    breaches = check(history)
    print("\n".join(breaches))
    print(f"{len(history.sends)} sends, {len(history.polls)} polls: {len(breaches)} breaches")
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main())
