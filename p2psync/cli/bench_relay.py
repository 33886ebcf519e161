"""`p2psync bench relay`: the cost of receiving everything and passing it on, against aria2 and libtorrent."""

from __future__ import annotations

from typing import Annotated

import typer

from p2psync.cli.bench_output import CsvTarget, write_figures
from p2psync.cli.options import JsonTarget
from p2psync.cli.racing import check_can_emulate, chosen_words, console_for, end_as_interrupted, tell
from p2psync.cli.wan_plan import parse_bytes


def relay(
    size: Annotated[
        list[str] | None,
        typer.Option(help="Bytes to carry, incompressible; again for more. Default: 64MiB and 1GiB."),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Mbit/s of each link, 0: no limit; again for more. Default: 0 and 1000.", min=0),
    ] = None,
    baselines: Annotated[str, typer.Option(help="aria2, libtorrent: names with commas, all or none.")] = "all",
    leaves: Annotated[int, typer.Option(help="To how many the relay sends.", min=1, max=8)] = 1,
    congestion: Annotated[str, typer.Option(help="TCP congestion control of all hosts: bbr, cubic, …")] = "bbr",
    rounds: Annotated[int, typer.Option(help="Rounds; all take their turn in each. Medians are shown.", min=1)] = 5,
    limit: Annotated[float, typer.Option(help="Seconds after which a run is given up.", min=1)] = 120.0,
    settle: Annotated[float, typer.Option(help="Seconds to measure and plan before a run, at most.", min=0)] = 15.0,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Short form: 8 MiB, no limit, one round.")] = False,
    json: JsonTarget = None,
    csv: CsvTarget = None,
) -> None:
    """CPU time of a relay that receives everything once and passes it on, against aria2 and libtorrent.

    Real processes in network namespaces, joined by the kernel's own links, of which none leads from the seed to a leaf;
    needs root. Only the relay's process is counted.
    """

    from p2psync.bench.relay.bench import BASELINES, RelayBench, RelayOptions, quick_options
    from p2psync.bench.relay.report import figures
    from p2psync.bench.relay.tables import print_relay_report
    from p2psync.bench.swarm.contenders import P2PSYNC

    chosen = chosen_words("--baselines", baselines, BASELINES)
    sizes = [parse_bytes("--size", text) for text in size or ["64MiB", "1GiB"]]
    check_can_emulate()
    options = RelayOptions(
        contenders=[P2PSYNC, *chosen],
        sizes=sizes,
        rates=rate or [0.0, 1000.0],
        rounds=rounds,
        leaves=leaves,
        congestion=congestion,
        limit=limit,
        settle=settle,
        seed=seed,
    )

    end_as_interrupted()
    report = RelayBench(quick_options(options) if quick else options, tell).run()
    print_relay_report(report, console_for(json))
    write_figures("relay", report, figures(report), json, csv)
