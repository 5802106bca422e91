"""All checks together: each sentence once, those of the configuration first."""

from pathlib import Path

import pytest

from dlogd.config.schema import Config, build
from dlogd.config.units import Address, NodeAt
from dlogd.preflight.checks import findings
from dlogd.preflight.findings import Weight, exit_code_of

STRONG = "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA="


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(STRONG, encoding="ascii")
    path.chmod(0o400)
    return path


def in_cluster(folder: Path, secret: Path) -> Config:
    free = Address("127.0.0.1", 0)
    return build(
        {
            "node.id": 1,
            "listeners": (free,),
            "http.address": free,
            "internal.listener": free,
            "controllers": (NodeAt(1, free),),
            "cluster.secret.file": str(secret),
            "data.directories": (str(folder / "data"),),
        }
    )


def told(config: Config, *wrong: str) -> list[str]:
    """Return what stops a start."""
    found = findings(config, wrong)
    return [each.text for each in found if each.weight is not Weight.NOTE]


def test_a_good_host_is_said_to_be_good(tmp_path: Path, secret: Path) -> None:
    config = in_cluster(tmp_path, secret)
    assert told(config) == [] and exit_code_of(findings(config)) == 0


def test_a_secret_that_cannot_be_read_is_told(tmp_path: Path, secret: Path) -> None:
    (text,) = told(in_cluster(tmp_path, tmp_path / "another"))
    assert text.startswith(f"cluster.secret.file {tmp_path}/another cannot be read")


def test_a_secret_that_others_may_read_is_told_once(tmp_path: Path, secret: Path) -> None:
    secret.chmod(0o444)
    config = in_cluster(tmp_path, secret)
    (text,) = told(config)
    assert "is open to other users (mode 0444)" in text
    assert told(config, text) == [text]


def test_what_the_configuration_says_wrong_comes_first(tmp_path: Path, secret: Path) -> None:
    secret.unlink()
    found = told(in_cluster(tmp_path, secret), "the lease is too short")
    assert found[0] == "the lease is too short" and len(found) == 2
