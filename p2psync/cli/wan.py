"""`p2psync wan`: a plan for a network; an emulated WAN on this machine, commands in its hosts, and changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from p2psync.cli.options import JsonTarget
from p2psync.cli.output import report_json, size
from p2psync.cli.wan_plan import plan
from p2psync.errors import P2PSyncError, UsageError

app = typer.Typer(help="Networks between regions: plan for them, emulate them (needs root).", no_args_is_help=True)
app.command("plan")(plan)

TopologyFile = Annotated[Path, typer.Argument(metavar="TOPOLOGY.toml", help="The network.")]
CongestionOption = Annotated[
    str | None, typer.Option(help="TCP congestion control of the hosts: bbr, cubic, … [the kernel's choice]")
]
Seed = Annotated[int, typer.Option(help="Of the packets that are lost.")]


@app.callback()
def group() -> None:
    """Networks between regions: plan for them, emulate them (needs root)."""


@app.command("draw")
def draw(
    seed: Annotated[int, typer.Argument(help="Equal seeds give equal networks.", min=0)],
    hosts: Annotated[int, typer.Option(help="The most hosts that it has.", min=3)] = 12,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The file to write. [standard output]")] = None,
) -> None:
    """Draw a network of data centres, clouds, offices, homes, far places and satellites; write it as TOML."""
    from p2psync.topology.places import draw_places
    from p2psync.topology.toml_text import topology_toml

    text = topology_toml(draw_places(seed, hosts=hosts))
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None


@app.command("up")
def up(file: TopologyFile, congestion: CongestionOption = None, seed: Seed = 0) -> None:
    """Bring a network up, until `wan down`; print its hosts, their namespaces and their addresses."""
    from p2psync.topology.emulator import bring_up
    from p2psync.topology.model import load

    network = bring_up(load(file), file, congestion=congestion, seed=seed)
    width = max(len(host) for host in network.hosts)
    for host in network.hosts:
        print(f"{host:{width}}  {network.address(host):12}  ip netns exec {network.namespace(host)} …")
    if not network.state.realtime:
        print("no real-time priority: delays will be less exact while this machine is busy", file=sys.stderr)


@app.command("down")
def down(
    file: Annotated[Path | None, typer.Argument(metavar="[TOPOLOGY.toml]", help="The network.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All networks that `wan up` made.")] = False,
) -> None:
    """Kill the processes of a network and remove it, together with the remains of killed networks."""
    from p2psync.topology.emulator import EmulatedNetwork, runs, take_down

    if (file is None) != everything:
        raise UsageError("name the topology file whose network is to go, or give --all")
    swept = runs.sweep()
    found = [state for state in runs.living() if state.file and (file is None or state.file == str(file.resolve()))]
    for state in found:
        take_down(EmulatedNetwork(state))
    if swept:
        print(f"removed what {len(swept)} killed network{'s' * (len(swept) > 1)} had left")
    elif file is not None and not found:
        raise P2PSyncError(f"{file} is not up")


@app.command("run")
def run(
    file: TopologyFile,
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND …", help="What the hosts run.")],
    host: Annotated[list[str] | None, typer.Option(help="Only on this host; may be repeated. [all]")] = None,
    seconds: Annotated[float | None, typer.Option(help="Kill what still runs after so long.", min=0)] = None,
    congestion: CongestionOption = None,
    seed: Seed = 0,
    json: JsonTarget = None,
) -> None:
    """Run a command on the hosts, and the events of the topology file, each at its time.

    In a network that is up; or else in one that is made for it. The command finds WAN_HOST, WAN_REGION, WAN_ADDRESS and
    WAN_TRAINER (an address) in its environment. --json: the counters of every link.
    """
    from p2psync.topology.emulator.scenario import Scenario
    from p2psync.topology.model import load

    topology = load(file)
    with _ending_well(), _network(file, congestion, seed) as network:
        only = host or []
        for name in only:
            network.address(name)
        alone = len(only or network.hosts) == 1
        printers: list[threading.Thread] = []

        def start(name: str) -> subprocess.Popen[Any]:
            process: subprocess.Popen[Any]
            if alone:
                process = network.run(name, command)
                return process
            process = network.run(
                name, command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert process.stdout
            printers.append(threading.Thread(target=_prefix, args=(name, process.stdout)))
            printers[-1].start()
            return process

        def notice(text: str, at: float) -> None:
            print(f"{at:.1f} s: {text}", file=sys.stderr)

        outcomes = Scenario(network, topology.event, start, only, notice).play(seconds)
        for printer in printers:
            printer.join()
        if json is not None:
            report_json(network.counters(), json)
    sys.exit(max((abs(outcome.code or 0) for outcome in outcomes if not outcome.killed), default=0))


@app.command("set")
def set_(
    file: TopologyFile,
    a: Annotated[str | None, typer.Argument(metavar="[A]", help="A host, or a region.")] = None,
    b: Annotated[str | None, typer.Argument(metavar="[B]", help="The region at the link's other end.")] = None,
    rate: Annotated[float | None, typer.Option(help="Mbit/s, each way.", min=0.001)] = None,
    delay_ms: Annotated[float | None, typer.Option(help="One way.", min=0)] = None,
    loss: Annotated[float | None, typer.Option(help="Probability for each packet.", min=0, max=0.999)] = None,
    cut: Annotated[bool, typer.Option("--cut", help="Let nothing through.")] = False,
    restore: Annotated[bool, typer.Option("--restore", help="As the file says. Without A: everything.")] = False,
    json: JsonTarget = None,
) -> None:
    """Change or cut a link while its network is up: A B for one between regions, A for a host's or all of a region's.

    Without any change, show what went over every link.
    """
    network = _found(file)
    if restore:
        network.restore(a, b)
    if (rate, delay_ms, loss) != (None, None, None):
        if a is None or (b is None and a not in network.hosts):
            raise UsageError("say which link: two regions, or a host")
        if b is None:
            network.set_host(a, up=rate, down=rate, delay_ms=delay_ms, loss=loss)
        else:
            network.set_link(a, b, rate=rate, delay_ms=delay_ms, loss=loss)
    if cut:
        if a is None:
            raise UsageError("say what to cut: two regions, a region, or a host")
        network.cut(a, b)
    counters = network.counters()
    if json is not None:
        report_json(counters, json)
    elif not (restore or cut or rate or delay_ms is not None or loss is not None):
        _show(counters)


def _found(file: Path) -> Any:
    from p2psync.topology.emulator import EmulatedNetwork, runs

    state = runs.find(file)
    if state is None:
        raise P2PSyncError(f"{file} is not up: p2psync wan up {file}")
    return EmulatedNetwork(state)


@contextmanager
def _network(file: Path, congestion: str | None, seed: int) -> Iterator[Any]:
    """The network of a file that is up, or one that lasts as long as this does."""
    from p2psync.topology.emulator import EmulatedNetwork, Emulator, runs
    from p2psync.topology.model import load

    state = runs.find(file)
    if state is None:
        with Emulator(load(file), congestion=congestion, seed=seed) as network:
            yield network
    elif congestion is not None:
        raise UsageError(f"{file} is up: its congestion control was chosen by `wan up`")
    else:
        yield EmulatedNetwork(state)


@contextmanager
def _ending_well() -> Iterator[None]:
    """Makes SIGTERM end this process as Ctrl-C does: it kills its children first."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _prefix(host: str, lines: IO[str]) -> None:
    for line in lines:
        print(f"{host}: {line}", end="", flush=True)


def _show(counters: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("link")
    for title in ("sent", "packets", "lost", "no room", "cut", "most queued"):
        table.add_column(title, justify="right")
    for name, link in counters.links.items():
        figures = (link.packets, link.lost, link.overflowed, link.severed)
        table.add_row(name, size(link.bytes), *(str(figure) for figure in figures), size(link.queue_peak))
    Console(file=sys.stdout).print(table)
