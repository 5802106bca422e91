"""Secrets that can be guessed, and files that others may read or change, are refused."""

import base64
import os
import random
import secrets
from pathlib import Path

import pytest

from dlog.errors import ConfigError
from dlogctl.__main__ import main as dlogctl
from dlogd import __main__ as daemon
from dlogd.config.load import load_config
from dlogd.node import secret_files
from dlogd.node.secret_files import is_strong
from dlogd.storage.io.posix import PosixDirectory

GOOD = b"5Ou0zTq1mVbYJp8wC3xKQg=="


@pytest.mark.parametrize("size", [16, 24, 32, 64])
def test_what_random_generators_give_is_taken(size: int) -> None:
    rng = random.Random(size)
    for _ in range(500):
        raw = rng.randbytes(size)
        for text in (
            base64.b64encode(raw),
            base64.encodebytes(raw),  # with a line feed after each 76 characters
            base64.urlsafe_b64encode(raw).rstrip(b"="),  # as `secrets.token_urlsafe`
            raw.hex().encode(),
            raw.hex().upper().encode(),
        ):
            assert is_strong(text), text
    assert is_strong(secrets.token_hex(32).encode())


@pytest.mark.parametrize(
    "secret",
    [
        b"",
        b"short",
        b"changeme-changeme",
        b"changeme-changeme-changeme-changeme",
        b"correcthorsebatterystaple",
        b"correct horse battery staple and more words",
        b"PasswordPasswordPasswordPassword",
        b"123456789012345678901234567890123456",
        b"deadbeef" * 8,
        b"0123456789abcdef" * 4,
        bytes(range(48, 78)),  # punctuation between
        b"92edb99b0910ce97100d317530a617",  # 15 random bytes
        b"Cff8k/Z8Ocs5DHNnC4Tn",
        base64.b64encode(bytes(48)),
        b"\x00" * 32,
        b"\xff\x01\x80" + bytes(range(100, 140)),
        b"00112233445566778899aabbccddeeff",
        b"000102030405060708090a0b0c0d0e0f",
        base64.b64encode(b"correct horse battery staple"),
        base64.b64encode(b"ChangeMeChangeMe"),
        b"6f1c0e1a-7d55-4b8e-9a53-0a9ad8e0f6b1",  # a UUID has 122 random bits
    ],
)
def test_what_can_be_guessed_is_refused(tmp_path: Path, secret: bytes) -> None:
    assert not is_strong(secret)
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(secret)
    with pytest.raises(ConfigError, match=r"can be guessed.*head -c 32 /dev/urandom \| base64"):
        secret_files.read_secret(str(path), PosixDirectory)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o644, 0o660, 0o666, 0o601])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_bytes(GOOD)
    path.chmod(mode)
    link = tmp_path / "link"
    link.symlink_to(path)
    for each in (path, link):
        for key in (secret_files.SECRET_KEY, secret_files.SERF_KEY):
            with pytest.raises(ConfigError) as caught:
                secret_files.read_key(str(each), PosixDirectory, key)
            assert f"{key} {each} is open to other users (mode {mode:04o})" in str(caught.value)
            assert f"chmod 600 {each}" in str(caught.value)


class OwnedDirectory(PosixDirectory):
    """A directory whose files belong to somebody."""

    user = 0

    def owner(self, name: str) -> int:
        return self.user


def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(GOOD)
    other = type("Other", (OwnedDirectory,), {"user": os.geteuid() + 1})
    with pytest.raises(ConfigError, match=f"belongs to user {os.geteuid() + 1}"):
        secret_files.read_secret(str(path), other)
    for user in (0, os.geteuid()):
        fine = type("Fine", (OwnedDirectory,), {"user": user})
        assert secret_files.read_secret(str(path), fine) == GOOD
    # Who checks as root knows the daemon's user by the data directories.
    config = load_config(_written(tmp_path, path).read_text(), {})
    assert len(secret_files.problems(config, other)) == 1
    assert not secret_files.problems(config, other, frozenset({os.geteuid() + 1}))


def _written(folder: Path, secret: Path) -> Path:
    config = folder / "dlog.yaml"
    config.write_text(
        f"node.id: 1\ncluster.id: c\ncluster.secret.file: {secret}\n"
        f'controllers: ["1@127.0.0.1:7001"]\ndata.directories: [{folder / "data"}]\n'
    )
    return config


@pytest.mark.parametrize(
    ("secret", "mode", "problem"),
    [
        (GOOD, 0o600, None),
        (GOOD, 0o640, None),
        (GOOD, 0o644, "open to other users"),
        (b"changeme-changeme", 0o600, "can be guessed"),
    ],
)
def test_checks_of_a_configuration_look_at_its_secret(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    secret: bytes,
    mode: int,
    problem: str | None,
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(secret)
    path.chmod(mode)
    config = _written(tmp_path, path)
    code = daemon.main(["--config", str(config), "--check-config"])
    said = capsys.readouterr()
    checked = dlogctl(["config", "check", str(config)])
    told = capsys.readouterr()
    if problem is None:
        assert (code, checked) == (os.EX_OK, 0), said.err + told.err
    else:
        assert code == os.EX_CONFIG and problem in said.err
        assert checked == 1 and problem in told.err


def test_a_secret_that_is_not_on_this_host_is_no_problem_of_the_configuration(
    tmp_path: Path,
) -> None:
    config = load_config(_written(tmp_path, tmp_path / "no" / "secret").read_text(), {})
    assert not secret_files.problems(config, PosixDirectory)
    assert not (tmp_path / "no").exists()
