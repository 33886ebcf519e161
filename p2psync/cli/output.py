"""Shows figures of commands: JSON, sizes and shares for people, a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from p2psync.errors import StoreError

_SIZES = ("kB", "MB", "GB", "TB", "PB")


def report_json(figures: object, target: str) -> None:
    """Write figures (a struct, or what JSON can hold) to a file, or to stdout for `-`. Raises `StoreError`."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(figures), indent=2).decode() + "\n"
    if target == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"--json {target}: {error.strerror}: choose a place that can be written") from None


@contextmanager
def json_lines(target: str | None) -> Iterator[Callable[[object], None]]:
    """Yields a function that writes a struct as one line of JSON, at once: to a file, to stdout for `-`, or nowhere for
    None. Raises `StoreError`."""
    import msgspec

    if target is None:
        yield lambda figures: None
        return
    try:
        file = sys.stdout if target == "-" else Path(target).open("w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise StoreError(f"--json {target}: {error.strerror}: choose a place that can be written") from None

    def write(figures: object) -> None:
        file.write(msgspec.json.encode(figures).decode() + "\n")
        file.flush()

    try:
        yield write
    finally:
        if file is not sys.stdout:
            file.close()


def report(figures: object, target: str | None, lines: Sequence[tuple[str, str]]) -> None:
    """Show a command's figures: to people as lines of (label, text), and as JSON where `--json` says so.

    With `--json -` stdout holds the JSON alone.
    """
    if target != "-":
        width = max((len(label) for label, _ in lines), default=0)
        for label, text in lines:
            typer.echo(f"{typer.style(label.ljust(width), bold=True)}  {text}")
    if target is not None:
        report_json(figures, target)


def size(count: float) -> str:
    """Bytes for people, decimal: `999 B`, `1.23 MB`, `45.6 GB`."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in _SIZES:
        count /= 1000
        if count < 999.5 or unit == _SIZES[-1]:
            break
    return f"{count:.{_decimals(count)}f} {unit}"


def share(fraction: float) -> str:
    """A fraction in percent, with three figures where it is small: `1.02 %`, `0.00312 %`."""
    percent = 100 * fraction
    if percent == 0 or percent == 100:
        return f"{percent:.0f} %"
    return f"{percent:.{_decimals(percent)}f} %" if percent >= 0.01 else f"{percent:.2g} %"


def seconds(elapsed: float) -> str:
    """A span of time: `0.31 s`, `12.4 s`, `3 min 20 s`."""
    if elapsed < 99.5:
        return f"{elapsed:.{_decimals(elapsed)}f} s"
    minutes, rest = divmod(round(elapsed), 60)
    return f"{minutes} min {rest} s"


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar on stderr, if that is a terminal; yields a function that takes (bytes done, bytes in all)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _decimals(value: float) -> int:
    """Decimals that leave three figures of a value from 0.1 to 999."""
    return 2 if value < 9.995 else 1 if value < 99.95 else 0
