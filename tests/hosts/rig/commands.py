"""Commands with a time limit; a failure carries what the command said."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

COMMAND_S = 30.0
LOOK_S = 0.02  # where the kernel reports no event, the state is read this often
SHOWN_CHARACTERS = 3000
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}
"""The environment of commands of the rig and inside hosts: nothing of the caller's."""


class RigError(Exception):
    """The rig could not do its work; the message says what, why and what to do."""


def run(
    command: Sequence[str],
    *,
    check: bool = True,
    timeout: float = COMMAND_S,
    said: str | None = None,
    env: Mapping[str, str] = ENVIRONMENT,
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command with `said` as its input; on a timeout kill its whole session.

    Raise CalledProcessError, with the output as a note, or TimeoutExpired.
    """
    with subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE if said is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(env),
        start_new_session=True,
        pass_fds=tuple(pass_fds),
    ) as process:
        try:
            out, err = process.communicate(said, timeout)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check and done.returncode:
        error = subprocess.CalledProcessError(done.returncode, list(command), out, err)
        error.add_note((out + err).strip()[-SHOWN_CHARACTERS:])
        raise error
    return done


def await_that(holds: Callable[[], bool], timeout_s: float) -> bool:
    """Return whether a condition holds in time; read it at short intervals."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)
    return True
