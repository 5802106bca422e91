"""The state of a Mersenne Twister, from 624 of its words, and what it says next.

An attacker who collects nonces does this. Only CPython's `random.Random` is meant.
"""

import random
from collections.abc import Iterator, Sequence

STATE_WORDS = 624
WORD_BYTES = 4


def words_of(texts: Sequence[bytes]) -> Iterator[int]:
    """Return the 32-bit words of what `randbytes` gave, in the order of their making."""
    for text in texts:
        for at in range(0, len(text), WORD_BYTES):
            yield int.from_bytes(text[at : at + WORD_BYTES], "little")


def rebuilt(texts: Sequence[bytes]) -> random.Random:
    """Return a generator that goes on where the one that gave `texts` is, if one did."""
    words = list(words_of(texts))[-STATE_WORDS:]
    assert len(words) == STATE_WORDS
    found = random.Random()
    found.setstate((3, (*(_untempered(word) for word in words), STATE_WORDS), None))
    return found


def _untempered(word: int) -> int:
    """Undo what the generator does to a word of its state before it shows it."""
    word ^= word >> 18
    word ^= (word << 15) & 0xEFC60000
    shown = word
    for _ in range(4):  # 7 more bits are right after each
        word = shown ^ ((word << 7) & 0x9D2C5680)
    shown = word
    for _ in range(2):  # 11 more
        word = shown ^ (word >> 11)
    return word
