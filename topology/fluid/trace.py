"""Records a run: each node's progress, each region's progress, each link's utilisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p2psync.errors import StoreError
from p2psync.topology.fluid.node import FluidNode
from p2psync.topology.fluid.payload import SCALE
from p2psync.topology.fluid.servers import FluidNetwork
from p2psync.topology.simulated_payload import SimulatedPayload

#: A node's progress is recorded whenever it holds another such fraction of a payload.
STEPS = 8


@dataclass(frozen=True)
class TraceSample:
    """One sample. version: the newest at that time.

    progress: by region, the mean share of that version that live receivers hold (nan: there are none). links: by link
    of `Trace.links`, the utilisation since the last sample.
    """

    time: float
    version: int
    progress: list[float]
    links: list[float]


@dataclass
class Trace:
    """Recorded during a run. Times in seconds; bytes are the represented ones.

    points: (time, node, version, bytes held). finished: by version, when each node had all chunks.
    """

    regions: int
    points: list[tuple[float, str, int, int]] = field(default_factory=list)
    samples: list[TraceSample] = field(default_factory=list)
    finished: dict[int, dict[str, float]] = field(default_factory=dict)
    links: list[tuple[int, int]] = field(default_factory=list)
    _held: dict[int, list[int]] = field(default_factory=dict)
    _of: dict[tuple[str, int], int] = field(default_factory=dict)
    _receivers: list[int] = field(default_factory=list)
    _passed: dict[tuple[int, int], float] = field(default_factory=dict)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._receivers = [0] * self.regions

    def joined(self, node: FluidNode) -> None:
        """A receiver joined."""
        self._receivers[node.region] += 1

    def left(self, node: FluidNode) -> None:
        """A receiver left, and its chunks with it."""
        self._receivers[node.region] -= 1
        for version, held in self._held.items():
            held[node.region] -= self._of.pop((node.name, version), 0)

    def saved(self, node: FluidNode, payload: SimulatedPayload, size: int, now: float) -> None:
        """A receiver saved `size` (scaled) bytes of a payload."""
        version, whole = payload.manifest.version, payload.nbytes
        before = self._of.get((node.name, version), 0)
        held = self._of[node.name, version] = before + size * SCALE
        self._held.setdefault(version, [0] * self.regions)[node.region] += size * SCALE
        if held * STEPS // whole != before * STEPS // whole:
            self.points.append((round(now, 6), node.name, version, held))

    def completed(self, node: FluidNode, payload: SimulatedPayload, now: float) -> bool:
        """A receiver has all chunks of a payload; returns whether this is new."""
        finished = self.finished.setdefault(payload.manifest.version, {})
        return node.name not in finished and finished.setdefault(node.name, now) == now

    def sample(self, payload: SimulatedPayload, net: FluidNetwork, now: float) -> None:
        """Records a sample; `payload` is the newest."""
        version = payload.manifest.version
        held = self._held.get(version, [0] * self.regions)
        progress = [
            have / (count * payload.nbytes) if count else float("nan")
            for have, count in zip(held, self._receivers, strict=True)
        ]
        self.links += [pair for pair in net.links if pair not in self._passed]
        since = max(1e-9, now - self._last)
        used = []
        for pair in self.links:
            server = net.links[pair]
            used.append((server.nbytes - self._passed.get(pair, 0.0)) / (server.rate * since))
            self._passed[pair] = server.nbytes
        self._last = now
        self.samples.append(TraceSample(now, version, progress, used))

    def write(self, path: Path) -> None:
        """Writes the points as CSV: time, node, version, bytes held. Raises `StoreError`."""
        lines = ["seconds,node,version,bytes", *(f"{t:.6f},{node},{v},{held}" for t, node, v, held in self.points)]
        try:
            path.write_text("\n".join(lines) + "\n")
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None


def quantile(times: Sequence[float], share: float) -> float | None:
    """Returns the least of these times that is not exceeded by this share of them; None if there are none."""
    ordered = sorted(times)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
