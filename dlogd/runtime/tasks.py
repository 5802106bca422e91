"""Named, supervised asyncio tasks.

The only module that calls `create_task`. A task that ends with an exception is logged once and
handed to the owner's `on_failure`; a cancelled one is not a failure. One that is vital ends with it
what the owner is for: `fail` is told. Bounded by `task_count_max`.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

log = logging.getLogger(__name__)

FailureHandler = Callable[[str, BaseException], None]


def _log_failure(name: str, error: BaseException) -> None:
    log.error("Task failed task=%s error=%r", name, error, exc_info=error)


class Tasks:
    """A set of named tasks with one owner, who closes it.

    Owner: the event loop's thread. Life: `spawn` any number, then `close` once.
    """

    def __init__(
        self,
        on_failure: FailureHandler | None = None,
        *,
        fail: Callable[[str], None] | None = None,
        task_count_max: int = 100_000,
    ) -> None:
        """`fail(reason)`: a vital task has failed, and nobody does its work any more."""
        self._on_failure = on_failure
        self._fail = fail
        self._task_count_max = task_count_max
        # A dict keeps the order of creation, so that closing is deterministic.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self, name: str, work: Coroutine[Any, Any, Any], *, is_vital: bool = False
    ) -> asyncio.Task[Any]:
        """Start `work`; raise RuntimeError when closed or over the bound."""
        if self._closed or len(self._tasks) >= self._task_count_max:
            work.close()
            state = "closed" if self._closed else f"full ({self._task_count_max} tasks)"
            raise RuntimeError(f"Cannot start task {name}: the task set is {state}")
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_vital_done if is_vital else self._on_done)
        return task

    def _on_vital_done(self, task: asyncio.Task[Any]) -> None:
        self._on_done(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._fail is not None:
            self._fail(f"its task {task.get_name()!r} has ended: {error!r}")

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        _log_failure(task.get_name(), error)
        if self._on_failure is not None:
            self._on_failure(task.get_name(), error)

    async def close(self) -> None:
        """Cancel what still runs and wait until all of it has ended."""
        self._closed = True
        pending = list(self._tasks)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)


async def in_groups(
    count_max: int, work: Callable[..., Coroutine[Any, Any, None]], whom: Sequence[tuple[Any, ...]]
) -> None:
    """Do `work` for all of them, so many at a time."""
    for first in range(0, len(whom), count_max):
        await asyncio.gather(*(work(*each) for each in whom[first : first + count_max]))
