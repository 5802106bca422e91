"""Hosts of their own in the small (`bench.peers.hosts`), for tests: skipped without root."""

import os
from typing import Self

import pytest

from bench.peers import hosts

# The clock of a test begins when it has its hosts: there is one set of them on a machine.
waits_for_hosts = pytest.mark.timeout(func_only=True)


class Hosts(hosts.Hosts):
    """Some hosts, numbered from 1. Life: a `with` block; one at a time on a machine."""

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        super().__enter__()
        return self
