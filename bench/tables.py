"""The benchmark's tables, for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from p2psync.bench.budget import ModelBudget
from p2psync.bench.report import CodecReport, DeltaReport, FormatSize
from p2psync.bench.timing import Speed

#: Formats that others publish, against which sizes are compared.
COMPARED = ("sparrow", "pulse", "dense", "nemo", "xor", "arc3")


def print_codec_report(report: CodecReport, console: Console | None = None) -> None:
    """Prints sizes and speeds of each delta, an overview, the budget of a large model, and the machine."""
    console = console or Console()
    for delta in report.deltas:
        _print_delta(delta, console)
    if len(report.deltas) > 1:
        console.print(_overview(report.deltas))
    for budget in report.budgets:
        _print_budget(budget, console)
    rebuilt = dict.fromkeys(size.title for delta in report.deltas for size in delta.formats if size.rebuilt)
    if rebuilt:
        console.print(
            f"rebuilt here from their published descriptions, not run from their own code: {'; '.join(rebuilt)}. "
            "What a description leaves open was chosen so that it takes fewer bytes",
            style="dim",
        )
    console.print(
        f"blocks of {report.block_units} units, chunks of {report.chunk_bytes} bytes; medians of {report.rounds} "
        f"rounds, each piece of work between two readings of both copies; first call "
        f"{report.first_call_seconds:.1f} s; {report.cpu}, {report.cpus_allowed} core(s) allowed"
    )


def _print_delta(delta: DeltaReport, console: Console) -> None:
    console.print(
        f"\n[bold]{delta.name}[/bold]: {100 * delta.density:.2f} % of {delta.units / 1e6:.1f}M units changed, "
        f"{delta.model_bytes / 1e6:.0f} MB"
    )
    console.print(delta.source, style="dim")
    console.print(_sizes(delta))
    if delta.speeds:
        console.print(_speeds(delta.speeds))
        console.print(_memory(delta.speeds), style="dim")
    for line in delta.skipped:
        console.print(line, style="dim")


def _sizes(delta: DeltaReport) -> Table:
    table = Table("format", title="Size", title_justify="left")
    for head in ("bits per changed unit", "payload, MB", "model / payload", "to tight", "to fast"):
        table.add_column(head, justify="right")
    baselines = [size for size in delta.formats if not size.is_p2psync]
    for size in sorted(baselines, key=lambda size: -size.bits):
        table.add_row(*_size_row(delta, size))
    table.add_section()
    for size in delta.formats:
        if size.is_p2psync:
            table.add_row(*_size_row(delta, size), style="bold")
    table.add_section()
    bounds = delta.bounds
    for name, bound in (
        ("bound: nothing known", bounds.independent),
        ("bound: given the old exponent", bounds.exponent),
        ("bound: given exponent and history", bounds.history),
    ):
        if bound is not None:
            table.add_row(name, f"{bound.bits:.2f}", "", "", *_over(delta, bound.bits), style="dim")
    return table


def _size_row(delta: DeltaReport, size: FormatSize) -> list[str]:
    part = "" if size.part_bytes is None else f", on {size.part_bytes / 1e6:.0f} MB"
    took = "" if size.encode_seconds is None else f" in {size.encode_seconds:.1f} s"
    return [
        size.title + part + took,
        f"{size.bits:.2f}",
        f"{size.payload_bytes / 1e6:.2f}",
        f"{delta.full_to_payload(size.name):.0f}",
        *_over(delta, size.bits),
    ]


def _over(delta: DeltaReport, bits: float) -> list[str]:
    return [f"{bits / reference.bits:.2f}" if (reference := delta.format(name)) else "" for name in ("tight", "fast")]


def _speeds(speeds: list[Speed]) -> Table:
    table = Table("GB/s of model (share of reading)", title="Speed", title_justify="left")
    columns = {speed.threads for speed in speeds}
    for threads in sorted(columns):
        table.add_column(f"{threads} core" + ("s" if threads > 1 else ""), justify="right")
    profiles = dict.fromkeys(speed.profile for speed in speeds)
    first = next(iter(profiles))
    rows = [("read both copies", first, "read")]
    rows += [("scan and extract", first, "scan_ratio")]
    rows += [(f"{p}: encode (scan, digest, code, hash)", p, "encode_ratio") for p in profiles]
    rows += [(f"{p}: decode and apply, with digest", p, "decode_ratio") for p in profiles]
    for title, profile, field in rows:
        cells = []
        for speed in sorted((s for s in speeds if s.profile == profile), key=lambda s: s.threads):
            ratio = 1.0 if field == "read" else getattr(speed, field)
            rounds = [] if field == "read" else getattr(speed, f"{field}s")
            spread = f", {min(rounds):.2f} – {max(rounds):.2f}" if len(rounds) > 1 else ""
            cells.append(f"{ratio * speed.read_rate / 1e9:.2f} ({ratio:.2f}{spread})")
        table.add_row(title, *cells)
    return table


def _memory(speeds: list[Speed]) -> str:
    extras = [
        f"{speed.profile} {_megabytes(speed.encode_extra_bytes)} and {_megabytes(speed.decode_extra_bytes)}"
        for speed in speeds
        if speed.threads == 1
    ]
    return f"memory beyond both copies, encoding (chunks kept) and decoding: {', '.join(extras)}"


#: Bytes of a model from which on its speeds are those of memory.
_MIN_TELLING_BYTES = 256 << 20


def _overview(deltas: list[DeltaReport]) -> Table:
    title = "All deltas: bits per changed unit; ×: how many times what tight takes"
    table = Table(title=title, title_justify="left")
    table.add_column("delta", no_wrap=True)
    names = [
        name for name in (*COMPARED, "fast", "tight", "tight-history") if any(delta.format(name) for delta in deltas)
    ]
    compared = [name for name in COMPARED if name in names]
    for head in (
        "changed, %",
        *names,
        "exponent bound",
        "history bound",
        *(f"× {name}" for name in compared),
    ):
        table.add_column(head, justify="right")
    for delta in deltas:
        ratios = [delta.times_smaller("tight", name) for name in compared]
        history = delta.bounds.history
        table.add_row(
            delta.name,
            f"{100 * delta.density:.2f}",
            *(f"{size.bits:.2f}" if (size := delta.format(name)) else "–" for name in names),
            f"{delta.bounds.exponent.bits:.2f}",
            "–" if history is None else f"{history.bits:.2f}",
            *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )
    return table


def _print_budget(budget: ModelBudget, console: Console) -> None:
    table = Table(
        "cores",
        title=f"\nSeconds for {budget.full_bytes / 1e9:.1f} GB of bf16 (8B), {budget.profile}",
        title_justify="left",
    )
    for head in ("publish", "first chunk out", "stage", "commit", "publishing reads, GB/s"):
        table.add_column(head, justify="right")
    for stage in budget.stages:
        table.add_row(
            f"{stage.cores}, {'measured' if stage.measured else 'scaled'}",
            f"{stage.publish:.2f}",
            f"{stage.first_chunk:.3f}",
            f"{stage.stage:.2f}",
            f"{stage.commit:.2f}",
            f"{stage.bandwidth / 1e9:.1f}",
        )
    console.print(table)
    small = budget.measured_bytes < _MIN_TELLING_BYTES
    rates = ", ".join(f"{rate / 1e9:.1f} GB/s with {cores} core(s)" for cores, rate in budget.read_rates.items())
    console.print(
        f"measured on {budget.delta} of {budget.measured_bytes / 1e9:.2f} GB as shares of reading, at the best reading "
        f"seen ({rates}), and scaled by bytes; scaled cores: the seconds of one divided, which holds only as far as "
        "memory gives the last column"
        + ("; a model that fits the caches shows that this runs, not how fast" if small else ""),
        style="dim",
    )


def _megabytes(size: int | None) -> str:
    return "not measured" if size is None else f"{size / 1e6:.0f} MB"
