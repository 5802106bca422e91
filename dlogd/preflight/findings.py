"""Findings of a preflight, and the exit code that they make. Pure."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Weight(Enum):
    """What a finding means for a start."""

    NOTE = "note"
    """It starts; somebody should know."""
    LATER = "later"
    """It does not start now, and may start when what is in its way has ended."""
    NEVER = "never"
    """No start succeeds until somebody acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence that names the cause and the cure."""

    weight: Weight
    text: str


def note(text: str) -> Finding:
    """Return a finding that stops no start."""
    return Finding(Weight.NOTE, text)


def later(text: str) -> Finding:
    """Return a finding that may be gone at the next try."""
    return Finding(Weight.LATER, text)


def never(text: str) -> Finding:
    """Return a finding that stays until somebody acts."""
    return Finding(Weight.NEVER, text)


def exit_code_of(findings: Sequence[Finding]) -> int:
    """Return the code with which a start would end (sysexits.h); 0 when it would not."""
    weights = {each.weight for each in findings}
    if Weight.NEVER in weights:
        return os.EX_CONFIG
    return os.EX_TEMPFAIL if Weight.LATER in weights else os.EX_OK
