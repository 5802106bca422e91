"""Whatever a well-formed request says, its handler answers it, and never with a bug."""

import asyncio
import random

import pytest

from dlog.wire import messages
from dlog.wire.apis import VERSIONS, ApiKey
from dlogd.config.schema import build
from dlogd.server.request import Request
from dlogd.server.session import Session
from tests.fakes.nonsense import Requests
from tests.fakes.server import FakeNode

HOT = (ApiKey.PRODUCE, ApiKey.FETCH)
SERVED = [
    (api_key, version)
    for api_key, (low, high) in VERSIONS.items()
    if api_key not in HOT
    for version in range(low, high + 1)
]


@pytest.mark.parametrize("auto_create", [False, True])
@pytest.mark.parametrize(("api_key", "version"), SERVED, ids=lambda value: str(value))
def test_every_well_formed_request_has_an_answer(
    api_key: ApiKey, version: int, auto_create: bool
) -> None:
    async def run() -> None:
        node = FakeNode(build({"topic.auto_create": auto_create}))
        rng = random.Random(f"{api_key} {version} {auto_create}")
        for number in range(60):
            for name in ("t", "u"):
                if name not in node.image.topics:
                    await node.create(name, 2)
            entity = Requests(rng, node.image.topics_by_id).entity(
                messages.request_type(api_key, version)
            )
            request = Request(api_key=api_key, version=version, body=entity, session=Session())
            answer = await node.dispatcher.handle(api_key, version, request.body, request.session)
            frame = messages.encode_response(answer, number)
            read_back = messages.parse_response(api_key, version, memoryview(frame)[4:])
            assert messages.encode_response(read_back, number) == frame
            assert node.dispatcher.error_total == 0, entity

    asyncio.run(run())
