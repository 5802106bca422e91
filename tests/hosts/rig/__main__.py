"""The rig by hand: python -m tests.hosts.rig up, then ssh, enter, crash, cut ..., then down."""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.hosts.rig.commands import RigError
from tests.hosts.rig.host import Host
from tests.hosts.rig.image import CACHE
from tests.hosts.rig.rig import NAME, NET, Rig
from tests.hosts.rig.why_not import why_not

VERBS = {
    "start": "switch a host on and wait until it has booted",
    "stop": "switch a host off in good order",
    "crash": "kill everything in a host at once",
    "cut": "pull a host's cable",
    "heal": "plug a host's cable in again",
    "freeze": "stop every process of a host",
    "thaw": "let them go on",
}
COMMAND_S = 24 * 3600.0


def _up(options: argparse.Namespace) -> None:
    reason = why_not()
    if reason:
        raise RigError(reason)
    rig = Rig(options.folder, options.size, options.name, options.net, wait_s=options.wait)
    rig.up()
    rig.keep()
    print("\n".join(rig.inventory_lines()))


def _status() -> None:
    rig = Rig.attach()
    print(f"{rig.name} in {rig.folder}: nsenter --net={rig.namespace} ...")
    for host in rig.hosts:
        print(f"{host.name} {host.address} {f'on, pid {host.init}' if host.is_on else 'off'}")


def _command(host: Host, options: argparse.Namespace) -> int:
    words = [word for word in options.words if word != "--"] or ["hostname"]
    if options.verb == "enter":
        done = host.enter(words, check=False, timeout=COMMAND_S)
    else:
        done = host.ssh(" ".join(words), check=False, timeout=COMMAND_S)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.hosts.rig", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="make the hosts, and leave them up")
    up.add_argument("--folder", type=Path, default=CACHE / "by-hand")
    up.add_argument("--size", type=int, default=3)
    up.add_argument("--name", default=NAME)
    up.add_argument("--net", default=NET)
    up.add_argument("--wait", type=float, default=0.0, help="seconds for another rig to end")
    verbs.add_parser("down", help="end the rig and leave nothing")
    verbs.add_parser("status", help="show the hosts")
    for verb, says in VERBS.items():
        verbs.add_parser(verb, help=says).add_argument("number", type=int)
    for verb in ("enter", "ssh"):
        one = verbs.add_parser(verb, help="run a command in a host")
        one.add_argument("number", type=int)
        one.add_argument("words", nargs=argparse.REMAINDER)
    return parser


def main() -> int:
    """Do what the command line says; return the exit code."""
    options = _parser().parse_args()
    if options.verb == "up":
        _up(options)
    elif options.verb == "status":
        _status()
    elif options.verb == "down":
        Rig.attach().down()
    else:
        host = {each.number: each for each in Rig.attach().hosts}.get(options.number)
        if host is None:
            raise RigError(f"The rig has no host {options.number}.")
        if options.verb in ("enter", "ssh"):
            return _command(host, options)
        getattr(host, options.verb)()
        if options.verb == "start":
            print(host.wait_booted())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RigError, subprocess.SubprocessError) as error:
        sys.exit("\n".join([f"rig: {error}", *getattr(error, "__notes__", ())]))
