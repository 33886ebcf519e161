"""Parts that `sim swarm --draw` and `bench swarm --draw` share: their options, and how results are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from p2psync.cli.output import json_lines
from p2psync.errors import UsageError

if TYPE_CHECKING:
    from p2psync.topology.drawn_report import DrawnRun

    Run = TypeVar("Run", bound=DrawnRun)
else:
    Run = TypeVar("Run")


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """Which drawn networks, and what they are compared with."""

    draw: Annotated[
        str | None,
        typer.Option(metavar="FIRST:LAST", help="On one network of places drawn from each seed, as `wan draw` draws."),
    ] = None
    hosts: Annotated[int, typer.Option(help="With --draw: the most hosts of a network.", min=3)] = 12
    beside: Annotated[
        Path | None,
        typer.Option(help="With --draw: JSON lines of an earlier --draw; compares equal seeds, real by virtual."),
    ] = None

    @property
    def seeds(self) -> range:
        """The seeds. Raises `UsageError` where --draw names none."""
        from p2psync.sim.__main__ import parse_seeds

        return parse_seeds(self.draw or "", "--draw")

    def check(self) -> None:
        """Raises `UsageError` for options that need --draw without it."""
        if self.draw is None and self.beside is not None:
            raise UsageError("--beside compares drawn networks: give --draw, too")


@dataclass(frozen=True)
class DrawnOutput:
    """Shows drawn networks one after the other, and all of them at the end: as text, JSON lines and a picture."""

    beside: Sequence[DrawnRun]
    json: str | None
    plot: Path | None

    @classmethod
    def prepare(cls, options: DrawOptions, json: str | None, plot: Path | None) -> DrawnOutput:
        """Returns the output. Raises `UsageError` for what cannot be read or drawn, before the work."""
        from p2psync.topology.drawn_comparison import read_runs
        from p2psync.topology.picture import check_installed

        if plot is not None:
            check_installed()
        return cls([] if options.beside is None else read_runs(options.beside), json, plot)

    def show(self, runs: Iterable[Run], note: Callable[[Run], str] = lambda run: "") -> list[Run]:
        """Shows each network as soon as it is there, then all; returns them. note: more of a network's line.

        Raises `UsageError` and `StoreError`.
        """
        from p2psync.topology.drawn_comparison import comparison_lines
        from p2psync.topology.drawn_plot import plot_runs
        from p2psync.topology.drawn_report import network_line, summarize_runs, summary_lines

        shown: list[Run] = []
        with json_lines(self.json) as write:
            for run in runs:
                shown.append(run)
                label, text = network_line(run)
                self._say([(label, "; ".join(filter(None, (text, note(run)))))])
                write(run)
            summary = summarize_runs(shown)
            write(summary)
        self._say(summary_lines(summary))
        if self.beside:
            self._say(comparison_lines(shown, self.beside))
        if self.plot is not None:
            plot_runs(shown, self.plot, self.beside)
        return shown

    def _say(self, lines: Sequence[tuple[str, str]]) -> None:
        """Prints lines; on stderr where stdout holds the JSON."""
        width = max(len(label) for label, _ in lines)
        for label, text in lines:
            typer.echo(f"{typer.style(label.ljust(width), bold=True)}  {text}", err=self.json == "-")
