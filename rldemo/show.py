"""Shows the demonstration: a live view on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from p2psync.observe.events import Published
from p2psync.rldemo.cast import Cast, DemoProcess
from p2psync.rldemo.lines import Learned
from p2psync.rldemo.result import Result

#: After so long without a line, one names the awaited event (seconds): people take a longer silence for an end.
MAX_SILENCE_SECONDS = 4.0
_BARS = "▁▂▃▄▅▆▇█"


class Screen:
    """Progress: `refresh` often, `note` for what deserves a line of its own."""

    def __init__(self, console: Console, cast: Cast, versions: int, awaited: Callable[[], str]) -> None:
        """awaited: what happens next, in one line."""
        self._awaited = awaited
        self._console = console
        self._cast = cast
        self._versions = versions
        self._began = self._told = time.monotonic()
        self._learned: list[Learned] = []
        self._published: Published | None = None
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """One line that stays."""
        self._told = time.monotonic()
        self._console.print(f"{time.monotonic() - self._began:6.1f} s  {text}", highlight=False, soft_wrap=True)

    def learned(self, line: Learned) -> None:
        """A batch was learned from."""
        self._learned.append(line)
        if self._live is None:
            self.note(
                f"version {line.version:3d}  reward {line.reward:.3f}  {line.rollouts} rollouts  e.g. {line.sample}"
            )

    def published(self, event: Published) -> None:
        """A version was published."""
        self._published = event

    def refresh(self) -> None:
        """Draw the live view; where there is none, print the awaited event after a silence."""
        if self._live is not None:
            self._live.update(Group(self._progress(), self._members()))
        elif time.monotonic() - self._told > MAX_SILENCE_SECONDS:
            self.note(f"… {self._awaited()}")

    def _progress(self) -> Panel:
        rewards = [line.reward for line in self._learned]
        text = Text()
        text.append(f"version {len(rewards)} of {self._versions}", style="bold")
        text.append(f"   {time.monotonic() - self._began:.0f} s\n")
        text.append(f"{self._awaited()}\n", style="dim")
        if rewards:
            text.append(f"reward  {rewards[0]:.3f} → {rewards[-1]:.3f}  ")
            text.append(sparkline(rewards), style="green")
            text.append(f"\nlatest  {self._learned[-1].sample}\n")
        if self._published is not None and not self._published.anchor:
            event = self._published
            share = 100 * event.changed / max(1, event.total)
            text.append(f"delta   {event.payload_bytes / 1e3:.0f} kB for {event.full_bytes / 1e6:.1f} MB of weights, ")
            text.append(f"{share:.2f} % of the elements changed")
        return Panel(text, title="trainer", title_align="left")

    def _members(self) -> Table:
        table = Table(expand=False, box=None)
        for title in ("actor", "region", "pid", "runs version", "rollout items", "tokens/s", ""):
            table.add_column(title)
        for member in self._cast.members.values():
            if member.name == "trainer":
                continue
            speed = f"{member.tokens / member.busy_seconds:.0f}" if member.busy_seconds else "–"
            version = "–" if member.version is None else str(member.version)
            style = "red" if member.state.startswith("killed") else ""
            cells = (member.name, member.region, str(member.process.pid), version, str(member.answered), speed)
            table.add_row(*cells, member.state, style=style)
        return table


def sparkline(values: Sequence[float]) -> str:
    """Values as bars from the least to the greatest of them."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int((value - low) / span * len(_BARS)))] for value in values)


def show_result(console: Console, result: Result, members: Sequence[DemoProcess]) -> None:
    """The table at the end."""
    figures = Table(box=None, show_header=False, pad_edge=False)
    figures.add_column()
    figures.add_column(style="bold")
    ratio = result.full_bytes / max(1.0, result.delta_bytes)
    rows = [
        ("reward, first → last", f"{result.reward_first:.3f} → {result.reward_last:.3f}  {sparkline(result.rewards)}"),
        ("", f"rises by {result.reward_trend:.1f} standard errors"),
        ("versions", str(result.versions)),
        ("changed elements per version", _spread([100 * x for x in result.changed], "{:.2f} %")),
        ("bytes per version", f"{result.delta_bytes / 1e3:.1f} kB; a full copy is {result.full_bytes / 1e6:.2f} MB"),
        ("", f"{ratio:.0f}× smaller"),
        ("publish → last commit", _spread([1e3 * s for s in result.sync_seconds], "{:.0f} ms")),
        ("pause of a commit", f"p50 {1e3 * result.pause_p50:.2f} ms, p99 {1e3 * result.pause_p99:.2f} ms"),
        ("rollout items leased again", str(result.re_leased)),
        ("peak memory, all processes", f"{result.memory_bytes / 1e9:.1f} GB"),
        ("took", f"{result.seconds:.0f} s"),
    ]
    for row in rows:
        figures.add_row(*row)
    console.print(Panel(figures, title="p2psync demo", title_align="left", expand=False))
    console.print("SHA-256 over all weights:", highlight=False)
    for member in members:
        console.print(_weights_line(member, result), highlight=False, soft_wrap=True)
    console.print(f"[bold]{'passed' if result.passed else 'FAILED'}[/bold]: {result.verdict}")


def _weights_line(member: DemoProcess, result: Result) -> Text:
    who = f"  {member.name:<9}{member.region:<4}"
    if member.final is None:
        return Text(f"{who}{member.state}", style="dim")
    equal = member.final.sha256 == result.sha256
    verdict = "" if member.name == "trainer" else ("  equal" if equal else "  DIFFERENT")
    line = f"{who}version {member.final.version:<4}{member.final.sha256}{verdict}"
    return Text(line, style="green" if equal else "bold red")


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return "–"
    ordered = sorted(values)
    parts = (ordered[0], statistics.median(ordered), ordered[-1])
    low, middle, high = (form.format(value) for value in parts)
    return f"{middle} (median; {low} to {high})"
