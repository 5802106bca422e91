"""A node whose metadata fail serves nothing from then on: it does not hear who leads instead."""

from types import SimpleNamespace
from typing import Any, cast

from dlogd.node.broker import Broker


def test_the_lease_ends_before_the_node_says_goodbye() -> None:
    """The controller lets others lead at its word, and it would be one of two leaders."""
    done: list[str] = []
    keeper = SimpleNamespace(surrender=lambda: done.append("surrendered"))
    broker = SimpleNamespace(clustering=SimpleNamespace(keeper=keeper), _fail=done.append)
    Broker._on_store_failed(cast(Any, broker), OSError("an I/O error"))
    assert done == ["surrendered", "the metadata cannot be written: an I/O error"]
    alone = SimpleNamespace(clustering=None, _fail=done.append)
    Broker._on_store_failed(cast(Any, alone), OSError("a full disk"))
    assert done[2:] == ["the metadata cannot be written: a full disk"]
