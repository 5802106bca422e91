"""The digest of a configuration: the same for the same values, another for any other value."""

from pathlib import Path

import pytest

from dlogd.config.config_digest import LENGTH, digest_of
from dlogd.config.load import load_config
from dlogd.config.schema import Config, build
from tests.tidy.sources import ROOT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "dlog.yaml"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "flush.policy: always\n",
        "flush: {policy: always}\nsegment.bytes: 1024MiB\n",
        "segment: {bytes: 1GiB}\n# nothing else\n",
    ],
)
def test_how_a_file_is_written_makes_no_difference(file: Path, text: str) -> None:
    file.write_text(text)
    assert digest_of(load_config(file, {})) == digest_of(Config())
    assert len(digest_of(Config())) == LENGTH


@pytest.mark.parametrize("values", [{"node.id": 2}, {"node.rack": "r"}, {"scrub.rate_bytes": 1}])
def test_every_value_makes_one(values: dict[str, object]) -> None:
    named = {name.replace("_bytes", ""): value for name, value in values.items()}
    assert digest_of(build(named)) != digest_of(Config())


def test_what_the_unit_says_in_the_environment_makes_none(file: Path) -> None:
    """Or a node would never run the file that lies there, by its digest."""
    file.write_text("node.id: 7\n")
    lines = (ROOT / "deploy" / "systemd" / "dlogd.service").read_text().splitlines()
    given = [line.partition("=")[2] for line in lines if line.startswith("Environment=")]
    environment = dict(each.split("=", 1) for each in given)
    assert environment
    assert digest_of(load_config(file, environment)) == digest_of(load_config(file, {}))
