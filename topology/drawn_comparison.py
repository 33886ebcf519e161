"""Compares swarms on the same drawn networks in two files: real by virtual TCP, or one day's by another's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from p2psync.errors import UsageError
from p2psync.topology.drawn_report import DrawnRun, DrawnSummary, Line, ratio_text

#: Two bounds of one network and payload agree up to this share: files hold rounded decimals.
_SAME_BOUND = 1e-6


def read_runs(path: Path) -> list[DrawnRun]:
    """Reads the networks of JSON lines; there is at least one. Raises `UsageError`."""
    try:
        lines = msgspec.json.Decoder(DrawnRun | DrawnSummary).decode_lines(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} has no lines of `--draw … --json`: {error}") from None
    runs = [line for line in lines if isinstance(line, DrawnRun) and line.results]
    if not runs:
        raise UsageError(f"{path} holds no network: `--draw … --json {path}` writes them")
    return runs


def comparison_lines(runs: Sequence[DrawnRun], others: Sequence[DrawnRun]) -> list[Line]:
    """Returns, for each seed of both and for all of them, both median ratios and their quotient, as (label, text).

    The quotient is of real by virtual TCP; of two runs over the same kind, of `runs` by `others`. Raises `UsageError`
    where the networks of a seed differ, or the payloads.
    """
    here, there = runs[0].tcp, others[0].tcp
    if (here, there) == ("virtual", "real"):
        return comparison_lines(others, runs)
    names = ("here", "there") if here == there else (here, there)
    by_seed = {run.network.seed: run for run in others}
    lines, quotients = [], []
    for run in runs:
        other = by_seed.get(run.network.seed)
        if other is None:
            continue
        _check_equal(run, other)
        ratio, other_ratio = run.ratio(run.subject), other.ratio(other.subject)
        text = f"{names[0]} {ratio_text(ratio)}, {names[1]} {ratio_text(other_ratio)}"
        if max(ratio, other_ratio) < float("inf"):
            quotients.append(ratio / other_ratio)
            text += f": {quotients[-1]:.2f}"
        lines.append((f"seed {run.network.seed}", text))
    title = f"{names[0]} / {names[1]}"
    if not quotients:
        return [*lines, (title, "no seed is in both, or none ended in both")]
    spread = f"{min(quotients):.2f} to {max(quotients):.2f}"
    return [*lines, (title, f"{statistics.median(quotients):.2f} in the median, {spread}")]


def _check_equal(run: DrawnRun, other: DrawnRun) -> None:
    one, two = run.network.bound, other.network.bound
    if abs(one - two) > _SAME_BOUND * one:
        raise UsageError(
            f"seed {run.network.seed} has a bound of {one:.3f} s in one and {two:.3f} s in the other: equal seeds, "
            "--hosts, payloads and rates can be compared"
        )
