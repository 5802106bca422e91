"""Log lines of the client: one event each, past tense, `key=value` after it.

The logger is `dlog.client`, in the standard `logging`; a program that sets none up sees nothing.
Rediscoveries and retries are `INFO`, connections lost and calls given up `WARNING`.
"""

import logging

LOGGER = logging.getLogger("dlog.client")
LOGGER.addHandler(logging.NullHandler())

VALUE_CHARS_MAX = 300


def format_value(value: object) -> str:
    """Return a value as it stands in a line: quoted when it has a space, a quote or nothing."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if len(text) > VALUE_CHARS_MAX:
        text = text[: VALUE_CHARS_MAX - 3] + "..."
    plain = text and text.isprintable() and not any(each in text for each in " '\"=")
    return text if plain else repr(text)


def format_event(event: str, **values: object) -> str:
    """Return `event key=value ...`; what is None is left out."""
    pairs = (f" {key}={format_value(each)}" for key, each in values.items() if each is not None)
    return event + "".join(pairs)


def log_event(level: int, event: str, **values: object) -> None:
    """Log one event; costs next to nothing when nobody listens at that level."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, "%s", format_event(event, **values))


def error_name(error: BaseException) -> str:
    """Return the short name of an error: the protocol's where it has one."""
    name = getattr(error, "name", None)
    return name if isinstance(name, str) else type(error).__name__
