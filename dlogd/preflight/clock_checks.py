"""Clock of this host before a start, compared with the nodes that run. Blocking."""

import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dlogd.config.schema import Config
from dlogd.config.units import Address
from dlogd.preflight.findings import Finding, note

PATIENCE_S = 1.0
STEP_MS = 2_000
"""A difference that an answer's way does not explain."""
ASKED_AT_ONCE = 8


def others(config: Config) -> list[Address]:
    """Return where other nodes' /status would be, with the port that is this node's as well."""
    known = [*(config.controllers or ()), *(config.membership.peers or ())]
    hosts = dict.fromkeys(each.address.host for each in known if each.node_id != config.node.id)
    return [Address(host, config.http.address.port) for host in hosts]


def ahead_ms(address: Address) -> float | None:
    """Return how far the clock of a node is ahead of this host's; None when it does not tell."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
    sent_ms = time.time() * 1000
    try:
        connection.request("GET", "/status")
        found: Any = json.loads(connection.getresponse().read())
        told_ms = float(found["time_ms"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
    # It was told at some time between the question and the answer.
    return told_ms - (sent_ms + time.time() * 1000) / 2


def problems(config: Config) -> Iterator[Finding]:
    """Say which nodes have another time. Nodes that are down, or older than this, say nothing."""
    asked = others(config)
    if not asked:
        return
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        for address, ahead in zip(asked, pool.map(ahead_ms, asked), strict=True):
            if ahead is not None and abs(ahead) > STEP_MS:
                word = "behind" if ahead > 0 else "ahead of"
                yield note(
                    f"The clock of this host is {abs(ahead) / 1000:.1f} s {word} that of"
                    f" {address.host}, and retention by time depends on it: timedatectl set-ntp"
                    " true"
                )
