"""Common base of administrative calls: the cluster, given or own, and the sending of commands.

The calls are in `dlog.client.admin` and `dlog.client.admin_cluster`.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from dlog.client.admin_views import Resource
from dlog.client.cluster.bootstrap import Bootstrap, parse_bootstrap
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.node import Build, NodeClient
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError, ProtocolError
from dlog.transport import ConnectionOptions
from dlog.wire.apis import ApiKey

TIMEOUT_MS = 30_000
PATIENCE_MS = 800
"""Of each second that is left of a call, so long the cluster may take."""
_ANSWER_SLACK_S = 5.0


def timeout_s(timeout_ms: int) -> float:
    """Return how long to wait for an answer that may take the node so long."""
    return timeout_ms / 1000 + _ANSWER_SLACK_S


def only(items: Iterable[Any], what: str) -> Any:
    """Return the one item that was asked for."""
    for item in items:
        return item
    raise ProtocolError(f"the response lacks {what}")


class AdminSession:
    """A cluster for administrative calls. Owner: one event loop. Life: an `async with` block.

    With a `Cluster`, which stays its owner's, it may be used at once and needs no end.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        connection: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._given = bootstrap if isinstance(bootstrap, Cluster) else None
        self._addresses = [] if isinstance(bootstrap, Cluster) else parse_bootstrap(bootstrap)
        self._connection = connection
        self._policy = policy
        self._rng = rng or random.Random()
        self._own: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        cluster = self._given or self._own
        if cluster is None:
            raise DlogError("the admin client is not open: use it in `async with`")
        return cluster

    async def start(self) -> None:
        """Make ready; `async with` does it. Nothing is asked yet."""
        if self._given is None and self._own is None:
            self._own = Cluster(
                self._addresses,
                loop=asyncio.get_running_loop(),
                rng=self._rng,
                options=self._connection,
                policy=self._policy,
            )

    async def close(self) -> None:
        """Close its connections, not those of a cluster that was given. Idempotent."""
        own, self._own = self._own, None
        if own is not None:
            await own.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # For the calls

    def _patience(self, timeout_ms: int) -> Callable[[], timedelta]:
        """Return how to tell a node how long it may take, as soon as it is asked.

        Less than what is left of the call then, so that its answer comes before we give up.
        """
        loop, deadline_s = asyncio.get_running_loop(), self._cluster.policy.deadline_s
        end = loop.time() + deadline_s if deadline_s > 0 else None

        def patience() -> timedelta:
            left_ms = timeout_ms
            if end is not None:
                left_ms = min(timeout_ms, max(1, int((end - loop.time()) * PATIENCE_MS)))
            return timedelta(milliseconds=left_ms)

        return patience

    async def _command(
        self, api: ApiKey, build: Build, timeout_ms: int, *, idempotent: bool = False
    ) -> Any:
        """Send a request that changes metadata to the controller."""
        return await self._cluster.run(
            self._cluster.controller,
            lambda node: node.call(api, build, timeout_s(timeout_ms)),
            idempotent=idempotent,
        )

    async def describe_values(
        self, resource: Resource, names: Sequence[str], keys: Sequence[str]
    ) -> dict[str, dict[str, str]]:
        """Return some configs of many topics or nodes; what has none of them is left out.

        Any node tells: of other nodes only what the metadata knows of them.
        """
        if not names:
            return {}
        return await self._cluster.run(
            self._cluster.any_node, lambda node: values_of(node, resource, names, keys)
        )


async def values_of(
    node: NodeClient, resource: Resource, names: Sequence[str], keys: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Ask one node for some configs of many topics or nodes."""

    def build(module: Any) -> Any:
        return module.DescribeConfigsRequest(
            resources=tuple(
                module.DescribeConfigsResource(
                    resource_type=int(resource), resource_name=name, configuration_keys=tuple(keys)
                )
                for name in names
            ),
            include_synonyms=False,
            include_documentation=False,
        )

    response = await node.call(ApiKey.DESCRIBE_CONFIGS, build)
    found: dict[str, dict[str, str]] = {}
    for result in response.results:
        values = {
            str(each.name): str(each.value)
            for each in result.configs
            if each.name in keys and each.value is not None
        }
        if values:
            found[str(result.resource_name)] = values
    return found
