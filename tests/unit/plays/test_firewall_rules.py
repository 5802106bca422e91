"""Rules of `dlog_firewall`: nftables accepts them, for nodes with addresses of either family."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.playbooks import ANSIBLE
from tests.fakes.local_plays import LocalPlays

V4 = {"h1": "192.0.2.1", "h2": "192.0.2.2"}
V6 = {"h1": "[2001:db8::1]", "h2": "[2001:db8::2]"}
SOURCES = ["192.0.2.0/24", "2001:db8::/32"]
BOTH = {"h1": "192.0.2.1", "h2": "2001:db8::2"}
UNIT = ANSIBLE / "roles" / "host" / "templates" / "dlog-firewall.service.j2"
IN_A_NETWORK_OF_ITS_OWN = ("unshare", "--map-root-user", "--net")


def nft(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run nft where it changes nothing of this machine."""
    command = [*IN_A_NETWORK_OF_ITS_OWN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rules(folder: Path, addresses: dict[str, str], sources: list[str], **given: Any) -> Path:
    """Return the file of a host whose cluster has these addresses."""
    path = folder / "firewall.nft"
    template = ANSIBLE / "roles" / "host" / "templates" / "firewall.nft.j2"
    words = {"src": str(template), "dest": str(path)}
    variables = {
        "host_sources": sources,
        "dlog_address": f"{{{{ {addresses}[inventory_hostname] }}}}",
        "cluster_places": [{"host": host, "address": each} for host, each in addresses.items()],
        **given,
    }
    said = LocalPlays(folder).run([{"ansible.builtin.template": words}], variables, ("h1",))
    assert said.code == 0, said.output
    return path


@pytest.mark.parametrize("addresses", [V4, V6, BOTH], ids=["IPv4", "IPv6", "both"])
def test_nftables_accepts_the_rules(tmp_path: Path, addresses: dict[str, str]) -> None:
    path = rules(tmp_path, addresses, SOURCES, dlog_membership="serf", dlog_serf_port=7946)
    if shutil.which("nft") is None or nft("nft", "list", "ruleset").returncode:
        pytest.skip("no nftables, or no network of its own, here")
    # Twice: the second time replaces the first.
    done = nft("sh", "-c", f"nft -f {path} && nft -f {path} && nft list table inet dlog")
    assert done.returncode == 0, done.stderr
    drops = [line for line in done.stdout.splitlines() if line.endswith(" drop")]
    for port in ("9192", "7946", "9092"):
        assert len([each for each in drops if port in each]) == 2, done.stdout  # of both families
    for address in addresses.values():
        assert any(address.strip("[]") in each for each in drops if "9192" in each), done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "dlog-firewall.service"
    unit.write_text(UNIT.read_text().replace("/usr/sbin/nft", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if "dlog-firewall" in line]
    assert (done.returncode, complaints) == (0, [])
