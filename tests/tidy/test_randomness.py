"""Nonces, ids and salts come from `Entropy`; `Rng` is for jitter and choices.

Some hundred numbers of a Mersenne Twister give all that follow. A peer sees nonces and ids.
"""

import ast

from dlogd.runtime.randomness import Entropy, Rng
from tests.tidy import sources

RAW = frozenset({"randbytes", "getrandbits", "randint", "SystemRandom", "urandom"})
"""Calls that make bytes or integers of which an id can be made."""
SOURCE = "dlogd.runtime.randomness"


def _raw_calls() -> list[str]:
    return [
        source.at(node)
        for source in sources.production()
        if source.module != SOURCE
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr in RAW
    ]


def test_nobody_makes_bytes_or_ids_of_a_generator() -> None:
    assert not _raw_calls()


def test_the_daemon_names_its_generators_by_their_kind() -> None:
    """mypy then knows that a `Rng` makes no bytes."""
    found = [
        source.at(node)
        for source in sources.python("dlogd")
        if source.module != SOURCE
        for node in source.nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([each.name for each in node.names] + [getattr(node, "module", None) or ""])
        if name in {"random", "secrets", "uuid4", "uuid1"}
    ]
    assert not found, "\n".join(found)


def test_the_two_kinds_have_nothing_in_common() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(Rng) == {"random", "uniform", "sample"}
    assert public(Entropy) == {"token", "uuid"}
