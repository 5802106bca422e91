r"""Patterns of Java, as `subscribePattern` of Spark's Kafka source has them, read by `re`.

Pure. Most patterns for names of topics mean the same in both. `\Q..\E` and `\z` are put into
Python's words; all else that only `java.util.regex` knows, or reads otherwise, is refused: nothing
is guessed. (`java.util.regex.Pattern` of Java 17, Python's `re`.)
"""

import re
from functools import lru_cache

__all__ = ["PatternError", "compile_pattern"]

# A class may begin with its own end, which is a letter there.
_TOKEN = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\[1-9]\d\d|\\.|\(\?[P#>]|\[\^?\]?|[*+?}]\+|&&|.", re.DOTALL
)
_POSSESSIVE = "what never gives back ((?>, *+, ++, ?+) is not supported"
_NEVER = {
    "(?P": "(?P is none of Java's",
    "(?#": "(?# is none of Java's",
    "(?>": _POSSESSIVE,
}


class PatternError(ValueError):
    """A pattern that is none, or means something else here than in Java."""


@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern to look for in names of topics; raises PatternError."""
    text, in_class = "", False
    for found in _TOKEN.finditer(pattern):
        token, quoted = found[0], found["quoted"]
        if quoted is not None:
            text += re.escape(quoted)
            continue
        _refuse(token, in_class)
        if token[0] == "[" or (token == "]" and in_class):
            in_class = not in_class
        text += r"\Z" if token == r"\z" and not in_class else token
    try:
        return re.compile(text, re.ASCII)
    except (re.error, ValueError) as error:  # the latter about (?u)
        raise PatternError(f"Python's re says {error}") from error
    except (OverflowError, RecursionError) as error:
        raise PatternError("it is too large") from error


def _refuse(token: str, in_class: bool) -> None:
    """Raise PatternError for what `re` would read otherwise than Java, without a word."""
    if in_class:
        if token[0] == "[" or token == "&&":
            raise PatternError("a class within a class ([a[b]], [a&&b]) is not supported")
    elif token in _NEVER:
        raise PatternError(_NEVER[token])
    elif len(token) == 2 and token[0] in "*+?}":
        raise PatternError(_POSSESSIVE)
    elif len(token) == 4:
        raise PatternError(f"{token} is a character here, and a group in Java")
