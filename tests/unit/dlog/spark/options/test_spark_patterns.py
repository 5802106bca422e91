"""Patterns of Java against names of topics: what `java.util.regex` of Java 17 finds in them.

What is found here was found by Java; `tests/spark/test_patterns.py` asks it again, for many more.
"""

import re

import pytest

from dlog.spark.errors import OptionError
from dlog.spark.options.java_patterns import PatternError, compile_pattern
from dlog.spark.options.options import parse_read_options

TEXT = "a A b ab Ab a.b a-b a_b flights Flights orders.eu v1.0 aaa __c 12"
NAMES = TEXT.split()


def found(pattern: str) -> str:
    search = compile_pattern(pattern).search
    return " ".join(name for name in NAMES if search(name))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"\Qa.b\E", "a.b"),
        (r"a\Q.", "a.b"),
        (r"^\Qa\E+$", "a aaa"),
        (r"^[\Q.-\Ea]+$", "a aaa"),
        (r"b\z", "b ab Ab a.b a-b a_b"),
        (r"b\Z", "b ab Ab a.b a-b a_b"),
        (r"\\z|\\Q|12", "12"),
        (r"^[^f\w]|^[]f]", "flights"),
        (r"^[a&]|&&", "a ab a.b a-b a_b aaa"),
        (r"^[\w.-]+$", TEXT),
        (r"(?i)flights", "flights Flights"),
        (r"^[a*+b?+]{3}", "aaa"),
        (r"^(?:(?i:A))b", "ab Ab"),
        (r"(?i)^a(?-i:b)", "ab Ab"),
        (r"(?i)^(.)\1$", ""),
        (r"^(_)\1", "__c"),
        (r"a\x2eb|\u0061\055b", "a.b a-b"),
        (r"(?<!\d)\d\d$|(?<=\.)e(?=u)", "orders.eu 12"),
        ("^((?!a|f|_).)*$", "A b Ab Flights orders.eu v1.0 12"),
        ("(?i)\u212a", ""),
        ("é", ""),
    ],
)
def test_a_pattern_means_what_it_means_in_java(pattern: str, names: str) -> None:
    assert found(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(?P<n>a)", "(?P is none of Java's"),
        ("(?#a)", "(?# is none of Java's"),
        ("a++", "what never gives back"),
        ("[a]*+", "what never gives back"),
        ("a{2}+", "what never gives back"),
        ("(?>a|ab)b", "what never gives back"),
        ("[a&&b]", "a class within a class"),
        ("[a[b]]", "a class within a class"),
        ("[[a]b]", "a class within a class"),
        (r"(a)\101", "is a character here, and a group in Java"),
        (r"\p{Lower}", r"bad escape \p"),
        (r"\h", r"bad escape \h"),
        (r"[\z]", r"bad escape \z"),
        (r"a\Eb", r"bad escape \E"),
        ("a(?i)b", "global flags not at the start"),
        ("(?iu)a", "ASCII and UNICODE flags are incompatible"),
        ("(?<n>a)", "unknown extension ?<n"),
        ("(?<=a|bc)d", "look-behind requires fixed-width"),
        (r"(a)\2", "invalid group reference 2"),
        ("[z-a]", "bad character range z-a"),
        ("[a", "unterminated character set"),
        ("a)", "unbalanced parenthesis"),
        ("(a", "missing ), unterminated subpattern"),
        ("a**", "multiple repeat"),
        ("a\\", "bad escape (end of pattern)"),
        ("(" * 10_000, "it is too large"),
        ("a{99999999999}", "it is too large"),
    ],
)
def test_what_cannot_be_had_is_refused_with_its_cause_and_a_cure(pattern: str, says: str) -> None:
    with pytest.raises(PatternError, match=re.escape(says)):
        compile_pattern(pattern)
    options = {"kafka.bootstrap.servers": "h:1", "subscribePattern": pattern}
    with pytest.raises(OptionError) as error:
        parse_read_options(options, is_streaming=True)
    text = str(error.value)
    assert text.startswith("[DLOG_OPTION_VALUE] subscribePattern is ")
    assert says in text and "name the topics with subscribe" in text and len(text) < 1000
