"""`p2psync delta`: deltas between checkpoints on disk, without a trainer or a swarm."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from p2psync.cli import output
from p2psync.cli.options import JsonTarget

if TYPE_CHECKING:
    from p2psync.engines.offline.delta_commands import DerivedReport, InfoReport

app = typer.Typer(help="Deltas between checkpoints on disk.", no_args_is_help=True)

Out = Annotated[Path, typer.Option("--out", "-o", help="Where it goes.")]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")]
Delta = Annotated[Path, typer.Argument(metavar="D", help="A delta file.")]
BaseOption = Annotated[
    Path | None,
    typer.Option(help="The checkpoint that the first delta starts from: for deltas of profile tight."),
]
Old = Annotated[Path, typer.Argument(metavar="OLD", help="A .safetensors file, or a directory of them.")]


@app.command("diff")
def diff(
    old: Old,
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Another, to which the delta leads.")],
    out: Out,
    profile: Annotated[str, typer.Option(help="How it is coded.")] = "fast",
    force: Force = False,
    json: JsonTarget = None,
) -> None:
    """Write the delta that leads from OLD to NEW: every file, every bit."""
    from p2psync.engines.offline import delta_commands

    with _stoppable(), output.progress("diff") as progress:
        made = delta_commands.diff(old, new, out, profile=profile, force=force, progress=progress)
    speed = f"{output.seconds(made.seconds)}, {made.gb_per_second:.2f} GB/s"
    output.report(made, json, [*_figures(made), ("took", speed)])


@app.command("apply")
def apply(old: Old, delta: Delta, out: Out, force: Force = False, json: JsonTarget = None) -> None:
    """Write the checkpoint that a delta makes of OLD, checked by its digest; OLD stays as it is."""
    from p2psync.engines.offline import delta_commands

    with _stoppable(), output.progress("apply") as progress:
        made = delta_commands.apply(old, delta, out, force=force, progress=progress)
    lines = [
        (
            "checkpoint",
            f"{made.out}: {output.size(made.model_bytes)}, {_count(made.tensors, 'tensor')} in "
            f"{_count(made.files, 'file')}",
        ),
        ("digest", f"{made.digest}, as the delta states"),
        ("took", f"{output.seconds(made.seconds)}, {made.gb_per_second:.2f} GB/s"),
    ]
    output.report(made, json, lines)


@app.command("info")
def info(delta: Delta, json: JsonTarget = None) -> None:
    """Check every chunk of a delta file, and describe it."""
    from p2psync.engines.offline import delta_commands

    found = delta_commands.info(delta)
    output.report(found, json, [*_figures(found), *_origin(found)])


@app.command("squash")
def squash(
    deltas: Annotated[list[Path], typer.Argument(metavar="D…", help="A chain of delta files, in order.")],
    out: Out,
    base: BaseOption = None,
    force: Force = False,
    json: JsonTarget = None,
) -> None:
    """Write one delta that replaces a chain of them; of profile fast, it needs no weights."""
    from p2psync.engines.offline import delta_commands

    with _stoppable(), output.progress("squash") as progress:
        made = delta_commands.squash(deltas, out, base=base, force=force, progress=progress)
    output.report(made, json, _derived(made))


@app.command("invert")
def invert(delta: Delta, out: Out, base: BaseOption = None, force: Force = False, json: JsonTarget = None) -> None:
    """Write the delta that undoes another; of profile fast, it needs no weights."""
    from p2psync.engines.offline import delta_commands

    with _stoppable(), output.progress("invert") as progress:
        made = delta_commands.invert(delta, out, base=base, force=force, progress=progress)
    output.report(made, json, _derived(made))


def _figures(made: InfoReport) -> list[tuple[str, str]]:
    bits = "" if made.bits_per_changed is None else f", {made.bits_per_changed:.2f} bits for each"
    came = [f"{count} {what}" for count, what in ((made.added, "added"), (made.removed, "removed")) if count]
    tensors = ", ".join([_count(made.tensors, "tensor"), *came]) + f" in {_count(made.files, 'file')}"
    return [
        (
            made.kind,
            f"{made.delta}: {output.size(made.file_bytes)} for {output.size(made.model_bytes)} ({_ratio(made.ratio)})",
        ),
        ("tensors", tensors),
        ("changed", f"{made.changed:,} of {made.total:,} elements, {output.share(made.changed_fraction)}{bits}"),
        ("from", made.base_digest),
        ("to", made.digest),
    ]


def _origin(found: InfoReport) -> list[tuple[str, str]]:
    chunks = f"{_count(found.chunks, 'chunk')}, all sound; profile {found.profile}"
    if found.run is None:
        return [("chunks", chunks)]
    versions = f"{found.version}" if found.base is None else f"{found.base} → {found.version}"
    signer = f"ed25519:{found.signer}" if found.signer else "nobody"
    return [("chunks", chunks), ("version", f"{versions} of run {found.run}"), ("signed by", signer)]


def _derived(made: DerivedReport) -> list[tuple[str, str]]:
    read = f"{_count(len(made.inputs), 'delta')} of {output.size(made.input_bytes)} in {output.seconds(made.seconds)}"
    return [*_figures(made), ("took", read)]


def _ratio(times: float) -> str:
    if times < 1:
        return "larger than the model"
    return f"{times:,.{1 if times < 1000 else 0}f}× smaller"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@contextmanager
def _stoppable() -> Iterator[None]:
    """End on SIGTERM and SIGHUP as on an error, so that half-made files are removed."""

    def stop(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
