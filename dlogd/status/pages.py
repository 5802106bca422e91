"""The operators' pages: /livez, /readyz, /status, /metadata, /digest and /metrics.

What the node says about itself comes through `NodeView`; nothing is computed here.
"""

import importlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dlogd.status.http_server import HttpError, Page, Request, Response, text_response
from dlogd.telemetry.metrics import Source, Telemetry

ACTIVE = "active"
"""The state of a node that serves clients, as operators read it everywhere."""
COLLECTOR_MODULE = "dlogd.telemetry.collector"


class NodeView(Protocol):
    """What the pages ask of a node; all of it is answered in every state, from start to stop."""

    @property
    def telemetry(self) -> Telemetry:
        """The node's counters."""

    def metric_sources(self) -> Sequence[Source]:
        """Return what samples gauges at scrape time."""

    def not_ready_reason(self) -> str | None:
        """Say in one line why the node does not serve clients, None when it does."""

    def status(self) -> Mapping[str, Any]:
        """Return the content of /status: only what JSON has."""

    def metadata(self) -> Callable[[], Mapping[str, Any]]:
        """Return what computes the content of /metadata, from any thread."""

    async def digest(self, query: str) -> Mapping[str, Any]:
        """Return the content of /digest; raise HttpError."""


RunBlocking = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(slots=True)
class _Metrics:
    """The collector, loaded at the first scrape."""

    node: NodeView
    run_blocking: RunBlocking
    before_scrape: Callable[[], None]
    module: Any = None

    async def page(self, _request: Request) -> Response:
        """Answer in Prometheus' text format."""
        if self.module is None:
            # 50 ms of imports: not on the loop.
            self.module = await self.run_blocking(lambda: importlib.import_module(COLLECTOR_MODULE))
        self.before_scrape()
        collector = self.module.TelemetryCollector(self.node.telemetry, self.node.metric_sources())
        return Response(body=await collector.exposition(), content_type=self.module.CONTENT_TYPE)


def pages_of(
    node: NodeView, run_blocking: RunBlocking, before_scrape: Callable[[], None]
) -> dict[str, Page]:
    """Return the pages of a node by path; `before_scrape` may bring gauges up to date."""

    async def livez(_request: Request) -> Response:
        # That this code runs is the answer.
        return text_response(200, "live")

    async def readyz(_request: Request) -> Response:
        reason = node.not_ready_reason()
        return text_response(200, "ready") if reason is None else text_response(503, reason)

    async def status(_request: Request) -> Response:
        body = json.dumps(node.status(), indent=2).encode() + b"\n"
        return Response(body=body, content_type="application/json")

    async def metadata(_request: Request) -> Response:
        # Encodes the whole image: not on the loop.
        found = await run_blocking(node.metadata())
        body = json.dumps(found, indent=2).encode() + b"\n"
        return Response(body=body, content_type="application/json")

    async def digest(request: Request) -> Response:
        try:
            found = await node.digest(request.query)
        except HttpError as error:
            return text_response(error.status, str(error))
        body = json.dumps(found).encode() + b"\n"
        return Response(body=body, content_type="application/json")

    metrics = _Metrics(node, run_blocking, before_scrape)
    return {
        "/livez": livez,
        "/readyz": readyz,
        "/status": status,
        "/metadata": metadata,
        "/digest": digest,
        "/metrics": metrics.page,
    }
