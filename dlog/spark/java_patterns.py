r"""Patterns of Java, as `subscribePattern` of Spark's Kafka source has them, as Python's.

Pure. `java.util.regex` and `re` differ in what they take, and in what the same letters mean: `\Z`,
`\h`, `\v`, `[a&&b]`, `(?i)` in the middle, `\p{Lower}`. So a pattern is taken apart, and put
together anew of what both understand: every character or class is the set of the characters of
topics' names that it means (`dlog.spark.java_characters`), everything else is the same in both.
What is neither Java's nor to be had here raises PatternError; nothing is guessed.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from dlog.spark.java_characters import (
    NAMES,
    Chars,
    PatternError,
    Scanner,
    char_class,
    escaped,
    span,
)

__all__ = ["PatternError", "compile_pattern"]

COUNT_MAX = 2**31 - 1
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)|\\.", re.DOTALL)
# A name has one line, of which all these say the end.
_ANCHORS = {"A": r"\A", "G": r"\A", "z": r"\Z", "Z": r"\Z", "b": r"\b", "B": r"\B"}
_NOT_HERE = {
    "x": "comments",
    "u": "letters outside ASCII, which no topic has",
    "U": "letters outside ASCII, which no topic has",
}


@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the pattern to look for in names of topics; raises PatternError."""
    try:
        found = _Translation(pattern)
        text = found.whole()
        if found.refers:
            # Groups are kept for this alone: `re` has bugs where they meet what is possessive.
            if found.is_possessive:
                raise PatternError("what is possessive and a reference to a group do not go along")
            text = _Translation(pattern, keeps_groups=True).whole()
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise PatternError(error.msg) from error
    except (OverflowError, RecursionError) as error:
        raise PatternError("it is too large") from error


