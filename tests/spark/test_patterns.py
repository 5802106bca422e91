"""Patterns as `subscribePattern` has them, beside Java's own answers: what is taken is the same."""

import random

from pyspark.sql import SparkSession

from dlog.spark.options.java_patterns import PatternError, compile_pattern

TEXT = "a A b ab aB Ab abc ABC a.b a-b a_b Flights v1.0 123 a1 1a _a -a .a aaa aab abab k Z"
NAMES = TEXT.split()
ATOMS = (
    *("a", "b", "A", "B", ".", "-", "1", r"\.", r"\d", r"\w", r"\W", r"\b", "^", "$", r"\z", r"\Z"),
    *("[ab]", "[^a]", "[]a]", "[a-]", "[*+]", r"[\w.-]", r"\Qa.\E", r"[\Q]-\E]", r"\x61", r"\1"),
    *("(?i)", "}", "]", r"\B", r"\A", "&&", r"\H", r"\p{Lower}", "[a-c&&[^b]]"),
)
COUNTS = ("*", "+", "?", "*?", "+?", "??", "++", "{2}", "{1,2}", "{0,2}?")
GROUPS = ("(", "(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?<n>", "(?-i:")
WANTED = 400


def made(rng: random.Random, depth: int = 0) -> str:
    parts = []
    for _ in range(rng.randint(1, 4)):
        is_group = depth < 3 and rng.random() < 0.3
        parts.append(
            f"{rng.choice(GROUPS)}{made(rng, depth + 1)})" if is_group else rng.choice(ATOMS)
        )
        parts += [rng.choice(COUNTS) for _ in range(rng.random() < 0.4)]
        parts += ["|" for _ in range(rng.random() < 0.12)]
    return "".join(parts)


def test_what_is_taken_is_found_where_java_finds_it(spark: SparkSession) -> None:
    """And is a pattern of Java's at all: else the query would fail."""
    rng = random.Random(17)
    wanted = []
    while len(wanted) < WANTED * len(NAMES):
        pattern = made(rng)
        try:
            search = compile_pattern(pattern).search
        except PatternError:
            continue
        wanted += [(pattern, name, search(name) is not None) for name in NAMES]
    frame = spark.createDataFrame(wanted, "pattern string, name string, ours boolean")
    differ = frame.where("(name rlike pattern) != ours").limit(10).collect()
    assert differ == []
