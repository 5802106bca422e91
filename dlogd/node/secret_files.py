"""Files with secrets: permissions, owner, and strength of the secret.

A start refuses what is wrong here; `--check-config` and `dlogctl config check` report it. The check
of the secret's strength knows the form that random generators give (base64, hexadecimal), not how
the secret was made. Blocking. `dlogd.node.cluster_node`, `dlogd.__main__` and dlogctl call it.
"""

import base64
import binascii
import logging
import os
import re
from collections.abc import Callable
from itertools import pairwise

from dlog.errors import ConfigError
from dlogd.config.choices import MembershipKind
from dlogd.config.schema import Config
from dlogd.storage.io.files import Directory

log = logging.getLogger(__name__)

SECRET_BYTES_MAX = 4096
RANDOM_BYTES_MIN = 16
"""128 bits."""
DISTINCT_MIN = 8
"""Different characters. 32 random hexadecimal digits have fewer once in 10^7 secrets."""
OF_OTHERS = 0o007
WRITABLE_BY_GROUP = 0o020
READABLE_BY_GROUP = 0o050
SECRET_KEY = "cluster.secret.file"
SERF_KEY = "serf.key.file"
GENERATOR = "(umask 077; head -c 32 /dev/urandom | base64 > {path})"

_HEX = re.compile(rb"[0-9a-f]+|[0-9A-F]+")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}|[A-Za-z0-9_-]+={0,2}")
_PRINTABLE = re.compile(rb"[ -~\s]+")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")

OpenDirectory = Callable[[str], Directory]


def is_strong(secret: bytes) -> bool:
    """Whether a secret looks like at least 128 random bits in base64 or hexadecimal.

    A form only: nobody can tell random bytes from words that were made to look like them.
    """
    text = b"".join(secret.split())
    if len(set(text)) < DISTINCT_MIN or text in (text + text)[1:-1]:
        return False  # few characters, or the same ones again
    if _HEX.fullmatch(text):
        if text.isdigit():
            return False  # once in 10^6 secrets
        return len(text) >= 2 * RANDOM_BYTES_MIN and not _is_ladder(text)
    # 16 random bytes lack one of the two cases once in 10^5 secrets; words often do.
    if not _BASE64.fullmatch(text) or text.lower() == text or text.upper() == text:
        return False
    body = text.rstrip(b"=").translate(_TO_STANDARD)
    try:
        decoded = base64.b64decode(body + b"=" * (-len(body) % 4))
    except binascii.Error:
        return False
    return len(decoded) >= RANDOM_BYTES_MIN and not _PRINTABLE.fullmatch(decoded)


def _is_ladder(digits: bytes) -> bool:
    """Whether each byte is as far from the last one as all others."""
    found = bytes.fromhex(digits.decode("ascii")[: len(digits) // 2 * 2])
    return len({(b - a) % 256 for a, b in pairwise(found)}) == 1


def read_key(path: str, open_directory: OpenDirectory, key: str) -> bytes:
    """Return what a secret file holds; raise ConfigError, also for what others may do with it."""
    try:
        content, mode, owner = _read(path, open_directory)
    except OSError as error:
        raise ConfigError(f"{key} {path} cannot be read: {error}") from error
    wrong = _access_problem(path, key, mode, owner, _users())
    if wrong is not None:
        raise ConfigError(wrong)
    if mode & READABLE_BY_GROUP:
        log.warning(
            "A secret is open to the file's group key=%s path=%s mode=%04o cure='chmod 600 %s'",
            key,
            path,
            mode,
            path,
        )
    return content


def read_secret(path: str, open_directory: OpenDirectory) -> bytes:
    """Return the cluster's secret; raise ConfigError."""
    secret = read_key(path, open_directory, SECRET_KEY)
    if not is_strong(secret):
        raise ConfigError(_weakness(path))
    return secret


def problems(
    config: Config, open_directory: OpenDirectory, users: frozenset[int] = frozenset()
) -> list[str]:
    """Return what is wrong with the secret files that there are, one sentence each.

    `users`: who may own them besides root and the user of this process. A file that cannot be read
    is no problem here: the configuration may be checked on another host, or by another user.
    """
    found = []
    for key, path in files(config):
        try:
            content, mode, owner = _read(path, open_directory)
        except OSError:
            continue
        wrong = _access_problem(path, key, mode, owner, _users() | users)
        if wrong is not None:
            found.append(wrong)
        if key == SECRET_KEY and not is_strong(content):
            found.append(_weakness(path))
    return found


def files(config: Config) -> list[tuple[str, str]]:
    """Return key and path of the secret files that this configuration uses."""
    found = []
    if config.controllers is not None and config.cluster.secret_file is not None:
        found.append((SECRET_KEY, config.cluster.secret_file))
    if config.membership.kind is MembershipKind.SERF and config.serf.key_file is not None:
        found.append((SERF_KEY, config.serf.key_file))
    return found


def _read(path: str, open_directory: OpenDirectory) -> tuple[bytes, int, int]:
    """Return what a file holds, its permission bits, and the id of its owner."""
    folder, name = os.path.split(os.path.abspath(path))
    directory = open_directory(folder)
    file = directory.open(name, read_only=True)
    try:
        content = file.pread(min(file.size(), SECRET_BYTES_MAX), 0).strip()
    finally:
        file.close()
    return content, directory.mode(name), directory.owner(name)


def _users() -> frozenset[int]:
    return frozenset({0, os.geteuid()})


def _access_problem(
    path: str, key: str, mode: int, owner: int, users: frozenset[int]
) -> str | None:
    if owner not in users:
        return (
            f"{key} {path} belongs to user {owner}, who does not run the daemon and can change the"
            f" file: give {path} to the daemon's user with chown"
        )
    if mode & (OF_OTHERS | WRITABLE_BY_GROUP):
        return (
            f"{key} {path} is open to other users (mode {mode:04o}): run chmod 600 {path},"
            " and make a new secret if others may have read it"
        )
    return None


def _weakness(path: str) -> str:
    return (
        f"{SECRET_KEY} {path} can be guessed: it has to be at least {RANDOM_BYTES_MIN} random bytes"
        f" in base64 or hexadecimal; stop all nodes, run {GENERATOR.format(path=path)} and copy the"
        " file to all of them"
    )
