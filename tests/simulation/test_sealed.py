"""The seal of the simulated world: product code that touches the real one is caught."""

import os
import random
import socket
import time
from types import ModuleType

import pytest

from tests.simulation.sealed import RealWorldError, sealed

TOUCHES = {
    "clock": "import time; time.monotonic()",
    "wall clock": "import time; time.time()",
    "sleep": "import time; time.sleep(0)",
    "randomness": "import random; random.random()",
    "entropy": "import os; os.urandom(1)",
    "file": "open(__file__)",
    "directory": "import os; os.listdir('.')",
    "socket": "import socket; socket.socket()",
    "fine clock": "import time; time.perf_counter_ns()",
    "clock of the system": "import time; time.clock_gettime(0)",
    "random generator of the system": "import random; random.SystemRandom()",
    "unique id": "import uuid; uuid.uuid4()",
    "secret": "import secrets; secrets.token_bytes(4)",
    "path": "import pathlib; pathlib.Path(__file__).read_text()",
    "paths": "import pathlib; list(pathlib.Path('.').iterdir())",
    "other open": "import io; io.open(__file__)",
    "space of a disk": "import os; os.statvfs('.')",
    "pair of sockets": "import socket; [each.close() for each in socket.socketpair()]",
    "name of a host": "import socket; socket.getaddrinfo('localhost', 1)",
}


def _run_as(module: str, code: str) -> None:
    there = ModuleType(module)
    there.__file__ = __file__
    exec(compile(code, module, "exec"), there.__dict__)


@pytest.mark.parametrize("what", TOUCHES)
@pytest.mark.parametrize("module", ["dlogd.storage.log.flusher", "dlog.client.consumer"])
def test_product_code_in_a_simulation_does_not_touch(what: str, module: str) -> None:
    with sealed(), pytest.raises(RealWorldError, match=module):
        _run_as(module, TOUCHES[what])
    _run_as(module, TOUCHES[what])


def test_the_simulation_itself_may() -> None:
    with sealed():
        assert time.time() > 0 and random.random() < 1 and os.urandom(1)
        socket.socket().close()
    assert socket.socket.__module__ == "socket"
