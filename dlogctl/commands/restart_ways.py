"""Ways in which `dlogctl node restart` has a node restarted: told, over SSH, on this host."""

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from dlog.errors import ConfigError
from dlogctl import exit_codes
from dlogctl.output.escaping import say
from dlogctl.release.bundle import RefusedError
from dlogctl.release.changeover import Changeover, config_of
from dlogctl.release.unit import Unit
from dlogd.config.load import examine

USER = "dlog"


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What was done on a host after a restart that failed."""

    told: str
    runs: bool
    """Whether the node was started, so that its return is worth a wait."""


class WrongHostError(click.ClickException):
    """The host that was named is not known to be that of the node."""

    exit_code = exit_codes.UNREACHABLE


def node_of(config: str | Path) -> int | None:
    """Return the `node.id` of a configuration or its file; None where it cannot be read.

    Other keys may be wrong, or of another version.
    """
    try:
        found = examine(config)
    except (OSError, ConfigError):
        return None
    if found.config is None or "node.id" in found.faulty:
        return None
    return found.config.node.id


class Told:
    """The operator is told what to type."""

    def __init__(self, unit: str) -> None:
        self._unit = unit

    @property
    def command(self) -> str:
        """What restarts the node, as root on its host."""
        return f"systemctl restart {shlex.quote(self._unit)}"

    def check(self, _node_id: int) -> str | None:
        """Return why a start on its host would fail, as far as it can be known.

        Raises WrongHostError where the host is not the node's.
        """
        return None

    def restart(self, node_id: int, _patience_s: float) -> str | None:
        """Have it restarted; return what went wrong."""
        say(f"node {node_id} may be restarted now; on its host: sudo {self.command}", err=True)
        return None

    def take_back(self, _patience_s: float) -> TakenBack | None:
        """Restore what was changed and start that; None: nothing was."""
        return None


class OverSsh(Told):
    """A shell of its host is asked."""

    def __init__(self, unit: str, destination: str) -> None:
        super().__init__(unit)
        self._destination = destination

    def _command(self, command: str) -> list[str]:
        """Return what runs a command as root on the host."""
        # A host that does not answer any more must not hold this up.
        options = ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
        options += ["-o", "BatchMode=yes", "--", self._destination]
        return ["ssh", *options, f"sudo -n {command}"]

    def _run(self, command: str) -> int:
        """Run a command as root on the host; return its exit code. What it says is shown."""
        return subprocess.run(self._command(command), check=False).returncode

    def check(self, node_id: int) -> str | None:
        """Look whose host it is, and ask the preflight there."""
        config = shlex.quote(str(config_of(self._unit)))
        read = self._command(f"cat {config}")
        text = subprocess.run(read, stdout=subprocess.PIPE, check=False).stdout
        there = node_of(text.decode(errors="replace")) if text.strip() else None
        if there != node_id:
            whose = "cannot be read" if there is None else f"is that of node {there}"
            raise WrongHostError(
                f"node {node_id} was not stopped: {config} on {self._destination} {whose};"
                f" name the host of node {node_id}, see: dlogctl node describe {node_id}"
            )
        if self._run(f"runuser -u {USER} -- dlogd --preflight --config {config}") != 0:
            return "a start would fail there"
        return None

    def restart(self, _node_id: int, _patience_s: float) -> str | None:
        """Restart the unit there."""
        if self._run(self.command) != 0:
            return f"the restart on {self._destination} failed, see: journalctl -u {self._unit}"
        return None


class Here(Told):
    """On this host, perhaps to another release and configuration."""

    def __init__(self, unit: str, release: str | None, config: Path | None) -> None:
        super().__init__(unit)
        self._service = Unit(unit)
        self._changeover = Changeover(unit, release, config)

    def check(self, node_id: int) -> str | None:
        """Ask the preflight of the release that will run; the node must be the one here."""
        here = node_of(self._changeover.config)
        if here is not None and here != node_id:
            raise WrongHostError(
                f"node {node_id} was not stopped: {self._changeover.config} is that of node"
                f" {here}: run this on the host of node {node_id}"
            )
        try:
            self._changeover.check()
            program = self._changeover.program
        except RefusedError as error:
            return str(error)
        command = ["runuser", "-u", USER, "--", str(program), "--preflight"]
        command += ["--config", str(self._changeover.config)]
        # The unit's daemon does not see what this command was given, its token for one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DLOG_")}
        done = subprocess.run(command, env=environment, check=False)
        return "a start would fail" if done.returncode else None

    def restart(self, node_id: int, patience_s: float) -> str | None:
        """Stop it, change what is to be changed, start it."""
        say(f"node {node_id} stops", err=True)
        problem = self._service.stop()
        if problem is not None:
            return problem
        self._changeover.make()
        say(f"node {node_id} starts", err=True)
        return self._service.start(patience_s)

    def take_back(self, patience_s: float) -> TakenBack | None:
        """Start the release and the configuration that were there before."""
        if self._changeover.is_made:
            self._service.stop()
            self._changeover.take_back()
            before = "what ran before was taken back"
        elif self._service.show().get("ActiveState") == "active":
            return None  # it runs, as it did before: another restart would mend nothing
        else:
            before = "it was started once more"
        problem = self._service.start(patience_s)
        told = f"and does not start: {problem}" if problem else "and runs"
        return TakenBack(f"{before}, {told}", problem is None)


Way = Told
