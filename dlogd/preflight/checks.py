"""All checks of a preflight, in one list. Blocking."""

from collections.abc import Sequence

from dlog.errors import ConfigError
from dlogd.config.schema import Config
from dlogd.node import secret_files
from dlogd.preflight import address_checks, clock_checks, directory_checks, limit_checks
from dlogd.preflight.findings import Finding, never, note
from dlogd.storage.io.files import Directory
from dlogd.storage.io.posix import PosixDirectory


def _open(path: str) -> Directory:
    return PosixDirectory(path)


def _secrets(config: Config) -> list[Finding]:
    """Read the secret files as a start does: `--check-config` passes over what it may not read."""
    found = []
    for key, path in secret_files.files(config):
        try:
            secret_files.read_key(path, _open, key)
        except ConfigError as error:
            found += [never(text) for text in error.problems]
    return found


def findings(
    config: Config, wrong_values: Sequence[str] = (), faulty: Sequence[str] = ()
) -> Sequence[Finding]:
    """Look at everything that a start with this configuration needs on this host.

    `wrong_values`: what `--check-config` says about it. `faulty`: keys that have their default here
    because their value cannot be read. No sentence comes twice.
    """
    surveyed = directory_checks.survey(config)
    found = [
        *map(never, wrong_values),
        *_defaulted(faulty),
        *_secrets(config),
        *surveyed.findings,
        *address_checks.problems(config, surveyed.process),
        *limit_checks.problems(config, surveyed.log_count, runs=surveyed.process is not None),
        *clock_checks.problems(config),
    ]
    return list(dict.fromkeys(found))


def _defaulted(faulty: Sequence[str]) -> list[Finding]:
    if not faulty:
        return []
    return [note(f"the checks after this line were made with the default of {', '.join(faulty)}")]
