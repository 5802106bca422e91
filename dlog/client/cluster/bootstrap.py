"""Bootstrap addresses, as programs write them.

Pure.
"""

from collections.abc import Iterable

from dlog.transport import Address

Bootstrap = str | Address | Iterable[str | Address]
"""`"a:9092,b:9092"`, or several addresses in a list; any one that answers is enough."""


def parse_bootstrap(bootstrap: Bootstrap) -> list[Address]:
    """Return the addresses, each once; raise ValueError with a message for people."""
    if isinstance(bootstrap, str | Address):
        bootstrap = [bootstrap]
    addresses: list[Address] = []
    for each in bootstrap:
        if isinstance(each, Address):
            addresses.append(each)
        else:
            addresses += [Address.parse(text) for text in each.split(",") if text.strip()]
    if not addresses:
        raise ValueError("no bootstrap address")
    return list(dict.fromkeys(addresses))
