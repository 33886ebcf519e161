"""The figures of a benchmark in one form for all: the median of its repeats, and their spread. For JSON and CSV, and to
compare two reports."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from p2psync.errors import UsageError


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one subject. median, least, most: over so many repeats (`runs`), in `unit`."""

    subject: str
    name: str
    unit: str
    median: float
    least: float
    most: float
    runs: int

    @property
    def text(self) -> str:
        """The median, and the spread if there are repeats, for people."""
        spread = f" ({_short(self.least)} – {_short(self.most)})" if self.runs > 1 else ""
        return f"{_short(self.median)}{spread}"


class _Report(msgspec.Struct, frozen=True):
    """The fields that `compare` reads of any report."""

    bench: str
    figures: list[Figure]


def summarize(subject: str, name: str, unit: str, values: Iterable[float | None]) -> list[Figure]:
    """Returns the figure of these repeats in a list; none where there are no values."""
    found = [float(value) for value in values if value is not None]
    if not found:
        return []
    return [
        Figure(
            subject=subject,
            name=name,
            unit=unit,
            median=statistics.median(found),
            least=min(found),
            most=max(found),
            runs=len(found),
        )
    ]


def with_figures(bench: str, report: msgspec.Struct, figures: Sequence[Figure]) -> dict[str, Any]:
    """Returns a report for JSON: its own fields, the bench's name, and the figures."""
    fields: dict[str, Any] = msgspec.to_builtins(report)
    return {"bench": bench, **fields, "figures": msgspec.to_builtins(figures)}


def write_csv(figures: Sequence[Figure], path: Path) -> None:
    """Writes a line for each figure, after one with the columns' names. Raises `UsageError` if it cannot."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(Figure.__struct_fields__)
            lines.writerows(msgspec.structs.astuple(figure) for figure in figures)
    except OSError as error:
        raise UsageError(f"--csv {path}: {error.strerror}: choose a place that can be written") from None


def read_report(path: Path) -> _Report:
    """Reads what --json wrote. Raises `UsageError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Report)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is no report of `p2psync bench … --json`: {error}") from None


def compare_reports(one: Path, other: Path) -> Table:
    """Returns a table of the figures of two reports of one bench, with the ratio of the second median to the first.

    What only one report has follows with its own figure alone. Raises `UsageError` for reports of different benches.
    """
    first, second = read_report(one), read_report(other)
    if first.bench != second.bench:
        raise UsageError(f"{one} is of bench {first.bench}, {other} of bench {second.bench}: compare two of one bench")
    table = Table("", "figure", "unit", title=f"bench {first.bench}: medians (least – most)", title_justify="left")
    for head in (one.name, other.name, "ratio"):
        table.add_column(head, justify="right")
    left, right = ({(f.subject, f.name): f for f in report.figures} for report in (first, second))
    both = [key for key in left if key in right]
    for key in [*both, *(key for key in left if key not in right), *(key for key in right if key not in left)]:
        a, b = left.get(key), right.get(key)
        ratio = f"{b.median / a.median:.3f}" if a and b and a.median else "–"
        unit = (a or b or first.figures[0]).unit
        table.add_row(*key, unit, a.text if a else "–", b.text if b else "–", ratio)
    return table


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
