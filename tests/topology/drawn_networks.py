"""Networks for tests: drawn by seed, or as from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from p2psync.topology.model import Host, Link, Region, Topology, load
from p2psync.topology.network import Network, from_topology

EXAMPLES = Path(__file__).parents[2] / "examples" / "topologies"


def example(name: str) -> Network:
    """A network of examples/topologies."""
    return from_topology(load(EXAMPLES / f"{name}.toml"))


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Drawn log-uniformly."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def single_region(seed: int) -> Topology:
    """3 to 12 hosts behind one switch, of very uneven rates, some behind NAT."""
    rng = np.random.default_rng(seed)
    hosts = {}
    for i in range(int(rng.integers(3, 13))):
        up = _between(rng, 5, 500)
        down = max(up, _between(rng, 20, 1000))
        hosts[f"a-{i}"] = Host(up, down, bool(rng.random() > 0.15))
    return Topology("a-0", {"a": Region(len(hosts), 10)}, host=hosts)


def regions(seed: int, max_hosts: int = 7) -> Topology:
    """2 to 6 regions on uneven links, each direction with its own rate; some hosts behind NAT, some pairs apart."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 7))
    region = {
        f"r{k}": Region(int(rng.integers(1, max_hosts + 1)), 100, 1000, float(rng.uniform(0.1, 2)))
        for k in range(count)
    }
    links = [
        Link(
            (f"r{a}", f"r{b}"),
            _between(rng, 10, 500),
            float(rng.uniform(5, 100)),
            float(rng.uniform(0, 0.01)),
            _between(rng, 10, 500),
        )
        for a in range(count)
        for b in range(a)
        if b == 0 or rng.random() < 0.8
    ]
    hosts = {
        f"{name}-{i}": Host(_between(rng, 10, 1000), None, bool(rng.random() > 0.1) or (name, i) == ("r0", 0))
        for name, own in region.items()
        for i in range(own.hosts)
    }
    names = sorted(hosts)
    blocked = [(names[int(i)], names[int(j)]) for i, j in rng.integers(len(names), size=(len(names) // 3, 2))]
    both = [*blocked, *[(j, i) for i, j in blocked]]
    return Topology("r0-0", region, links, hosts, [(i, j) for i, j in both if i != j])


def large(nodes: int, count: int, seed: int = 0) -> Topology:
    """Many nodes of uneven uplinks over regions that are all linked."""
    rng = np.random.default_rng(seed)
    region = {f"r{k}": Region(nodes // count, 100, 1000) for k in range(count)}
    links = [
        Link((f"r{a}", f"r{b}"), _between(rng, 50, 1000), float(rng.uniform(5, 100)))
        for a in range(count)
        for b in range(a)
    ]
    hosts = {f"{name}-{i}": Host(_between(rng, 20, 500)) for name in region for i in range(nodes // count)}
    return Topology("r0-0", region, links, hosts | {"r0-0": Host(1000)})
