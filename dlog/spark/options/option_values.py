"""Values of options: numbers, switches, durations, as Spark reads them; names that are mistyped.

Pure. Options come as text under names whose case does not matter; every error names the option.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches

from dlog.spark.errors import OptionError

Options = Mapping[str, str]

LONG_MAX = 2**63 - 1
_NEAR = 0.8
"""How much of a name must be that of another to be it, mistyped (`difflib`'s ratio)."""

# Of `JavaUtils.timeStringAsMs`; without a unit these are milliseconds.
_UNITS_S = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "": 1e-3,
}
_DURATION = re.compile(r"([0-9]{1,19})([a-z]*)")


def lowered(options: Options) -> dict[str, str]:
    """Return the options by their names in lower case, values trimmed."""
    return {name.lower(): str(value).strip() for name, value in options.items()}


def wrong_value(name: str, value: str, wanted: str) -> OptionError:
    """Return the error for a value that an option cannot have."""
    return OptionError("DLOG_OPTION_VALUE", f"Option {name} is {value!r}.", f"It is {wanted}.")


def mistyped(options: Options, known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names that are almost known ones, and those; sorted.

    Other unknown names are somebody else's: Spark gives a source all that a job says.
    """
    names = {name.lower(): name for name in known}
    for name in sorted(options):
        if name.lower().startswith(("kafka.", "dlog.")) or name.lower() in names:
            continue
        for near in get_close_matches(name.lower(), names, 1, _NEAR):
            yield name, names[near]


def switch(options: Options, name: str, default: bool) -> bool:
    """Return an option that is true or false."""
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise wrong_value(name, text, "true or false")
    return text.lower() == "true"


def whole_number(options: Options, name: str, *, least: int, most: int = LONG_MAX) -> int | None:
    """Return an option that is a number in these bounds; None when nobody said it."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not least <= int(text) <= most:
        wanted = f"at least {least}" if most == LONG_MAX else f"from {least} to {most}"
        raise wrong_value(name, text, f"a whole number, {wanted}")
    return int(text)


def milliseconds(options: Options, name: str, default_s: float) -> float:
    """Return in seconds an option that is given in milliseconds."""
    found = whole_number(options, name, least=0, most=2**31 - 1)
    return default_s if found is None else found / 1000


def duration_s(options: Options, name: str, default_s: float) -> float:
    """Return in seconds an option like `15m`, `30s` or `500` (milliseconds)."""
    text = options.get(name.lower())
    if text is None:
        return default_s
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS_S:
        raise wrong_value(name, text, "a duration such as 30s, 15m, 2h")
    return int(match[1]) * _UNITS_S[match[2]]


def one_of(options: Options, name: str, names: Mapping[str, str]) -> str | None:
    """Return what the option's value stands for among `names` (in lower case)."""
    text = options.get(name.lower())
    if text is None:
        return None
    if text.lower() not in names:
        raise wrong_value(name, text, " or ".join(names))
    return names[text.lower()]
