"""`dlogctl perf`: its commands, each in a module of its own."""

import click

from dlogctl.groups import LazyGroup

COMMANDS = {
    "produce": ("dlogctl.commands.perf_produce:produce", "Measure writing."),
    "consume": ("dlogctl.commands.perf_consume:consume", "Measure reading."),
    "end-to-end": (
        "dlogctl.commands.perf_end_to_end:end_to_end",
        "Measure from the producer to the consumer.",
    ),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    examples=(
        ("dlogctl perf produce bench -n 1000000", "How many records a second?"),
        ("dlogctl perf end-to-end --rate 1000 --duration 30s", "How long does a record take?"),
    ),
)
def perf() -> None:
    """Measure a cluster: throughput, latencies, a histogram.

    What is measured is one client on this machine, with everything between it and the cluster.
    Ctrl-C ends a run early and shows what there is.
    """
