"""Topics that check compressed records, and checks that last as long as a test wants."""

import asyncio
import dataclasses
from collections.abc import Callable

from dlog.compression import Codec
from dlogd.server import batch_unpacker
from tests.fakes.front import SETTINGS, Front

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
CHECKED = dataclasses.replace(SETTINGS, opens_compressed=True)


class HeldChecks:
    """Checks that are made when the test says so."""

    def __init__(self, front: Front) -> None:
        self.begun = 0
        self.release = asyncio.Event()
        unpacker = front.produce.unpacker
        run = unpacker._run

        async def later(work: Callable[[], batch_unpacker.Outcome]) -> batch_unpacker.Outcome:
            self.begun += 1
            await self.release.wait()
            return await run(work)

        unpacker._run = later
