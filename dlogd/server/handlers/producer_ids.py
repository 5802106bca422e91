"""InitProducerId: identities for idempotent producers, unique in the cluster for ever.

The node takes ids from the cluster in blocks, so that only one in many requests waits for the
metadata; ids of a block that were not given out when the node stops are never used. A producer with
an id asks again to get a higher epoch; without transactions Kafka gives it a new id then, and so
does this.
"""

import asyncio
import logging
from collections.abc import Awaitable

from dlog.errors import (
    CoordinatorLoadInProgressError,
    InvalidRequestError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    TransactionalIdAuthorizationFailedError,
    WireError,
)
from dlogd.metadata.commands.codec import AllocateProducerIds
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request
from dlogd.server.response_builder import Fields

log = logging.getLogger(__name__)

BLOCK_COUNT = 1_000
SEARCHED_COUNT = 900_000
"""So far above a new block ids are looked for; what lies further was never given out by us."""
NO_PRODUCER_ID, NO_PRODUCER_EPOCH = -1, -1
TIMEOUT_MS = 30_000


class ProducerIds:
    """The node's present block of producer ids. Owner: one dispatcher.

    Invariant: an id is given out once.
    """

    def __init__(self) -> None:
        self._next = 0
        self._end = 0  # exclusive
        self._filling: asyncio.Lock = asyncio.Lock()

    def answer(self, context: ServerContext, request: Request) -> Fields | Awaitable[Fields]:
        """Give the producer an id of its own, with epoch 0."""
        if request.body.transactional_id is not None:
            if not request.body.transactional_id:
                raise InvalidRequestError("A transactional id must not be empty")
            # What a client finds out by FindCoordinator: nobody coordinates transactions.
            raise TransactionalIdAuthorizationFailedError("Transactions are not served yet")
        producer_id = request.get("producer_id", NO_PRODUCER_ID)
        producer_epoch = request.get("producer_epoch", NO_PRODUCER_EPOCH)
        if (producer_id == NO_PRODUCER_ID) != (producer_epoch == NO_PRODUCER_EPOCH):
            raise InvalidRequestError("Producer id and epoch are given together or not at all")
        if self._next < self._end:
            return self._take()
        return self._answer_filled(context)

    async def _answer_filled(self, context: ServerContext) -> Fields:
        # From now on: who waits behind others in vain need not wait as long once more.
        deadline_ms = context.deadline_ms(TIMEOUT_MS)
        async with self._filling:
            if self._next >= self._end:
                await self._fill(context, deadline_ms)
            return self._take()

    def _take(self) -> Fields:
        taken = self._next
        self._next += 1
        return {"error_code": 0, "producer_id": taken, "producer_epoch": 0}

    async def _fill(self, context: ServerContext, deadline_ms: int) -> None:
        first, end = await self._allocate(context, BLOCK_COUNT, deadline_ms)
        # An id twice would make a new producer's records pass for repetitions of another's. The
        # metadata does not know of ids that it gave out after the backup it was restored from.
        while (used := context.producer_id_in_use(first, first + SEARCHED_COUNT)) >= first:
            if used < end:
                log.warning(
                    "Skipped producer ids that logs know: the metadata is older than the data"
                    " first=%d last=%d",
                    first,
                    used,
                )
            if used + 1 < end:
                first = used + 1
                continue
            # Perhaps another node took its block meanwhile; the next one is behind that. What is
            # between this one and the next belongs to others, too.
            count = used + 1 - end + BLOCK_COUNT
            first, end = await self._allocate(context, count, deadline_ms)
        self._next, self._end = first, end
        log.info("Reserved producer ids first=%d count=%d", first, end - first)

    async def _allocate(
        self, context: ServerContext, count: int, deadline_ms: int
    ) -> tuple[int, int]:
        """Take `count` ids from the cluster; return [first, end)."""
        registration = context.image().nodes.get(context.node_id)
        if registration is None:
            raise StaleBrokerEpochError(f"Node {context.node_id} has not registered yet")
        command = AllocateProducerIds(
            command_id=context.new_id(),
            node_id=context.node_id,
            node_epoch=registration.node_epoch,
            count=count,
        )
        applied = await context.propose(command, deadline_ms)
        return applied.value, applied.value + count


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error at the top; while there are no ids, with the code that Kafka has for it."""
    if isinstance(error, StaleBrokerEpochError | RequestTimedOutError):
        error = CoordinatorLoadInProgressError(str(error))
    return {
        "error_code": error.code,
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": NO_PRODUCER_EPOCH,
    }


def make_handler() -> Handler:
    """Return a handler with a block of its own."""
    return Handler(ProducerIds().answer, refuse)
