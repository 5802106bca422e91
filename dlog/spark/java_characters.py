"""Which of the characters of topics' names a class or an escape of Java's patterns means.

Pure. Names of topics have 65 characters (`NAMES`), so every class of `java.util.regex.Pattern` is
the set of those in it: unions, intersections and negations are those of sets.
"""

import re
import string
import unicodedata
from collections.abc import Mapping

Chars = frozenset[str]

NAMES: Chars = frozenset(string.ascii_letters + string.digits + "._-")
"""What Kafka allows in the name of a topic."""
_NONE: Chars = frozenset()
_LETTERS, _DIGITS = frozenset(string.ascii_letters), frozenset(string.digits)
_LOWER, _UPPER = frozenset(string.ascii_lowercase), frozenset(string.ascii_uppercase)
_PUNCTUATION = NAMES - _LETTERS - _DIGITS

_CONTROLS = {"t": 9, "n": 10, "r": 13, "f": 12, "a": 7, "e": 27}
_CLASSES: Mapping[str, Chars] = {
    "d": _DIGITS,
    "w": _LETTERS | _DIGITS | {"_"},
    # No name has any kind of white space.
    **dict.fromkeys("shv", _NONE),
}
_PROPERTIES: Mapping[str, Chars] = {
    **dict.fromkeys(("Lower", "javaLowerCase", "IsLowercase"), _LOWER),
    **dict.fromkeys(("Upper", "javaUpperCase", "IsUppercase"), _UPPER),
    **dict.fromkeys(("Alpha", "IsAlphabetic", "javaAlphabetic"), _LETTERS),
    **dict.fromkeys(("IsLetter", "javaLetter", "IsLatin"), _LETTERS),
    **dict.fromkeys(("Digit", "IsDigit", "javaDigit"), _DIGITS),
    **dict.fromkeys(("Alnum", "javaLetterOrDigit"), _LETTERS | _DIGITS),
    **dict.fromkeys(("Punct", "IsPunctuation"), _PUNCTUATION),
    **dict.fromkeys(("ASCII", "Graph", "Print", "InBasic_Latin", "InBasicLatin"), NAMES),
    **dict.fromkeys(("Blank", "Cntrl", "Space", "IsWhite_Space", "javaWhitespace"), _NONE),
    "XDigit": frozenset(string.hexdigits),
}
_CASED = (_LOWER, _UPPER)
_CATEGORY = re.compile(r"(?:Is)?([LMNPSZC][a-z]?)")


class PatternError(ValueError):
    """A pattern that is none of Java's, or whose meaning cannot be had here; the text says why."""


class Scanner:
    """The letters of a pattern, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def peek(self, ahead: int = 0) -> str:
        """Return the next letter, or one behind it; empty at the end."""
        return self._text[self._at + ahead : self._at + ahead + 1]

    def take(self) -> str:
        """Return the next letter and go on; raises PatternError at the end."""
        found = self.peek()
        if not found:
            raise PatternError("it ends too early")
        self._at += 1
        return found

    def accept(self, text: str) -> bool:
        """Pass over a text if it comes next."""
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def match(self, pattern: str) -> re.Match[str] | None:
        """Pass over what a pattern of Python's matches next."""
        found = re.compile(pattern).match(self._text, self._at)
        if found is not None:
            self._at = found.end()
        return found


def span(first: int, last: int, folds: bool) -> Chars:
    """Return the characters between two code points; `folds`: in either case, as with `(?i)`."""
    found = frozenset(each for each in NAMES if first <= ord(each) <= last)
    return found | {each.swapcase() for each in found} if folds else found


def escaped(scanner: Scanner, folds: bool) -> int | Chars:
    r"""Return what comes behind a backslash: one code point, or a class such as `\d`.

    Raises PatternError for what has no meaning in Java, or a name that is not known here.
    """
    letter = scanner.take()
    if letter in _CONTROLS:
        return _CONTROLS[letter]
    if letter.lower() in _CLASSES:
        found = _CLASSES[letter.lower()]
        return found if letter.islower() else NAMES - found
    if letter in "pP":
        found = _property(scanner, folds)
        return found if letter == "p" else NAMES - found
    if letter == "c":
        return ord(scanner.take()) ^ 64
    if letter in "0xu":
        return _code_point(scanner, letter)
    if letter.isascii() and letter.isalnum():
        raise PatternError(f"\\{letter} is not known")
    return ord(letter)


def _code_point(scanner: Scanner, kind: str) -> int:
    shapes = {
        "0": r"([0-3][0-7]{2}|[0-7]{1,2})",
        "x": r"\{([0-9A-Fa-f]{1,8})\}|([0-9A-Fa-f]{2})",
        "u": r"([0-9A-Fa-f]{4})",
    }
    found = scanner.match(shapes[kind])
    code = -1 if found is None else int(found[found.lastindex or 1], 8 if kind == "0" else 16)
    if not 0 <= code <= 0x10FFFF:
        raise PatternError(f"\\{kind} is followed by no code point")
    return code


def _property(scanner: Scanner, folds: bool) -> Chars:
    found = scanner.match(r"\{([^{}]*)\}|([A-Z])")
    name = "" if found is None else found[1] or found[2] or ""
    category = _CATEGORY.fullmatch(name)
    if name in _PROPERTIES:
        chars = _PROPERTIES[name]
    elif category is not None:
        chars = frozenset(
            each for each in NAMES if unicodedata.category(each).startswith(category[1])
        )
    else:
        raise PatternError(f"\\p{{{name}}} is not known")
    return _LETTERS if folds and chars in _CASED else chars


def char_class(scanner: Scanner, folds: bool) -> Chars:
    """Return what a class means, from behind its `[` to its `]`; raises PatternError.

    `&&` binds least, and `^` turns over the whole of it, as in Java since 9.
    """
    is_negated = scanner.accept("^")
    found: Chars | None = None
    operand: Chars | None = None
    while True:
        if scanner.accept("&&"):
            if operand is None or scanner.peek() == "&":
                raise PatternError("&& in a class has no class on one side")
            found, operand = operand if found is None else found & operand, None
        elif scanner.peek() == "]" and (operand is not None or found is not None):
            scanner.take()
            break
        else:
            operand = (operand or _NONE) | _item(scanner, folds)
    if operand is None:
        raise PatternError("&& in a class has no class on one side")
    found = operand if found is None else found & operand
    return NAMES - found if is_negated else found


def _item(scanner: Scanner, folds: bool) -> Chars:
    """Return what one part of a class means: a class in it, a range, or one character."""
    if not scanner.peek():
        raise PatternError("a class is not closed by ]")
    if scanner.accept("["):
        return char_class(scanner, folds)
    is_vertical = scanner.peek(0) + scanner.peek(1) == "\\v"
    first = escaped(scanner, folds) if scanner.accept("\\") else ord(scanner.take())
    has_range = scanner.peek() == "-" and scanner.peek(1) not in ("", "[", "]")
    if not isinstance(first, int):
        if is_vertical and has_range:
            raise PatternError("\\v is no end of a range")
        return first
    if not has_range:
        return span(first, first, folds)
    scanner.take()
    last = escaped(scanner, folds) if scanner.accept("\\") else ord(scanner.take())
    if not isinstance(last, int) or last < first:
        raise PatternError("a range in a class ends before it begins")
    return span(first, last, folds)
