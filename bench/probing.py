"""Compares what nodes measure of an emulated network with the truth: `python -m p2psync.bench.probing TOPOLOGY.toml`.

Needs root, as the emulator does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from p2psync.bench.probing_node import ProbeSetup, ProbeState
from p2psync.errors import P2PSyncError
from p2psync.membership.records import NodeInfo
from p2psync.topology.emulator import EmulatedNetwork, Emulator
from p2psync.topology.model import Topology, load

#: Payload's share of a full packet of TCP with timestamps, of 1500 bytes: what a probe can see of a link.
TCP_SHARE = 1448 / 1500


class ProbeLine(msgspec.Struct, frozen=True):
    """A figure in Mbit/s, milliseconds or loss. what: its name. found: by measurement. truth: by the topology."""

    what: str
    found: float
    truth: float

    @property
    def error(self) -> float:
        """Relative; 0 where there is nothing to compare with."""
        return self.found / self.truth - 1 if self.truth else 0.0


def watch(
    network: EmulatedNetwork, topology: Topology, seconds: float, congestion: str, hosts: list[str] | None = None
) -> Iterator[dict[str, ProbeState]]:
    """Run a node in each host (or in these) for so long; yields the figures of each, by host, about once a second."""
    wanted = hosts or network.hosts
    infos = [
        NodeInfo(node=host, role="relay", region=region, host=network.address(host), port=7071)
        for host, region in topology.hosts
        if host in wanted
    ]
    processes = {}
    for info in infos:
        setup = ProbeSetup(info=info, peers=[other for other in infos if other is not info], congestion=congestion)
        argv = [sys.executable, "-m", "p2psync.bench.probing_node", msgspec.json.encode(setup).decode()]
        processes[info.node] = network.run(info.node, argv, stdout=subprocess.PIPE)
    try:
        begin = time.monotonic()
        states: dict[str, ProbeState] = {}
        while not states or min(state.seconds for state in states.values()) < seconds:
            if time.monotonic() - begin > 60 + 3 * seconds:
                raise P2PSyncError("the nodes do not get on: this machine is too busy")
            states = {}
            for host, process in processes.items():
                assert process.stdout
                line = process.stdout.readline()
                if not line:
                    raise P2PSyncError(f"the node in {host} ended")
                states[host] = msgspec.json.decode(line, type=ProbeState)
            yield states
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait()


def compare(states: dict[str, ProbeState], topology: Topology) -> list[ProbeLine]:
    """Prints measured and true figures: each node's up and down, each region pair's best rate, round trip and loss."""
    lines = []
    region_of = dict(topology.hosts)
    for host, region in topology.hosts:
        if host in states:
            found = states[host].statistics
            lines.append(ProbeLine(f"{host} up", found.up, topology.up(host, region) * TCP_SHARE))
            lines.append(ProbeLine(f"{host} down", found.down, topology.down(host, region) * TCP_SHARE))
    for link in topology.link:
        for (a, b), rate in ((link.between, link.rate), (link.between[::-1], link.back)):
            paths = [
                (path, state.statistics)
                for state in states.values()
                for path in state.statistics.paths
                if region_of[state.node] == a and region_of.get(path.peer) == b
            ]
            back = [
                path.received
                for state in states.values()
                for path in state.statistics.paths
                if region_of[state.node] == b and region_of.get(path.peer) == a
            ]
            if not paths:
                continue
            most = min(max(topology.up(h, a) for h, r in topology.hosts if r == a), rate)
            truth = min(most, max(topology.down(h, b) for h, r in topology.hosts if r == b)) * TCP_SHARE
            lines.append(ProbeLine(f"{a}>{b} sent", max(path.sent for path, _ in paths), truth))
            lines.append(ProbeLine(f"{a}>{b} received", max(back, default=0.0), truth))
            trips = [path.rtt * 1e3 for path, _ in paths if path.rtt]
            lines.append(ProbeLine(f"{a}>{b} rtt, least", min(trips, default=0.0), 2 * link.delay_ms))
            lines.append(ProbeLine(f"{a}>{b} rtt, most", max(trips, default=0.0), 2 * link.delay_ms))
            losses = sorted(path.loss for path, _ in paths if path.sent)
            lines.append(ProbeLine(f"{a}>{b} loss %", 100 * losses[len(losses) // 2] if losses else 0, 100 * link.loss))
    return lines


def main(
    file: Path,
    seconds: Annotated[float, typer.Option(help="How long the nodes are given.")] = 30,
    congestion: Annotated[str, typer.Option(help="The nodes' congestion control.")] = "auto",
    seed: int = 0,
) -> None:
    """Print a table."""
    topology = load(file)
    with Emulator(topology, congestion=congestion if congestion != "auto" else None, seed=seed) as network:
        for states in watch(network, topology, seconds, congestion):
            known = [line for line in compare(states, topology) if line.what.endswith("sent")]
            found = sum(line.found > 0 for line in known)
            print(f"{max(s.seconds for s in states.values()):5.1f} s: {found} of {len(known)} ways", file=sys.stderr)
        late = network.counters().late_ms_p99
    for line in compare(states, topology):
        print(f"{line.what:20} {line.found:8.2f} {line.truth:8.2f} {100 * line.error:+6.1f} %")
    for state in states.values():
        more = {peer: count for peer, count in state.streams.items() if count != 2}
        print(
            f"{state.node}: padding sent {state.padding_sent / 1e6:.1f} MB, "
            f"received {state.padding_received / 1e6:.1f} MB, {state.cpu:.2f} s of CPU, streams other than 2: {more}"
        )
    print(f"packets late by {late:.2f} ms at p99")


if __name__ == "__main__":
    typer.run(main)
