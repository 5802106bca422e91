"""Deterministic simulation of whole nodes: virtual time, network, disks, clients, checkers.

`python -m tests.simulation --seed N` replays one run. How it is made is told in `loop` (time),
`network`, `tests.fakes.disk`, `cluster` (nodes), `tests.histories`, `faults` and `run`.
"""
