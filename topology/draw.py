"""Networks drawn by seed: regions on a globe, hosts of uneven links in them, some of them behind NAT."""

from __future__ import annotations

import numpy as np

from p2psync.errors import UsageError
from p2psync.topology.model import MAX_HOSTS, Host, Link, Region, Topology
from p2psync.topology.network import Floats

#: Mbit/s: of hosts' uplinks and downlinks, of links between regions, of the trainer. Drawn evenly over orders of
#: magnitude; a downlink is never below the uplink.
UP, DOWN, BETWEEN, TRAINER = (50.0, 500.0), (300.0, 1000.0), (300.0, 3000.0), 150.0
#: One-way delay: kilometres that light in fibre goes in a millisecond, how much longer than straight cables are, and
#: what comes on top (ms).
_KM_PER_MS, _DETOUR, _LAST_MILES = 200.0, 1.4, 1.0
_EARTH_KM = 6371.0
#: Share of packets that a link loses: at most this on the longest ways.
_LOSS = 0.002


def draw_topology(
    hosts: int, regions: int, *, seed: int = 0, hidden: float = 0.2, trainer_rate: float = TRAINER
) -> Topology:
    """So many hosts over so many regions, each linked with each other. hidden: share of hosts that can only dial out.

    trainer_rate: Mbit/s of the trainer's uplink. The others could pass on about 190 each on average: below that, the
    trainer's uplink is what binds; above it, all uplinks together are, and no plan leaves any of them idle.
    Regions are of uneven size. The trainer, in the first region, can be dialled. Raises `UsageError`.
    """
    if not 1 <= regions <= hosts <= MAX_HOSTS or hosts < 2 or not 0 <= hidden <= 1:
        raise UsageError(f"{hosts} hosts in {regions} regions: 2 to {MAX_HOSTS} hosts, and at least one in each region")
    rng = np.random.default_rng(seed)
    sizes = _sizes(rng, hosts, regions)
    width = len(str(regions - 1))
    names = [f"r{k:0{width}}" for k in range(regions)]
    region = {
        name: Region(int(size), UP[1], None, float(rng.uniform(0.2, 2.0)))
        for name, size in zip(names, sizes, strict=True)
    }
    far = _distances(rng, regions)
    links = []
    for a in range(regions):
        for b in range(a):
            delay = _LAST_MILES + _DETOUR * float(far[a, b]) / _KM_PER_MS
            loss = _LOSS * float(far[a, b]) / (np.pi * _EARTH_KM)
            rate, back = _even(rng, *BETWEEN, 2).tolist()
            links.append(Link((names[a], names[b]), round(rate, 1), round(delay, 2), round(loss, 6), round(back, 1)))
    own = {}
    for name in names:
        count = region[name].hosts
        up = _even(rng, *UP, count)
        down = np.maximum(up, _even(rng, *DOWN, count))
        seen = rng.random(count) >= hidden
        for i in range(count):
            own[f"{name}-{i}"] = Host(round(float(up[i]), 1), round(float(down[i]), 1), bool(seen[i]))
    trainer = f"{names[0]}-0"
    own[trainer] = Host(trainer_rate, max(trainer_rate, DOWN[1]), True)
    return Topology(trainer, region, links, own)


def _even(rng: np.random.Generator, low: float, high: float, count: int) -> Floats:
    return np.exp(rng.uniform(np.log(low), np.log(high), count))


def _sizes(rng: np.random.Generator, hosts: int, regions: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Hosts of each region: one, and the others by weights that differ by factors."""
    weight = rng.lognormal(0.0, 0.5, regions)
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]] = 1 + rng.multinomial(hosts - regions, weight / weight.sum())
    return sizes


def _distances(rng: np.random.Generator, regions: int) -> Floats:
    """Kilometres between places drawn on a globe."""
    place = rng.normal(size=(regions, 3))
    place /= np.linalg.norm(place, axis=1, keepdims=True)
    return np.asarray(_EARTH_KM * np.arccos(np.clip(place @ place.T, -1.0, 1.0)))
