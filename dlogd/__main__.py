"""Entry point of the daemon: arguments, configuration, real clock, randomness, disk and network.

Exit codes: 0 stopped cleanly; 64 wrong usage; 78 every start fails until somebody acts (wrong
configuration, damaged metadata); 75 try again later (the data directory is locked, an address is in
use); 1 any other failure. `python -X importtime` shows what
a start loads: heavy libraries come in when they are first used.
"""

import argparse
import asyncio
import faulthandler
import gc
import importlib
import logging
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from dlog.errors import ConfigError, DlogError
from dlog.version import VERSION
from dlogd.config.config_digest import digest_of
from dlogd.config.load import examine, load_config
from dlogd.config.schema import Config
from dlogd.node import cluster_timings, secret_files
from dlogd.node.broker import Broker
from dlogd.node.open_files import open_files_needed
from dlogd.node.service import EX_FAILURE, Service, Surroundings, exit_code_of, problems_of
from dlogd.runtime import allocator, cycle_collector, logging_setup
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.name_resolver import share_lookups
from dlogd.runtime.randomness import system_randomness
from dlogd.runtime.sd_notify import Notifier, watchdog_interval_ms
from dlogd.storage.io.engine_choice import open_engine
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.io.posix import PosixDirectory, Reserve, open_directory
from dlogd.storage.segment.segment_names import SEGMENT_NAME
from dlogd.telemetry.delays import GcPauses

log = logging.getLogger(__name__)

DEFAULT_CONFIG = "/etc/dlog/dlog.yaml"
# A thread that waits for the interpreter gets it after this long (the default is 5 ms, which is
# what a finished disk write would wait for behind a busy event loop).
SWITCH_INTERVAL_S = 0.0005
KEPT_FILES_MAX = 256
"""What segments leave to clients, small files and modules that are loaded late."""


class _Parser(argparse.ArgumentParser):
    """An argument parser with the exit code of sysexits.h."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(os.EX_USAGE, f"{self.prog}: {message}\n")


def _parse_arguments(arguments: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    parser = _Parser(prog="dlogd", description="The dlog daemon: a commit log that speaks Kafka.")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(environ.get("DLOG_CONFIG", DEFAULT_CONFIG)),
        help=f"configuration (default: $DLOG_CONFIG, else {DEFAULT_CONFIG})",
    )
    parser.add_argument(
        "--check-config", action="store_true", help="check the configuration and exit"
    )
    parser.add_argument(
        "--preflight",
        action="store_true",
        help="say what a start on this host would stumble over, change nothing and exit",
    )
    parser.add_argument("--version", action="version", version=f"dlogd {VERSION}")
    return parser.parse_args(arguments)


def _complain(error: Exception) -> None:
    for problem in problems_of(error):
        sys.stderr.write(f"dlogd: {problem}\n")


def load_checked(path: Path, environ: Mapping[str, str]) -> Config:
    """Return the configuration of a file.

    Raises ConfigError also for times that do not fit and for secrets that others may read or guess.
    """
    config = load_config(path, environ)
    wrong = _wrong_values(config)
    if wrong:
        raise ConfigError([f"{path}: {each}" for each in wrong])
    return config


def _wrong_values(config: Config) -> list[str]:
    return cluster_timings.problems(config) + secret_files.problems(config, PosixDirectory)


def _preflight(path: Path, environ: Mapping[str, str]) -> int:
    """Say all that a start would stumble over; return the code with which it would end."""
    examined = examine(path, environ)
    config, wrong = examined.config, examined.problems
    if config is None:
        raise ConfigError(wrong)
    if not examined.faulty:
        # Rules between values would blame a default.
        wrong = wrong + _wrong_values(config)
    checks = importlib.import_module("dlogd.preflight.checks")
    findings = checks.findings(config, wrong, sorted(examined.faulty))
    for each in findings:
        sys.stderr.write(f"dlogd: {each.weight.value}: {each.text}\n")
    code: int = importlib.import_module("dlogd.preflight.findings").exit_code_of(findings)
    if code == os.EX_OK:
        sys.stdout.write("dlogd: nothing stands in the way of a start\n")
    return code


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop where it is installed."""
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    share_lookups(loop)
    return loop


