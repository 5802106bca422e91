"""Plays of `deploy/ansible` on the hosts of a rig, started as an operator starts them.

`ansible-playbook` runs in the rig's network namespace, which has no route out, with a home of its
own. A play that prints a warning fails its test.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.appliance.bundles import ROOT
from tests.hosts.rig.rig import Rig

PLAYBOOKS = ROOT / "deploy" / "ansible"
CLUSTER = "appliance"
PLAY_S = 600.0
END_S = 60.0
PRESS_AGAIN_S = 3.0
TAIL_LETTERS = 1200
_RECAP = re.compile(
    r"^(?P<host>\S+) +: ok=(?P<ok>\d+) +changed=(?P<changed>\d+) +unreachable=(?P<unreachable>\d+)"
    r" +failed=(?P<failed>\d+)",
    re.MULTILINE,
)
_WARNING = re.compile(r"\[(?:DEPRECATION )?WARNING\].*")


@dataclass(frozen=True, slots=True)
class Recap:
    """What a play did on one host: numbers of tasks."""

    ok: int
    changed: int
    unreachable: int
    failed: int


@dataclass(frozen=True, slots=True)
class Played:
    """A play that has ended."""

    code: int
    output: str
    seconds: float

    @property
    def recap(self) -> dict[str, Recap]:
        """The last lines of the output, by host."""
        return {host: Recap(*map(int, numbers)) for host, *numbers in _RECAP.findall(self.output)}

    @property
    def changed(self) -> int:
        """How many tasks changed something, on all hosts."""
        return sum(each.changed for each in self.recap.values())

    @property
    def changes(self) -> list[str]:
        """The tasks that changed something; all output if only the recap tells of changes."""
        parts = self.output.split("\nTASK [")
        found = [part.partition("]")[0] for part in parts if "\nchanged: [" in part]
        return found or [self.output] * (self.changed > 0)

    @property
    def order(self) -> list[str]:
        """The hosts that the play wanted to restart, in its order."""
        return _order(self.output)

    @property
    def warnings(self) -> list[str]:
        """The warnings in the output."""
        return _WARNING.findall(self.output)

    @property
    def end(self) -> str:
        """The last words, from the first failure on where there is one."""
        at = re.search(r"^(fatal|\[ERROR\]|failed):?", self.output, re.MULTILINE)
        return self.output[at.start() :] if at else self.output[-TAIL_LETTERS:]

    @property
    def words(self) -> str:
        """The output without line breaks, as sentences are looked for."""
        return re.sub(r"\s+", " ", self.output)


def _order(output: str) -> list[str]:
    """Return the hosts of the nodes that a play wants to restart; host hN has node N."""
    said = output.partition("TASK [Say who is due]")[2].partition("\n\n")[0]
    return [f"h{node}" for node in re.findall(r"\bnode (\d+):", said)]


class Playing:
    """A play that runs. Owner: a test, which awaits its end or ends it."""

    def __init__(self, process: subprocess.Popen[str], may_warn: bool) -> None:
        self._process = process
        self._may_warn = may_warn
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._is_over = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    @property
    def output(self) -> str:
        """What the play has said."""
        with self._news:
            return "".join(self._lines)

    @property
    def order(self) -> list[str]:
        """The hosts that the play wants to restart, in its order."""
        return _order(self.output)

    def await_task(self, name: str, count: int = 1, timeout_s: float = PLAY_S) -> None:
        """Return when tasks of this name have begun so often; raise AssertionError otherwise."""
        head = f"TASK [{name}]"
        deadline = time.monotonic() + timeout_s
        with self._news:
            while sum(head in line for line in self._lines) < count:
                left_s = deadline - time.monotonic()
                assert not self._is_over and left_s > 0, f"no {head}:\n{''.join(self._lines)}"
                self._news.wait(left_s)

    def interrupt(self) -> None:
        """Press Ctrl-C: the whole foreground group of the terminal gets the signal.

        Python loses a KeyboardInterrupt that comes while it forks; an operator presses again.
        """
        while self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(PRESS_AGAIN_S)

    def kill(self) -> None:
        """Kill the process and its workers, as a loss of the operator's machine does."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def end(self, timeout_s: float = PLAY_S) -> Played:
        """Wait for the end; raise AssertionError for a play that hangs or warns."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the play hangs after {timeout_s} s:\n{self.output}") from None
        # A shared connection of ssh keeps standard error open; the play's own words have come.
        self._reader.join(END_S)
        played = Played(code, self.output, time.monotonic() - self._began)
        assert self._may_warn or not played.warnings, played.warnings
        return played


class Plays:
    """The operator's side: an inventory, a home, and ansible-playbook."""

    def __init__(self, rig: Rig, folder: Path, playbooks: Path = PLAYBOOKS) -> None:
        self.rig = rig
        self.folder = folder
        self.playbooks = playbooks
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.inventory = folder / "hosts.ini"
        self.write_inventory()

    def with_playbooks(self, playbooks: Path) -> "Plays":
        """Return the same operator with other playbooks."""
        return Plays(self.rig, self.folder, playbooks)

    def write_inventory(
        self,
        own: Mapping[str, str] | None = None,
        shared: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
        hosts: Sequence[int] = (),
    ) -> None:
        """Write the inventory of all hosts, or of those with these numbers, in this order.

        `own` adds to the lines of hosts by their names.
        """
        lines = ["[dlog]"]
        places = list(zip(self.rig.hosts, self.rig.inventory_lines(), strict=True))
        for host, line in [places[each - 1] for each in hosts] or places:
            rack = "abc"[host.number % 3]
            words = [line, f"dlog_node_id={host.number}", f"dlog_rack={rack}"]
            lines.append(" ".join([*words, (own or {}).get(host.name, "")]).rstrip())
        variables = {"dlog_cluster_id": CLUSTER, **(shared or {})}
        lines += ["", "[dlog:vars]"]
        lines += [f"{key}={text}" for key, text in variables.items() if key not in without]
        self.inventory.write_text("\n".join([*lines, "", "[monitoring]", ""]))

    def start(self, playbook: str, *arguments: str, may_warn: bool = False) -> Playing:
        """Start a play."""
        return self._run("ansible-playbook", f"{playbook}.yml", *arguments, may_warn=may_warn)

    def ping(self) -> None:
        """Leave an open connection to every host, as each play does for a minute."""
        played = self._run("ansible", "dlog", "-m", "ansible.builtin.ping").end()
        assert played.code == 0, played.output

    def _run(self, program: str, *arguments: str, may_warn: bool = False) -> Playing:
        programs = Path(sys.prefix) / "bin"
        environment = {
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "ANSIBLE_NOCOLOR": "1",
        }
        process = self.rig.popen(
            [str(programs / program), "-i", str(self.inventory), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self.playbooks,
            env=environment,
            start_new_session=True,
        )
        return Playing(process, may_warn)

    def play(
        self, playbook: str, *arguments: str, may_warn: bool = False, timeout_s: float = PLAY_S
    ) -> Played:
        """Run a play to its end."""
        return self.start(playbook, *arguments, may_warn=may_warn).end(timeout_s)

    def must(self, playbook: str, *arguments: str, timeout_s: float = PLAY_S) -> Played:
        """Run a play that has to succeed."""
        played = self.play(playbook, *arguments, timeout_s=timeout_s)
        assert played.code == 0, played.end
        return played
