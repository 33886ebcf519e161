"""Draws networks of places from a seed: data centres, clouds, offices, homes, far places, satellites.

A draw gives the places and their hosts, each host's own link, and between each two places a shared link whose delay
follows from where they lie on the globe. Rates are drawn evenly over orders of magnitude, everything else uniformly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from p2psync.errors import UsageError
from p2psync.topology.model import MAX_HOSTS, Host, Link, Region, Topology

#: The lowest and the highest value that is drawn.
Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PlaceKind:
    """The ranges of one kind of place.

    up, down: Mbit/s of a host's own link. link: Mbit/s that all its hosts share towards another place. access_ms:
    one-way delay of its access, added to the distance. loss: probability that a packet to or from it is lost. nat:
    share of its hosts that can only dial out. hosts: how many it has. inside_ms: one-way delay between its hosts.
    """

    up: Range
    down: Range
    link: Range
    access_ms: Range
    loss: Range
    nat: float
    hosts: tuple[int, int]
    inside_ms: Range


KINDS: dict[str, PlaceKind] = {
    "data-centre": PlaceKind(
        up=(200, 400), down=(200, 400), link=(100, 400), access_ms=(0.2, 1), loss=(0, 0.0005), nat=0.0,
        hosts=(2, 4), inside_ms=(0.05, 0.3),
    ),
    "cloud": PlaceKind(
        up=(80, 300), down=(100, 400), link=(40, 300), access_ms=(0.5, 3), loss=(0, 0.001), nat=0.0,
        hosts=(1, 4), inside_ms=(0.2, 1),
    ),
    "office": PlaceKind(
        up=(40, 200), down=(60, 300), link=(30, 150), access_ms=(2, 8), loss=(0, 0.002), nat=0.5,
        hosts=(1, 3), inside_ms=(0.1, 0.5),
    ),
    "home": PlaceKind(
        up=(6, 60), down=(50, 250), link=(40, 200), access_ms=(5, 20), loss=(0, 0.004), nat=0.9,
        hosts=(1, 3), inside_ms=(5, 25),
    ),
    "far": PlaceKind(
        up=(20, 150), down=(30, 200), link=(15, 100), access_ms=(60, 130), loss=(0.002, 0.01), nat=0.2,
        hosts=(1, 3), inside_ms=(0.2, 2),
    ),
    "satellite": PlaceKind(
        up=(5, 20), down=(30, 120), link=(30, 120), access_ms=(270, 300), loss=(0.003, 0.01), nat=0.8,
        hosts=(1, 1), inside_ms=(0.2, 1),
    ),
}  # fmt: skip
#: How often each kind is drawn, relative to the others, for all places but the trainer's.
WEIGHTS = {"data-centre": 2.0, "cloud": 3.0, "office": 2.0, "home": 2.0, "far": 1.5, "satellite": 0.5}
#: Kinds of the trainer's place, and Mbit/s of the trainer's uplink.
TRAINER_KINDS, TRAINER_UP = ("data-centre", "cloud", "office", "home"), (20.0, 120.0)
#: The most that a link between two places loses, and its greatest one-way delay: round trips reach 600 ms.
MAX_LOSS, MAX_DELAY_MS = 0.015, 300.0
#: Places of a network.
MIN_PLACES, MAX_PLACES = 2, 5
#: Kilometres that light in fibre goes in a millisecond, and how much longer than straight a cable is.
_KM_PER_MS, _DETOUR, _EARTH_KM = 200.0, 1.4, 6371.0


def draw_places(seed: int, *, hosts: int = 12) -> Topology:
    """Returns a network of at least 3 and at most `hosts` hosts in two to five places; the trainer can be dialled.

    A place is named by its kind and a number. Equal seeds give equal networks. Raises `UsageError` below 3 hosts.
    """
    if not 3 <= hosts <= MAX_HOSTS:
        raise UsageError(f"{hosts} hosts: a network of places has 3 to {MAX_HOSTS}")
    rng = np.random.default_rng(seed)
    drawn = _kinds(rng, min(MAX_PLACES, hosts - 1))
    names = [f"{kind}{i}" for i, kind in enumerate(drawn)]
    kinds = [KINDS[kind] for kind in drawn]
    region, host = {}, {}
    for name, kind, count in zip(names, kinds, _host_counts(rng, kinds, hosts), strict=True):
        region[name] = Region(count, kind.up[1], None, round(float(rng.uniform(*kind.inside_ms)), 2))
        host.update({f"{name}-{i}": _host(rng, kind) for i in range(count)})
    trainer = f"{names[0]}-0"
    up = _log_uniform(rng, (TRAINER_UP[0], min(TRAINER_UP[1], kinds[0].up[1])))
    host[trainer] = Host(up, max(up, host[trainer].down or up), True)
    return Topology(trainer, region, _links(rng, names, kinds), host)


def _kinds(rng: np.random.Generator, most: int) -> list[str]:
    count = int(rng.integers(MIN_PLACES, most + 1))
    weights = np.array([*WEIGHTS.values()]) / sum(WEIGHTS.values())
    return [str(rng.choice(TRAINER_KINDS)), *rng.choice([*WEIGHTS], size=count - 1, p=weights).tolist()]


def _host_counts(rng: np.random.Generator, kinds: list[PlaceKind], hosts: int) -> list[int]:
    counts = [int(rng.integers(kind.hosts[0], kind.hosts[1] + 1)) for kind in kinds]
    while sum(counts) > hosts:
        counts[int(np.argmax(counts))] -= 1
    counts[0] += max(0, 3 - sum(counts))
    return counts


def _host(rng: np.random.Generator, kind: PlaceKind) -> Host:
    up = _log_uniform(rng, kind.up)
    return Host(up, max(up, _log_uniform(rng, kind.down)), bool(rng.random() >= kind.nat))


def _links(rng: np.random.Generator, names: list[str], kinds: list[PlaceKind]) -> list[Link]:
    where: NDArray[np.float64] = rng.normal(size=(len(kinds), 3))
    where /= np.linalg.norm(where, axis=1, keepdims=True)
    access = [float(rng.uniform(*kind.access_ms)) for kind in kinds]
    loss = [float(rng.uniform(*kind.loss)) for kind in kinds]
    links = []
    for a in range(len(kinds)):
        for b in range(a):
            distance = _EARTH_KM * math.acos(float(np.clip(where[a] @ where[b], -1.0, 1.0)))
            delay = min(MAX_DELAY_MS, _DETOUR * distance / _KM_PER_MS / 2 + access[a] + access[b])
            rate, back = (min(_log_uniform(rng, kinds[a].link), _log_uniform(rng, kinds[b].link)) for _ in range(2))
            lost = round(min(MAX_LOSS, loss[a] + loss[b]), 5)
            links.append(Link((names[a], names[b]), rate, round(delay, 1), lost, back))
    return links


def _log_uniform(rng: np.random.Generator, limits: Range) -> float:
    return round(float(np.exp(rng.uniform(*np.log(limits)))), 1)
