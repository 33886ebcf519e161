"""`p2psync demo`: the main job on this machine."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from p2psync.cli.options import JsonTarget
from p2psync.cli.output import report_json
from p2psync.errors import UsageError


def demo(
    versions: Annotated[int, typer.Option(help="How many versions to train.", min=12)] = 20,
    seed: Annotated[int, typer.Option(help="Of prompts, sampling and training.")] = 1,
    keep: Annotated[Path | None, typer.Option(help="Keep stores and logs in this new directory.")] = None,
    json: JsonTarget = None,
) -> None:
    """Train, publish and roll out for real: separate processes, one killed, one joining late."""
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the demo trains with torch: pip install 'p2psync[torch]'")
    print(
        "p2psync demo: a trainer and four actors learn arithmetic on this machine; the first start takes a minute",
        file=sys.stderr,
        flush=True,
    )
    from rich.console import Console

    from p2psync.rldemo.demo import Demo

    console = Console(file=sys.stderr if json == "-" else sys.stdout)
    if keep is not None:
        keep.mkdir(parents=True)
    root = keep or Path(tempfile.mkdtemp(prefix="p2psync-demo-"))
    try:
        with Demo(root, console, versions=versions, seed=seed) as run:
            result = run.run()
            run.show(result)
    except KeyboardInterrupt:
        _remove(root, keep)
        raise
    _remove(root, keep)  # after an error the logs stay: its line names them
    if json is not None:
        report_json(result, json)
    if not result.passed:
        raise typer.Exit(1)


def _remove(root: Path, keep: Path | None) -> None:
    if keep is None:
        shutil.rmtree(root, ignore_errors=True)
