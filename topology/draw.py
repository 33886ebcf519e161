"""Draws random networks by seed: regions on a globe, hosts with unequal links, some of them behind NAT."""

from __future__ import annotations

import numpy as np

from p2psync.errors import UsageError
from p2psync.topology.model import MAX_HOSTS, Host, Link, Region, Topology
from p2psync.topology.network import Floats

#: Mbit/s: of hosts' uplinks and downlinks, of links between regions, of the trainer. Drawn log-uniformly; a downlink is
#: never below the uplink.
UP, DOWN, BETWEEN, TRAINER = (50.0, 500.0), (300.0, 1000.0), (300.0, 3000.0), 150.0
#: One-way delay: kilometres per millisecond of light in fibre, the detour factor of cables, and a constant (ms).
_KM_PER_MS, _DETOUR, _LAST_MILES = 200.0, 1.4, 1.0
_EARTH_KM = 6371.0
#: The loss probability of the longest paths.
_LOSS = 0.002


def draw_topology(
    hosts: int, regions: int, *, seed: int = 0, hidden: float = 0.2, trainer_rate: float = TRAINER
) -> Topology:
    """Returns a topology of `hosts` hosts over `regions` regions, each linked with each other. hidden: share of hosts
    behind NAT.

    trainer_rate: Mbit/s of the trainer's uplink. The other hosts can relay about 190 Mbit/s each on average: with a
    slower trainer its uplink is the bottleneck, with a faster one all uplinks together are. Regions are of unequal
    size. The trainer, in the first region, can be dialled. Raises `UsageError`.
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
            rate, back = _log_uniform(rng, *BETWEEN, 2).tolist()
            links.append(Link((names[a], names[b]), round(rate, 1), round(delay, 2), round(loss, 6), round(back, 1)))
    own = {}
    for name in names:
        count = region[name].hosts
        up = _log_uniform(rng, *UP, count)
        down = np.maximum(up, _log_uniform(rng, *DOWN, count))
        seen = rng.random(count) >= hidden
        for i in range(count):
            own[f"{name}-{i}"] = Host(round(float(up[i]), 1), round(float(down[i]), 1), bool(seen[i]))
    trainer = f"{names[0]}-0"
    own[trainer] = Host(trainer_rate, max(trainer_rate, DOWN[1]), True)
    return Topology(trainer, region, links, own)


def _log_uniform(rng: np.random.Generator, low: float, high: float, count: int) -> Floats:
    return np.exp(rng.uniform(np.log(low), np.log(high), count))


def _sizes(rng: np.random.Generator, hosts: int, regions: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the hosts of each region: one, and the others by log-normal weights."""
    weight = rng.lognormal(0.0, 0.5, regions)
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]] = 1 + rng.multinomial(hosts - regions, weight / weight.sum())
    return sizes


def _distances(rng: np.random.Generator, regions: int) -> Floats:
    """Returns the kilometres between points drawn uniformly on a globe."""
    place = rng.normal(size=(regions, 3))
    place /= np.linalg.norm(place, axis=1, keepdims=True)
    return np.asarray(_EARTH_KM * np.arccos(np.clip(place @ place.T, -1.0, 1.0)))
