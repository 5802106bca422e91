"""Digest of a configuration: two nodes, or a node and a file, are compared by it. Pure."""

import hashlib

from dlogd.config.schema import KEYS, Config

LENGTH = 16
"""Hexadecimal digits: enough to tell files apart, few enough to read aloud."""

NOT_COMPARED = frozenset({"log.format"})
"""What systemd's unit says in the environment, and no file."""


def digest_of(config: Config) -> str:
    """Return the digest of all values, defaults included, however the file wrote them."""
    names = sorted(KEYS.keys() - NOT_COMPARED)
    lines = (f"{name}: {KEYS[name].key.format(KEYS[name].value_in(config))}\n" for name in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:LENGTH]
