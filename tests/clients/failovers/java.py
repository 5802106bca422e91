"""The Java client under load: a process that is asked now and then what it was told and read."""

import json
import subprocess
import threading
import time
from typing import Any

from tests.clients import tools
from tests.clients.failovers.load import POLL_S, RATE, Load
from tests.clients.failovers.verdict import Ack, Seen

TAKE_EVERY_S = 0.1


class JavaLoad(Load):
    """kafka-clients at their defaults: all acknowledgements, numbered batches."""

    version = ""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            tools.java_command(self.version, bootstrap),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _call(self, op: str, **arguments: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        assert line, f"{self.name} ended with {self._process.poll()}"
        answer = json.loads(line)
        assert "error" not in answer, answer
        return answer["ok"]

    def _take(self) -> None:
        found = self._call("load_take")
        self.sent_count = found["sent"]
        self.acks += [Ack(*each) for each in found["acks"]]
        self.errors += found["errors"]
        for each in found["seen"]:
            seen = Seen(*each)
            self.seen.append(seen)
            self._next[seen.partition] = seen.offset + 1

    def write(self) -> None:
        self._call("load_start", topic=self.topic, partitions=self.partitions, rate=RATE)
        self.is_stopping.wait()
        self._call("load_stop_writing")

    def read(self) -> None:
        while not self.has_read_all:
            time.sleep(TAKE_EVERY_S if self._ends is None else POLL_S)
            self._take()
        self._call("load_end")
        self._take()
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Java3Load(JavaLoad):
    """The newest 3.x."""

    name = "java-3"
    version = "3.9.2"


class Java4Load(JavaLoad):
    """The newest 4.x."""

    name = "java-4"
    version = "4.4.0"
