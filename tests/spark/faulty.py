"""The sink with faults: each is ordered as a file, and happens where its name says, mostly once.

The processes of a query share nothing but the disk: who removes the file has the fault.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from dlog.spark.options.connection_options import client_settings
from dlog.spark.options.write_options import parse_write_options
from dlog.spark.writing.sink import BatchWriter, StreamWriter, batch_writer, stream_writer


class Faults:
    """Faults that are still to happen. Picklable."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def order(self, *steps: str) -> None:
        """Let these happen: `step` raises, `step!` kills the process.

        `step*` raises each time, until the sink aborts: a task fails as often as it may.
        """
        for step in steps:
            (Path(self.folder) / step).touch()

    def left(self) -> list[str]:
        """Return what has not happened."""
        return sorted(path.name for path in Path(self.folder).iterdir())

    def note_commit(self, batch_id: int, messages: Any) -> None:
        """Take note of by which token a stream's batch is to be committed, or by which ones."""
        tokens = {str(each.token): None for each in messages}
        with self._commits().open("a") as file:
            file.write(f"{batch_id} {' '.join(tokens)}\n")

    def commits(self) -> list[str]:
        """Return what was noted, one text for each commit: number of the batch, token."""
        return self._commits().read_text().splitlines()

    def _commits(self) -> Path:
        return Path(f"{self.folder}.commits")

    def at(self, step: str) -> None:
        """Be at a step: raise, or end this process, where that was ordered."""
        for name, happen in ((step, _raise), (f"{step}!", _kill)):
            try:
                (Path(self.folder) / name).unlink()
            except FileNotFoundError:
                continue
            happen(name)
        if (Path(self.folder) / f"{step}*").exists():
            _raise(step)

    def lift(self) -> None:
        """End what happens each time."""
        for path in Path(self.folder).glob("*[*]"):
            path.unlink()


def _raise(name: str) -> None:
    raise RuntimeError(f"a fault at {name}")


def _kill(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _written(write: Callable[[Any], Any], faults: Faults, batches: Iterator[Any]) -> Any:
    faults.at("before_write")

    def some() -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            faults.at("in_write")
            yield batch.slice(half)

    message = write(some())
    faults.at("after_write")
    return message


class FaultyBatchWriter(BatchWriter):
    """A batch sink with faults."""

    faults: Faults

    def write(self, iterator: Any) -> WriterCommitMessage:
        """Write, perhaps not to the end."""
        message: WriterCommitMessage = _written(super().write, self.faults, iterator)
        return message

    def commit(self, messages: Any) -> None:
        """Commit, perhaps in vain."""
        self.faults.at("before_commit")
        super().commit(messages)
        self.faults.at("after_commit")

    def abort(self, messages: Any) -> None:
        """Abort, perhaps in vain."""
        super().abort(messages)
        self.faults.lift()
        self.faults.at("in_abort")


class FaultyStreamWriter(StreamWriter):
    """A streaming sink with faults."""

    faults: Faults

    def write(self, iterator: Any) -> WriterCommitMessage:
        """Write, perhaps not to the end."""
        message: WriterCommitMessage = _written(super().write, self.faults, iterator)
        return message

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """Commit, perhaps in vain."""
        self.faults.note_commit(batchId, messages)
        self.faults.at("before_commit")
        super().commit(messages, batchId)
        self.faults.at("after_commit")

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803
        """Abort, perhaps in vain."""
        super().abort(messages, batchId)
        self.faults.lift()
        self.faults.at("in_abort")


class FaultySink(DataSource):
    """Format `dlog-faulty`; the option `faults` names the folder."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "dlog-faulty"

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the batch sink."""
        plain = batch_writer(
            schema, overwrite, client_settings(self.options), parse_write_options(self.options)
        )
        made = FaultyBatchWriter.__new__(FaultyBatchWriter)
        made.__dict__.update(plain.__dict__, faults=Faults(self.options["faults"]))
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the streaming sink."""
        plain = stream_writer(
            schema, client_settings(self.options), parse_write_options(self.options)
        )
        made = FaultyStreamWriter.__new__(FaultyStreamWriter)
        made.__dict__.update(plain.__dict__, faults=Faults(self.options["faults"]))
        return made