def _raise_open_files_limit() -> int:
    """Use all the descriptors that the system grants: segments and connections need many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _reserve(limit: int) -> Reserve | None:
    """Return what segments leave to others: without it nobody could connect any more."""
    kept = min(KEPT_FILES_MAX, limit // 4)
    return None if limit < 0 else Reserve(names=SEGMENT_NAME, count_max=limit - kept)


def _check_open_files(limit: int, connection_count_max: int, partition_count: int) -> None:
    """Warn when descriptors may run out: logs and connections then wait for each other."""
    needed = open_files_needed(connection_count_max, partition_count)
    if 0 <= limit < needed:  # -1: unlimited
        log.warning(
            "The hard limit of open files is small limit=%d needed=%d connections.max=%d"
            " partitions=%d; raise it (LimitNOFILE, ulimit -Hn) or lower connections.max",
            limit,
            needed,
            connection_count_max,
            partition_count,
        )


def _run(config: Config, config_path: Path, environ: Mapping[str, str]) -> int:
    allocator.tune(environ)
    control = logging_setup.configure(config.log.format, config.log.level)
    faulthandler.enable()  # the watchdog's SIGABRT leaves the stack on standard error
    open_files_max = _raise_open_files_limit()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    clock = SystemClock()
    engine = open_engine(config.io.engine, loop, read_memory_bytes=config.read.memory_bytes)
    broker = Broker(
        config,
        loop=loop,
        clock=clock,
        randomness=system_randomness(),
        open_directory=partial(open_directory, reserve=_reserve(open_files_max)),
        engine=engine,
        # The service exists before anything of the broker runs.
        on_failure=lambda reason: service.fail(reason),
    )

    def on_started() -> None:
        partition_count = len(broker.replicas.by_id) if broker.replicas is not None else 0
        _check_open_files(open_files_max, config.connections.max, partition_count)
        cycle_collector.settle()

    pauses = GcPauses(clock, broker.telemetry.loop)
    pauses.install()
    around = Surroundings(
        loop=loop,
        clock=clock,
        notifier=Notifier(environ.get("NOTIFY_SOCKET")),
        watchdog_interval_ms=watchdog_interval_ms(environ, os.getpid()),
        run_blocking=engine.run,
        load_config=lambda: load_checked(config_path, environ),
        set_log_level=control.set_level,
        log_lines_dropped=lambda: control.dropped_count,
        on_started=on_started,
        host_name=os.uname().nodename,
    )
    service = Service(broker, config, around)
    try:
        code = loop.run_until_complete(service.run())
    except BaseException:
        _end(broker, engine, EX_FAILURE)
        raise
    pauses.remove()
    _end(broker, engine, code)
    loop.close()
    return code


def _end(broker: Broker, engine: Engine, code: int) -> None:
    """Close the engine; where something hangs in it, end the process without waiting for that."""
    if broker.hanging:
        logging.shutdown()
        os._exit(code)
    engine.close()


def _hide_hypothesis() -> None:
    """Keep kio from registering its types with hypothesis, where a developer has that installed:
    0.2 s and 15 MB that a daemon has no use for.
    """
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until it is told to stop; return the exit code."""
    _hide_hypothesis()
    gc.disable()  # nothing that the start builds is garbage; `garbage.settle` enables it
    environ = dict(os.environ)
    parsed = _parse_arguments(sys.argv[1:] if arguments is None else arguments, environ)
    try:
        if parsed.preflight:
            return _preflight(parsed.config, environ)
        config = load_checked(parsed.config, environ)
    except ConfigError as error:
        _complain(error)
        return os.EX_CONFIG
    if parsed.check_config:
        digest = digest_of(config)
        sys.stdout.write(f"dlogd: {parsed.config} is correct, its digest is {digest}\n")
        return os.EX_OK
    try:
        return _run(config, parsed.config, environ)
    except (OSError, DlogError) as error:
        _complain(error)
        return exit_code_of(error)


if __name__ == "__main__":
    sys.exit(main())
