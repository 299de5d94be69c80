"""The marks of the gateway, and the table that compares figures with them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure. `limit` applies to the figure or, if `ratio`, to its ratio to the base, which is
    the floor unless `base` names another."""

    name: str
    unit: str
    gateway: float
    floor: float | None = None
    limit: float | None = None
    ratio: bool = False
    at_least: bool = False
    base: str = "floor"
    spread: float | None = None  # (most - least) / median over the rounds

    @property
    def against_base(self) -> float | None:
        return self.gateway / self.floor if self.floor else None

    @property
    def compared(self) -> float | None:
        """Returns the value that is compared with the mark."""
        return self.against_base if self.ratio else self.gateway

    @property
    def is_met(self) -> bool | None:
        """True if the mark is met; None without a mark."""
        if self.limit is None or self.compared is None:
            return None
        return self.compared >= self.limit if self.at_least else self.compared <= self.limit

    @property
    def verdict(self) -> str:
        if self.is_met is None or self.compared is None or not self.limit:
            return ""
        if self.is_met:
            return "met"
        return f"missed by {abs(self.compared - self.limit) / self.limit:.0%}"

    @property
    def mark(self) -> str:
        if self.limit is None:
            return ""
        sign = ">=" if self.at_least else "<="
        return f"{sign} {self.limit:g}{f' x {self.base}' if self.ratio else ''}"


def marked(figure: Figure, limit: float, *, ratio: bool = False, at_least: bool = False) -> Figure:
    return replace(figure, limit=limit, ratio=ratio, at_least=at_least)


HEAD = ("figure", "unit", "floor or base", "gateway", "ratio", "mark", "", "spread")


def table(figures: Iterable[Figure]) -> str:
    """Renders the figures as a Markdown table."""
    rows = [HEAD, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([lines[0], _line(["-" * width for width in widths], widths), *lines[1:]])


def report(figures: Sequence[Figure], also_in: Path | None) -> None:
    """Prints the figures, and writes them as JSON if a file is given."""
    print(table(figures))
    if also_in is not None:
        told = [asdict(figure) | {"verdict": figure.verdict} for figure in figures]
        also_in.write_text(json.dumps(told, indent=1))


def _row(figure: Figure) -> Sequence[str]:
    ratio = figure.against_base
    return (
        figure.name,
        figure.unit,
        "" if figure.floor is None else _number(figure.floor),
        _number(figure.gateway),
        "" if ratio is None else f"{ratio:.2f}",
        figure.mark,
        figure.verdict,
        "" if figure.spread is None else f"{figure.spread:.0%}",
    )


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return f"| {' | '.join(padded)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
