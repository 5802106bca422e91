"""Patterns of Java against names of topics: what `java.util.regex` of Java 17 finds in them.

What is found here was found by Java; `tests/spark/test_patterns.py` asks it again, for many more.
"""

import re

import pytest

from dlog.spark.errors import OptionError
from dlog.spark.java_patterns import PatternError, compile_pattern
from dlog.spark.options import parse_read_options

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
        (r"^\p{Lower}+$", "a b ab flights aaa"),
        (r"^\p{Upper}", "A Ab Flights"),
        (r"(?i)^\p{Upper}b$", "ab Ab"),
        (r"^\pL\PL", "a.b a-b a_b v1.0"),
        (r"\p{Punct}\p{Digit}", "v1.0"),
        (r"^\P{Alnum}", "__c"),
        (r"\h|\v|\R|\s", ""),
        (r"^\H\V.$", "a.b a-b a_b aaa __c"),
        (r"b\z", "b ab Ab a.b a-b a_b"),
        (r"b\Z", "b ab Ab a.b a-b a_b"),
        (r"\Gb", "b"),
        (r"^[a-z&&[^b]]$", "a"),
        (r"^[^a&&b]$", "a A b"),
        (r"^[a-z&&[^f]]+$", "a b ab aaa"),
        (r"^[\w-.]+$", TEXT),
        (r"^[[a][b]]+$", "a b ab aaa"),
        (r"(?i)flights", "flights Flights"),
        (r"^f(?i)LIGHTS|A$", "a A flights aaa"),
        (r"^(?:(?i)A)b", "ab Ab"),
        (r"(?i)^a(?-i)b", "ab Ab"),
        (r"(?i)^[a&&[^B]]$", "a A"),
        (r"^a++b", "ab"),
        (r"^a++a", ""),
        (r"^(?>a|ab)b$", "ab"),
        (r"^(?<first>a)\k<first>", "aaa"),
        (r"(?i)^(.)\1$", ""),
        (r"^(_)\1", "__c"),
        (r"a\x2eb|a\x{2d}b|\u0061\0137b", "a.b a-b a_b"),
        (r"(?m)^a$|(?s)^b.?$", "a b"),
        (r"(?<!\d)\d\d$|(?<=\.)e(?=u)", "orders.eu 12"),
        ("^((?!a|f|_).)*$", "A b Ab Flights orders.eu v1.0 12"),
        ("(?i)\u212a", ""),
        ("é", ""),
        (r"^[^é]$", "a A b"),
    ],
)
def test_a_pattern_means_what_it_means_in_java(pattern: str, names: str) -> None:
    assert found(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(?P<n>a)", "a group begins with what is none of Java's"),
        ("(?#a)", "a group begins with what is none of Java's"),
        ("(?x)a b", "the flag x is not supported, for comments"),
        ("(?iu)a", "the flag u is not supported"),
        (r"a\y", r"\y is not known"),
        (r"a\Eb", r"\E is not known"),
        (r"\p{lower}", r"\p{lower} is not known"),
        (r"\p{IsGreek}", r"\p{IsGreek} is not known"),
        (r"\X", r"\X is not known"),
        (r"\b{g}", r"\b{ is not supported"),
        (r"[\b]", r"\b is not known"),
        ("[a&&]", "&& in a class has no class on one side"),
        ("[a&&&b]", "&& in a class has no class on one side"),
        (r"[\v-z]", r"\v is no end of a range"),
        ("[z-a]", "a range in a class ends before it begins"),
        ("[a", "a class is not closed"),
        ("[]", "a class is not closed"),
        ("a{,3}", "{ is followed by no count"),
        ("a{3,1}", "{3,1} is no count"),
        ("a{2}{3}", "a { repeats nothing"),
        ("a**", "a * repeats nothing"),
        ("a|+", "a + repeats nothing"),
        (r"(a)\2", r"\2 names no group before it"),
        (r"(a\1)", "cannot refer to an open group"),
        (r"(a)++\1", "do not go along"),
        (r"\k<n>", "unknown group name"),
        ("(?<n>a)(?<n>b)", "two groups have the name n"),
        ("(?<=a|bc)d", "look-behind requires fixed-width"),
        ("(?<=a*)d", "a look-behind has no bound"),
        ("(?:^a?){2}b", "what may be empty, and depends on where it stands, is repeated"),
        ("a)", "a ) closes nothing"),
        ("(a", "a group is not closed"),
        (r"\x{110000}", r"\x is followed by no code point"),
        (r"\08", r"\0 is followed by no code point"),
        ("a\\", "it ends too early"),
        ("(" * 10_000, "it is too large"),
        ("a{99999999999}", "is no count"),
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


def test_groups_that_nothing_refers_to_are_none() -> None:
    """With groups in what is possessive `re` of Python 3.11 fails in its own code."""
    assert compile_pattern("(a|(b))*+(?<n>c)?").groups == 0
    assert compile_pattern(r"(a)(b)\2").groups == 2
