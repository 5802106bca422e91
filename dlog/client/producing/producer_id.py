"""Request for a producer id. Called by `dlog.client.producing.sender_tasks`."""

from datetime import timedelta
from typing import Any

from dlog.client.cluster.node import NodeClient, raise_for
from dlog.wire.apis import ApiKey


async def init_producer_id(node: NodeClient, timeout_ms: int = 30_000) -> tuple[int, int]:
    """Return a fresh (producer id, epoch) for an idempotent producer."""

    def build(module: Any) -> Any:
        return module.InitProducerIdRequest(
            transactional_id=None, transaction_timeout=timedelta(milliseconds=timeout_ms)
        )

    response = await node.call(ApiKey.INIT_PRODUCER_ID, build)
    raise_for(int(response.error_code))
    return int(response.producer_id), int(response.producer_epoch)
