"""A process that appends is killed again and again: what it promised is there, in order, once.

On real files, with both engines, with and without O_DIRECT, under every flush policy. The page
cache survives here; `tests/property/test_log_machine.py` cuts the power.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlogd.storage.io.engine_choice import open_engine
from tests.crash.log_child import config_of, open_log, value_of
from tests.fakes.logs import read_batches, values_in

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("DLOG_KILL_ROUNDS", "3"))


def run_and_kill(arguments: list[str], seconds: float) -> list[int]:
    """Run a child, kill it some time after its log is open; return what it promised, in order."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.log_child", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    first = child.stdout.read(8)
    assert len(first) == 8, "the log could not be opened"
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    data = first + child.stdout.read()
    assert child.wait() == -signal.SIGKILL, "it ended by itself"
    return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data) - 7, 8)]


async def check(path: str, engine_kind: str, direct_io: str, policy: str) -> int:
    """Open the log, compare every record with what it must be; return where it ends."""
    engine = open_engine(engine_kind, asyncio.get_running_loop())
    plog = await open_log(path, config_of(direct_io, policy), engine)
    try:
        found = values_in(await read_batches(plog, 0, 1 << 20))
        assert [offset for offset, _ in found] == list(range(plog.log_end_offset))
        assert all(value == value_of(offset) for offset, value in found)
        return plog.log_end_offset
    finally:
        await plog.close(clean=False)
        engine.close()


@pytest.mark.parametrize("policy", ["always", "interval", "never"])
@pytest.mark.parametrize("direct_io", ["on", "off"])
@pytest.mark.parametrize("engine_kind", ["aio", "threads"])
def test_what_was_promised_survives(
    tmp_path: Path, engine_kind: str, direct_io: str, policy: str
) -> None:
    rng = random.Random(f"{engine_kind}{direct_io}{policy}")
    arguments = [str(tmp_path), engine_kind, direct_io, policy]
    end = 0
    for _ in range(ROUNDS):
        promised = run_and_kill(arguments, rng.uniform(0.0, 0.25))
        assert promised[0] >= end, "what was recovered once is kept"
        assert promised == sorted(promised)
        end = asyncio.run(check(*arguments))
        assert end >= promised[-1], f"lost {promised[-1] - end} promised records"
    assert end > 0
