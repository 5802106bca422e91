"""Maintenance lock as operators see it: facts, a line of text, and the option with its token."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

import click

from dlog.client.admin_views import MaintenanceLock
from dlog.errors import DlogError, PolicyViolationError
from dlogctl import exit_codes
from dlogctl.output.documents import format_time
from dlogctl.settings import settings_of


class HeldByOthersError(DlogError):
    """Another operator works on the cluster; the text says who, since when, and how it ends."""

    exit_code = exit_codes.UNHEALTHY


VARIABLE = "DLOG_MAINTENANCE_TOKEN"
LIFETIME_S_MAX = 3_600
OWNER_LENGTH_MAX = 255
"""Bounds of the cluster."""

Command = TypeVar("Command", bound=Callable[..., Any])


@contextmanager
def held_back() -> Iterator[None]:
    """Do what the lock may hold back; raise HeldByOthersError if it does."""
    try:
        yield
    except PolicyViolationError as error:
        raise HeldByOthersError(str(error)) from None


def facts_of(lock: MaintenanceLock) -> dict[str, Any]:
    """Return what documents show of a lock."""
    return {
        "owner": lock.owner,
        "node": lock.node,
        "since": format_time(lock.since_ms),
        "expires": format_time(lock.expires_ms),
    }


def line_of(facts: dict[str, Any]) -> str:
    """Say in one line who is at it, since when, and when it ends."""
    node = "" if facts["node"] is None else f" (node {facts['node']})"
    return f"{facts['owner']}{node}, since {facts['since']}, until {facts['expires']}"


def _take_token(context: click.Context, _option: click.Parameter, text: str | None) -> UUID | None:
    text = text or settings_of(context).environ.get(VARIABLE)
    try:
        return UUID(text) if text else None
    except ValueError:
        raise click.BadParameter(f"{text!r} is no UUID ({VARIABLE} counts as well)") from None


def token_option(name: str, meaning: str) -> Callable[[Command], Command]:
    """Return an option for the token of the lock, which the environment may give."""
    return click.option(
        name, "token", callback=_take_token, metavar="UUID", help=f"{meaning} ({VARIABLE})."
    )


permit_option = token_option("--maintenance-token", "Token of the maintenance lock, if you hold it")
"""For commands that the lock holds back for all but its holder."""
