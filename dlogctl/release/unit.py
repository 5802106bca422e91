"""A unit of systemd on this host: stopped, and started by progress."""

import subprocess
import time

LOOK_AGAIN_S = 0.2
SHOWN = ("ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts", "StatusText")
LAST_WORDS = 3


def _systemctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", "--no-pager", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Unit:
    """One service. Blocking; needs root."""

    def __init__(self, name: str) -> None:
        self.name = name

    def show(self) -> dict[str, str]:
        """Return its state, by the names of systemd's properties."""
        done = _systemctl("show", self.name, *(f"--property={each}" for each in SHOWN))
        pairs = (line.partition("=") for line in done.stdout.splitlines())
        return {key: text for key, _, text in pairs}

    def stop(self) -> str | None:
        """Stop it, however long it makes progress; return what went wrong."""
        done = _systemctl("stop", self.name)
        return None if done.returncode == 0 else done.stderr.strip()

    def start(self, patience_s: float) -> str | None:
        """Start it and wait until it is ready; return why it is not.

        It is waited for as long as its status text changes: a node that reads 5 GB again is not
        stuck. A process that ends is not started again and again here.
        """
        _systemctl("reset-failed", self.name)
        begun = _systemctl("start", "--no-block", self.name)
        if begun.returncode != 0:
            return begun.stderr.strip()
        seen: set[tuple[str, ...]] = set()
        moved_at = time.monotonic()
        while True:
            state = self.show()
            if state.get("ActiveState") == "active":
                return None
            if state.get("ActiveState") == "failed" or state.get("NRestarts", "0") != "0":
                code = state.get("ExecMainStatus")
                self.stop()
                return f"it ends at its start ({state.get('Result')}, {code}){self._last_words()}"
            look = (state.get("SubState", ""), state.get("StatusText", ""))
            if look not in seen:
                seen.add(look)
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at >= patience_s:
                self.stop()
                return f"it hangs in its start, nothing has moved for {patience_s:g} s: {look[1]}"
            time.sleep(LOOK_AGAIN_S)

    def _last_words(self) -> str:
        # The daemon's own lines, whatever their level: a wrong configuration is told plainly.
        command = ["journalctl", f"_SYSTEMD_UNIT={self.name}", "--lines", str(LAST_WORDS)]
        command += ["--output", "cat", "--no-pager", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        return f": {'; '.join(lines)}" if lines else f"; see: journalctl -u {self.name}"
