"""The long form of `test_chaos`: `python -m tests.cluster --minutes 15 --seed 7`."""

import argparse
import asyncio
import random
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from tests.cluster.chaos import run_chaos
from tests.cluster.hosts import Hosts


def main() -> int:
    """Run and print the summary; what failed leaves its directory behind."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=None, help="drawn when not given")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cuts", action="store_true", help="also cut the network; needs root")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    with (
        tempfile.TemporaryDirectory(prefix="dlog-chaos-") as directory,
        Hosts(options.nodes) if options.cuts else nullcontext() as hosts,
    ):
        try:
            summary = asyncio.run(
                run_chaos(
                    Path(directory),
                    seed=seed,
                    duration_s=options.minutes * 60,
                    nodes=options.nodes,
                    hosts=hosts,
                )
            )
        except BaseException:
            kept = Path(directory).rename(f"{directory}-failed")
            print(f"seed={seed}: what is left is in {kept}", file=sys.stderr)
            Path(directory).mkdir()
            raise
    print("\n".join(summary.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
