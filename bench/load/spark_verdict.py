"""Whether what two sources gave for one case is the same, and how that is told. Pure.

An outcome is a dict: `error`, `text` and `kind` of a failure, or what was read or written, by names
that are compared one by one; `waited` says of a case that is about waiting whether it did.
"""

from typing import Any, Protocol

Outcome = dict[str, Any]
SAME, TAKEN, FAIL_ALIKE = "same", "taken alike", "both fail alike"
BOTH_REFUSE, DIFFERS = "both refuse", "differs"
COMPARED = ("schema", "ends", "batches", "partitions", "tasks", "codecs", "waited", "rows")
"""What of an outcome a difference is named by, in this order."""


class Asked(Protocol):
    """What a case says of itself: `bench.load.spark_cases.Case` and others."""

    @property
    def fails(self) -> bool:
        """Whether it is to fail."""

    @property
    def intended(self) -> str:
        """Why the two differ, where they are meant to."""

    @property
    def differs(self) -> tuple[str, ...]:
        """In what they are meant to differ: names of an outcome's parts."""

    @property
    def unseen(self) -> bool:
        """Whether nothing of its options shows in what is compared."""

    @property
    def least_s(self) -> float:
        """How long it must take, in seconds."""


def verdict(case: Asked, theirs: Outcome, ours: Outcome) -> str:
    """Return SAME, TAKEN, FAIL_ALIKE, BOTH_REFUSE or DIFFERS.

    What is to fail fails alike when it does so in the same way; else both refuse it, each with
    words of its own, which somebody has to read. Where waiting is to be seen, neither may not wait.
    """
    if case.least_s and not (theirs.get("waited") and ours.get("waited")):
        return DIFFERS
    if not case.fails:
        if theirs != ours or "error" in theirs:
            return DIFFERS
        return TAKEN if case.unseen else SAME
    if "error" not in theirs or "error" not in ours:
        return DIFFERS
    return FAIL_ALIKE if theirs["kind"] and theirs["kind"] == ours["kind"] else BOTH_REFUSE


def short(outcome: Outcome) -> str:
    """Return in some words what came of a case."""
    if "error" in outcome:
        return str(outcome["error"] or outcome["text"])
    rows = outcome["rows"]
    # What was written is told as how often each row is there.
    count = sum(number for _, number in rows) if "codecs" in outcome else len(rows)
    told = f"{count} rows"
    if "ends" in outcome:
        told += f" in {len(outcome['ends'])} batches"
    if "tasks" in outcome:
        told += f", {len(outcome['tasks'])} tasks"
    if outcome.get("batches"):
        told += f", by {', '.join(map(str, outcome['batches']))}"
    if outcome.get("codecs", ["NONE"]) != ["NONE"]:
        told += f", {', '.join(outcome['codecs'])}"
    return told


def differing(theirs: Outcome, ours: Outcome) -> tuple[str, ...]:
    """Return by which names two outcomes differ; `error` alone where one of them failed."""
    if ("error" in theirs) != ("error" in ours):
        return ("error",)
    return tuple(key for key in COMPARED if theirs.get(key) != ours.get(key))


def difference(theirs: Outcome, ours: Outcome) -> str:
    """Return where two outcomes differ first; empty where that is nowhere."""
    for key in differing(theirs, ours):
        if key == "error":
            return f"error: {short(theirs)[:200]} / {short(ours)[:200]}"
        pairs = [(theirs.get(key), ours.get(key))]
        if key == "rows" and "rows" in theirs and "rows" in ours:
            pairs = [
                (a, b) for a, b in zip(theirs["rows"], ours["rows"], strict=False) if a != b
            ] or pairs
        return f"{key}: {str(pairs[0][0])[:200]} / {str(pairs[0][1])[:200]}"
    return "neither waited" if theirs.get("waited") is False else ""


def is_meant(case: Asked, theirs: Outcome, ours: Outcome) -> bool:
    """Return whether two outcomes differ as they are meant to: in that, and in nothing else."""
    return bool(case.intended) and set(differing(theirs, ours)) == set(case.differs)
