"""Tables on a terminal, by rich; loaded only when standard output is one."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show_table(
    header: Sequence[str] | None,
    cells: Sequence[Sequence[str]],
    right: Sequence[bool],
    title: str,
) -> None:
    """Print a table, shortened to the terminal's width."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(title) if title else None,
        title_justify="left",
        show_header=header is not None,
        pad_edge=False,
    )
    for index, is_right in enumerate(right):
        table.add_column(
            header[index] if header is not None else "", justify="right" if is_right else "left"
        )
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))  # never markup: names come from others
    Console(highlight=False).print(table)
