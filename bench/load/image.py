"""What the metadata of many partitions costs one node: memory of the image, time to read it again.

Two processes: the first makes the directory (of one voter), the second opens it as
a node does that starts. All is in the log: no snapshot was made yet.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench.load.proposals import Node
from bench.peers.server import ROOT, free_port, usage_of

IN_FLIGHT = 256


async def _make(folder: Path, count: int) -> None:
    node = Node(0, folder, [free_port()])
    await node.open()
    await node.role()
    await node.fill(topic_count=0)
    names = iter([f"topic-{number:05}" for number in range(count)])

    async def make_some() -> None:
        for name in names:
            await node.configure(await node.create(name))

    await asyncio.gather(*(make_some() for _ in range(IN_FLIGHT)))
    await node.store.close()


async def _read(folder: Path, count: int) -> dict[str, float]:
    gc.collect()
    before = usage_of(os.getpid()).rss_bytes
    node = Node(0, folder, [free_port()])
    began = time.perf_counter()
    await node.open()
    await node.role()
    seconds = time.perf_counter() - began
    gc.collect()
    used = usage_of(os.getpid()).rss_bytes - before
    if len(node.store.image.topics) != count:
        raise RuntimeError(f"{len(node.store.image.topics)} topics instead of {count}")
    await node.store.close()
    return {"replay_s": seconds, "image_mb": used / 1e6}


def main() -> int:
    """Make the directory in a process of its own, then read it and print what that took."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.image")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--make", action="store_true")
    options = parser.parse_args()
    if options.make:
        options.folder.mkdir(parents=True)
        asyncio.run(_make(options.folder, options.partitions))
        return 0
    command = [sys.executable, "-m", "bench.load.image", "--make", "--folder", str(options.folder)]
    command += ["--partitions", str(options.partitions)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    print(json.dumps(asyncio.run(_read(options.folder, options.partitions))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
