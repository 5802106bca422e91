"""When daemons stopped and started, as their own systemd says, held against samples from outside.

All hosts of a rig share the monotonic clock of the machine.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from tests.hosts.appliance.sampling import Sample
from tests.hosts.rig.host import Host

UNIT = "dlogd.service"
_STARTED = "39f53479d3a045ac8e11786248231fbf"  # man 1 systemd-catalog: a unit has been started
_TIMES = ("ActiveExit", "InactiveEnter", "ActiveEnter", "ExecMainStart")


@dataclass(frozen=True, slots=True)
class Restart:
    """The last restart of a daemon; times in nanoseconds."""

    node: int
    stopping_ns: int
    """When it was told to stop."""
    stopped_ns: int
    started_ns: int
    """When its new process began."""
    ready_ns: int

    @property
    def start_s(self) -> float:
        """Seconds from the beginning of its new process until that was ready."""
        return (self.ready_ns - self.started_ns) / 1e9


def restart_of(host: Host) -> Restart:
    """Return the last restart on a host; all times are 0 for one that was never stopped."""
    names = [f"{each}TimestampMonotonic" for each in _TIMES]
    command = ["systemctl", "show", UNIT, *(f"--property={each}" for each in names)]
    lines = host.enter(command).stdout.split()
    found = {key: int(text) * 1000 for key, _, text in (line.partition("=") for line in lines)}
    stopping, stopped, ready, started = (found[each] for each in names)
    return Restart(host.number, stopping, stopped, started, ready)


def main_pid(host: Host) -> int:
    """Return the process of the daemon; 0 when it does not run."""
    command = ["systemctl", "show", UNIT, "--property=MainPID", "--value"]
    return int(host.enter(command).stdout)


def starts(host: Host) -> int:
    """Return how often the daemon has become ready on a host, over all its boots."""
    command = ["journalctl", "--quiet", f"--unit={UNIT}", "-o", "json", f"MESSAGE_ID={_STARTED}"]
    lines = host.enter(command).stdout.splitlines()
    return sum(json.loads(line).get("UNIT") == UNIT for line in lines)


def _stopped_too_early(restart: Restart, nodes: set[int], samples: Sequence[Sample]) -> list[str]:
    """Return what the other nodes said last before one was stopped, where that forbids it."""
    found = []
    for node in sorted(nodes - {restart.node}):
        said = [s for s in samples if s.node == node and s.answered_ns < restart.stopping_ns]
        if not said or said[-1].incomplete or set(said[-1].up) != nodes:
            what = said[-1] if said else f"nothing of node {node}"
            found.append(f"node {restart.node} was stopped at {restart.stopping_ns} after {what}")
    return found


def breaches(restarts: Sequence[Restart], samples: Sequence[Sample], since_ns: int) -> list[str]:
    """Return what a rolling operation has done since then that it must not do."""
    nodes = {each.node for each in restarts}
    done = sorted((r for r in restarts if r.stopping_ns > since_ns), key=lambda r: r.stopping_ns)
    if not done:
        return ["nobody was restarted"]
    found = [text for each in done for text in _stopped_too_early(each, nodes, samples)]
    for earlier, later in itertools.pairwise(done):
        if later.stopping_ns < earlier.ready_ns:
            found.append(f"nodes {earlier.node} and {later.node} were down at the same time")
    first = [s for s in samples if since_ns < s.asked_ns and s.answered_ns < done[0].stopping_ns]
    if first[0].controller != done[-1].node:
        found.append(f"the controller {first[0].controller} was not the last: {done}")
    last = {each.node: each for each in samples}
    found += [f"it ends with {each}" for each in last.values() if each.incomplete or each.misplaced]
    return found
