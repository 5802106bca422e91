"""Producers of numbered records as a process of their own, and the verdict on what became of them.

    python -m tests.hosts.appliance.records --bootstrap ... --topic ... --history FILE

It says "ready" when every partition has acknowledged something. At the end of its input it stops
writing, reads everything back and judges the history; the last line is the verdict as JSON.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

from dlog.client.admin import Admin
from tests.cluster.readers import read_final
from tests.cluster.senders import Manner, Own, Rdk, SendLog
from tests.histories.checkers import check
from tests.histories.files import Facts, Recorder, load
from tests.histories.history import LogFacts, LogKey

READY_S = 60.0
SHOWN_MAX = 10
KINDS = (Rdk, Own)


async def _keys(bootstrap: list[str], topic: str) -> tuple[list[LogKey], int]:
    """Return the partitions of a topic, and how many replicas they have."""
    async with Admin(bootstrap) as admin:
        view = await admin.describe_topic(topic)
    numbers = sorted(each.partition for each in view.partitions)
    return [LogKey(view.topic_id, topic, each) for each in numbers], view.replication_factor


async def _write(options: argparse.Namespace, log: SendLog) -> list[LogKey]:
    bootstrap = options.bootstrap.split(",")
    keys, replicas = await _keys(bootstrap, options.topic)
    for key in keys:
        log.recorder.add(Facts(key, LogFacts(replicas=replicas)))
    manner = Manner(idempotent=True)
    senders = [
        kind(index, manner, log, random.Random(index), keys, bootstrap)
        for index, kind in enumerate(KINDS)
    ]
    async with asyncio.TaskGroup() as tasks:
        for each in senders:
            tasks.create_task(each.run())
        await log.until_acknowledged(keys, time.monotonic_ns(), READY_S)
        print(json.dumps("ready"), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for each in senders:
            each.stop()
    for final in await read_final(bootstrap, keys):
        log.recorder.add(final)
    return keys


def main() -> int:
    """Write until the input ends; say what became of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.appliance.records")
    parser.add_argument("--bootstrap", required=True, help="all nodes, with commas between")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--history", type=Path, required=True)
    options = parser.parse_args()
    log = SendLog(Recorder(options.history))
    keys = asyncio.run(_write(options, log))
    log.recorder.close()
    breaches = check(load([options.history]))
    counts = log.counts
    verdict = {
        "partitions": len(keys),
        "acknowledged": counts.acknowledged,
        "failed": counts.refused + counts.unknown,
        "errors": counts.reasons,
        "slowest_s": round(log.gap_s_max, 3),
        "breaches": len(breaches),
        "first_breaches": breaches[:SHOWN_MAX],
    }
    print(json.dumps(verdict), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
