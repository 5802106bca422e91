"""Reads the worked examples out of docs/formats: they are the golden bytes."""

import re
from pathlib import Path

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
_BLOCK = re.compile(r"^```hex\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(name: str) -> list[bytes]:
    """Return the bytes of each ```hex block; a comment begins after two blanks."""
    text = (FORMATS / name).read_text(encoding="utf-8")
    return [
        b"".join(bytes.fromhex(line.split("  ")[0]) for line in block.splitlines())
        for block in _BLOCK.findall(text)
    ]
