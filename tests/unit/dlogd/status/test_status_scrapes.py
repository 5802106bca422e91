"""The page /metrics: how often it is computed, and who shares it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dlogd.status import scrapes
from dlogd.status.http_heads import Request
from dlogd.status.scrapes import Scrapes
from tests.fakes.bounded_runs import check

ASKED = Request(method="GET", path="/metrics", query="", headers={}, keep_alive=True)


class Metrics:
    """A collector that says how often it was asked, and waits when a test wants."""

    def __init__(self) -> None:
        self.count = 0
        self.go_on = asyncio.Event()
        self.imports: list[str] = []
        self.is_broken = False

    def collect(self, _module: Any) -> "Metrics":
        return self

    async def exposition(self) -> bytes:
        self.count += 1
        number = self.count
        if self.is_broken:
            raise RuntimeError("bug")
        await self.go_on.wait()
        return b"scrapes %d\n" % number

    async def run(self, work: Callable[[], Any]) -> Any:
        self.imports.append("collector")
        return work()


def test_scrapes_at_the_same_time_share_one_computation() -> None:
    async def work() -> None:
        metrics = Metrics()
        page = Scrapes(metrics.collect, metrics.run).page
        asking = [asyncio.ensure_future(page(ASKED)) for _ in range(20)]
        while not metrics.count:
            await asyncio.sleep(0)
        asking[0].cancel()  # whoever began it may go away
        metrics.go_on.set()
        answers = [(await each).body for each in asking[1:]]
        assert answers == [b"scrapes 2\n"] * 19
        assert metrics.imports == ["collector"]

    check(work)


def test_a_scrape_is_kept_for_a_while_after_it_was_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        monkeypatch.setattr(scrapes, "KEPT_S", 3600.0)
        metrics = Metrics()
        metrics.go_on.set()
        page = Scrapes(metrics.collect, metrics.run)
        await page.load()
        await page.load()
        assert metrics.imports == ["collector"]
        for _ in range(3):
            assert (await page.page(ASKED)).body == b"scrapes 1\n"
        page._kept_until_s = 0.0
        assert (await page.page(ASKED)).body == b"scrapes 2\n"

    check(work)


def test_a_scrape_that_failed_is_not_kept() -> None:
    async def work() -> None:
        metrics = Metrics()
        metrics.is_broken = True
        page = Scrapes(metrics.collect, metrics.run).page
        with pytest.raises(RuntimeError):
            await page(ASKED)
        metrics.is_broken = False
        metrics.go_on.set()
        assert (await page(ASKED)).body == b"scrapes 2\n"

    check(work)
