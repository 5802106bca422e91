"""One large send in each iteration of the loop, in the order of asking."""

import asyncio
from itertools import pairwise

from dlogd.net.send_turns import SendTurns


class Reader:
    def __init__(self, name: str, turns: int, pacer: SendTurns, said: list[str]) -> None:
        self.name, self.turns, self.pacer, self.said = name, turns, pacer, said

    def on_turn(self) -> None:
        self.said.append(self.name)
        self.turns -= 1
        if self.turns:
            self.pacer.ask(self)


def test_readers_take_turns_and_others_run_between_them() -> None:
    async def work() -> list[str]:
        loop = asyncio.get_running_loop()
        pacer = SendTurns(loop)
        said: list[str] = []
        for reader in (Reader("a", 2, pacer, said), Reader("b", 3, pacer, said)):
            pacer.ask(reader)
        for _ in range(6):
            await asyncio.sleep(0)
            said.append("other")
        return said

    said = asyncio.run(work())
    assert [each for each in said if each != "other"] == ["a", "b", "a", "b", "b"]
    first, last = said.index("a"), len(said) - 1 - said[::-1].index("b")
    turns = said[first : last + 1]
    assert all("other" in pair for pair in pairwise(turns))


def test_a_pacer_that_was_idle_starts_again() -> None:
    async def work() -> list[str]:
        pacer = SendTurns(asyncio.get_running_loop())
        said: list[str] = []
        for _ in range(2):
            pacer.ask(Reader("a", 1, pacer, said))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return said

    assert asyncio.run(work()) == ["a", "a"]
