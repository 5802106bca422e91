"""What a network does to a client, as done by `tests.fakes.proxy`."""

from collections.abc import Callable

from tests.fakes.proxy import Direction, Proxy


def _refuse(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut()


def _delay(proxy: Proxy) -> None:
    proxy.delay_s = 0.02


def _drip(proxy: Proxy) -> None:
    proxy.drip = (200, 0.001)


def _reorder(proxy: Proxy) -> None:
    proxy.hold(2)
    proxy.cut()


BREAKS: dict[str, Callable[[Proxy], None]] = {
    "cut": lambda proxy: proxy.cut(),
    "reset": lambda proxy: proxy.cut(reset=True),
    "refusal": _refuse,
    "cut within a request": lambda proxy: proxy.cut_after(Direction.TO_SERVER, 37),
    "reset within a request": lambda proxy: proxy.cut_after(Direction.TO_SERVER, 333, reset=True),
    "cut within an answer": lambda proxy: proxy.cut_after(Direction.TO_CLIENT, 7),
    "an answer lost": lambda proxy: proxy.cut_after(Direction.TO_CLIENT, 0),
    "black hole": lambda proxy: proxy.swallow(),
    "answers swallowed": lambda proxy: proxy.swallow(Direction.TO_CLIENT),
    "half open": lambda proxy: proxy.half_open(),
    "stall": lambda proxy: proxy.stall(),
    "connections out of order": _reorder,
}
"""After these some connection is of no use."""

SLOWS: dict[str, Callable[[Proxy], None]] = {"delay": _delay, "slow drip": _drip}
"""After these everything takes longer and nothing breaks."""


async def heal(proxy: Proxy) -> None:
    """Do no harm to what comes; listen again."""
    proxy.heal()
    if not proxy.is_listening:
        await proxy.start()
