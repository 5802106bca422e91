"""The long form of `test_chaos`: `python -m tests.cluster --minutes 15 --seed 7`.

As root it also cuts the network and harms disks, unless told otherwise.
"""

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from tests.cluster.chaos import Plan, run_chaos
from tests.cluster.hosts import Hosts
from tests.cluster.node_disks import NodeDisks

HISTORIES = Path(__file__).resolve().parents[2] / ".cache" / "chaos"
HISTORIES_KEPT = 20


def main() -> int:
    """Run and print the summary; what failed leaves its directory behind."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=None, help="drawn when not given")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3, help="of each log; 0: no records")
    is_root = os.geteuid() == 0
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--cuts", action=flag, default=is_root, help="also cut the network")
    parser.add_argument("--disks", action=flag, default=is_root, help="also harm disks")
    parser.add_argument("--only", default="", help="only strikes with this in their names")
    options = parser.parse_args()
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    plan = Plan(
        seed=seed,
        duration_s=options.minutes * 60,
        nodes=options.nodes,
        replicas=options.replicas,
        min_isr=options.replicas // 2 + 1,
        only=options.only,
    )
    HISTORIES.mkdir(parents=True, exist_ok=True)
    for old in sorted(HISTORIES.glob("*.jsonl"))[: 1 - HISTORIES_KEPT]:
        old.unlink()
    history = HISTORIES / f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}.jsonl"
    print(f"seed={seed} history={history}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="dlog-chaos-"))
    with (
        Hosts(options.nodes) if options.cuts else nullcontext() as hosts,
        NodeDisks(directory, options.nodes) if options.disks else nullcontext() as disks,
    ):
        work = run_chaos(directory / "nodes", plan, hosts=hosts, disks=disks, history=history)
        try:
            summary = asyncio.run(work)
        except BaseException:
            print(f"seed={seed}: what is left is in {directory}", file=sys.stderr)
            raise
    print("\n".join(summary.lines()))
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