def _unquoted(pattern: str) -> str:
    r"""Return the pattern with the code points of all that stands between `\Q` and `\E`."""

    def spelled(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        return "".join(f"\\x{{{ord(each):x}}}" for each in found[1])

    return _QUOTED.sub(spelled, pattern)


def _text_of(chars: Chars) -> str:
    if chars == NAMES:
        return "."
    if not chars:
        return r"[^\s\S]"
    return f"[{''.join(re.escape(each) for each in sorted(chars))}]"


class _Part(NamedTuple):
    """A part of a pattern in Python's letters."""

    text: str
    may_be_empty: bool
    has_place: bool = False
    """Whether it depends on more than the letters that it takes: anchors, looks, references."""


class _Count(NamedTuple):
    """How often a part may be there; `most` None: without a bound."""

    text: str
    least: int
    most: int | None


class _Translation:
    """One pattern on its way. `_folds`: whether `(?i)` holds here; `_behind`: looks back."""

    def __init__(self, pattern: str, *, keeps_groups: bool = False) -> None:
        self._scanner = Scanner(_unquoted(pattern))
        self._keeps_groups = keeps_groups
        self.refers = self.is_possessive = False
        self._folds = self._behind = False
        self._groups = 0
        self._names = set[str]()

    def whole(self) -> str:
        found = self._alternatives()
        if self._scanner.peek():
            raise PatternError("a ) closes nothing")
        return found.text

    def _alternatives(self) -> _Part:
        """Return what stands up to the end of the group; flags end with it."""
        folds, text, has_place = self._folds, "", False
        is_empty, may_be_empty = True, False
        while self._scanner.peek() not in ("", ")"):
            if self._scanner.accept("|"):
                text, is_empty, may_be_empty = text + "|", True, may_be_empty or is_empty
                continue
            part = self._piece()
            text, has_place = text + part.text, has_place or part.has_place
            is_empty = is_empty and part.may_be_empty
        self._folds = folds
        return _Part(text, may_be_empty or is_empty, has_place)

    def _piece(self) -> _Part:
        """Return one thing, and how often it may be there."""
        letter = self._scanner.take()
        if letter in "*+?{":
            raise PatternError(f"a {letter} repeats nothing")
        part = self._group() if letter == "(" else self._thing(letter)
        count = self._count() if part.text else None
        if count is None:
            return part
        text, is_many = part.text, count.most is None or count.most > 1
        if letter == "(" and is_many and part.may_be_empty and part.has_place:
            # Where a turn takes nothing Java ends the loop, `re` may go on to others.
            raise PatternError("what may be empty, and depends on where it stands, is repeated")
        if self._behind and count.most is None:
            raise PatternError("a look-behind has no bound")
        is_possessive = count.text.endswith("+") and len(count.text) > 1
        self.is_possessive |= is_possessive
        if part.has_place and letter != "(":
            text = f"(?:{text})"  # `re` repeats no anchors
        elif letter == "(" and is_possessive:
            # Java never goes back into a turn of what is possessive, `re` does until it has all.
            text = f"(?>{text})"
        return _Part(text + count.text, part.may_be_empty or not count.least, part.has_place)

    def _thing(self, letter: str) -> _Part:
        """Return what is no group: a character, a class, an anchor, a reference."""
        if letter in "^$":
            return _Part(r"\A" if letter == "^" else r"\Z", True, True)
        if letter == "\\":
            return self._escaped()
        if letter == "[":
            return _Part(_text_of(char_class(self._scanner, self._folds)), False)
        if letter == ".":
            return _Part(".", False)
        return _Part(_text_of(span(ord(letter), ord(letter), self._folds)), False)

    def _count(self) -> _Count | None:
        """Return how often, with what says how greedily; None for once."""
        scanner = self._scanner
        if scanner.accept("*"):
            text, least, most = "*", 0, None
        elif scanner.accept("+"):
            text, least, most = "+", 1, None
        elif scanner.accept("?"):
            text, least, most = "?", 0, 1
        elif scanner.peek() == "{":
            text, least, most = self._said_count()
        else:
            return None
        kind = scanner.peek()
        return _Count(text + (scanner.take() if kind and kind in "?+" else ""), least, most)

    def _said_count(self) -> _Count:
        found = self._scanner.match(r"\{([0-9]{1,12})(,?)([0-9]{0,12})\}")
        if found is None or (found[3] and not found[2]):
            raise PatternError("{ is followed by no count and }")
        least, most = int(found[1]), int(found[3] or found[1])
        if most < least or most > COUNT_MAX:
            raise PatternError(f"{found[0]} is no count")
        return _Count(found[0], least, None if found[2] and not found[3] else most)

    def _group(self) -> _Part:
        """Return a group; one without a text only sets flags, to the end of the group around."""
        scanner = self._scanner
        folds, behind, looks = self._folds, self._behind, False
        if not scanner.accept("?"):
            head = self._numbered("")
        elif found := scanner.match(r"<([a-zA-Z][a-zA-Z0-9]*)>"):
            head = self._numbered(found[1])
        elif found := scanner.match(r":|=|!|>|<=|<!"):
            head = f"(?{found[0]}"
            self.is_possessive |= found[0] == ">"
            looks = found[0] not in ":>"
            self._behind |= "<" in found[0]
        else:
            head = "(?:"
            self._flags()
            if scanner.accept(")"):
                return _Part("", True)
            if not scanner.accept(":"):
                raise PatternError("a group begins with what is none of Java's")
        inside = self._alternatives()
        if not scanner.accept(")"):
            raise PatternError("a group is not closed by )")
        self._folds, self._behind = folds, behind
        text = f"{head}{inside.text})"
        return _Part(text, looks or inside.may_be_empty, looks or inside.has_place)

    def _numbered(self, name: str) -> str:
        """Return how a group begins that a reference may name."""
        self._groups += 1
        if name in self._names:
            raise PatternError(f"two groups have the name {name}")
        self._names.update([name] if name else [])
        if not self._keeps_groups:
            return "(?:"
        return f"(?P<{name}>" if name else "("

    def _flags(self) -> None:
        found = self._scanner.match(r"([idmsuxU]*)(?:-([idmsuxU]*))?(?=[:)])")
        if found is None:
            raise PatternError("a group begins with what is none of Java's")
        for flag in found[1]:
            if flag in _NOT_HERE:
                raise PatternError(f"the flag {flag} is not supported, for {_NOT_HERE[flag]}")
        # The others are about ends of lines, which no name has.
        if "i" in found[1]:
            self._folds = True
        if "i" in (found[2] or ""):
            self._folds = False

    def _escaped(self) -> _Part:
        r"""Return what comes behind a backslash outside of classes."""
        scanner = self._scanner
        letter = scanner.peek()
        if letter and letter in _ANCHORS:
            scanner.take()
            if letter == "b" and scanner.peek() == "{":
                raise PatternError("\\b{ is not supported")
            return _Part(_ANCHORS[letter], True, True)
        if scanner.accept("R"):
            return _Part(_text_of(frozenset()), False)  # an end of a line
        if letter and letter in "123456789k":
            return _Part(self._reference(), True, True)
        found = escaped(scanner, self._folds)
        chars = span(found, found, self._folds) if isinstance(found, int) else found
        return _Part(_text_of(chars), False)

    def _reference(self) -> str:
        scanner, self.refers = self._scanner, True
        if scanner.accept("k"):
            found = scanner.match(r"<([a-zA-Z][a-zA-Z0-9]*)>")
            if found is None:
                raise PatternError("\\k is followed by no <name>")
            what = f"(?P={found[1]})"
        else:
            number = int(scanner.take())
            while (digit := scanner.peek()) and digit in "0123456789":
                if number * 10 + int(digit) > self._groups:
                    break
                number = number * 10 + int(scanner.take())
            if number > self._groups:
                raise PatternError(f"\\{number} names no group before it")
            what = f"\\{number}"
        return f"(?i:{what})" if self._folds else f"(?:{what})"
