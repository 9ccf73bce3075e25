"""Tables as text, for terminals and logs."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], *, n_left: int = 0) -> list[str]:
    """A line for each row of cells, the columns two spaces apart.

    Args:
      rows: all with as many cells as the first, which may be the head.
      n_left: so many columns are flush left, such as names; the others, numbers, are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if i < n_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    return lines
