"""The race of `race_parts` with several roots: nodes that hold a part of the payload each, and send side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from p2psync.protocol.messages import SHORT_ID_BYTES
from p2psync.topology.fluid.node import FluidNode
from p2psync.topology.fluid.swarm import FluidOptions, FluidSwarm
from p2psync.topology.hub_planner import HubPlanResult
from p2psync.topology.network import Network
from p2psync.topology.planner import make_plan
from p2psync.topology.simulated_payload import SimulatedPayload
from tests.swarm.race_parts import _CONFIG


def behind_one_switch(roots: int, actors: int, root_up: float, up: float, down: float) -> Network:
    """Roots and actors that send so many Mbit/s, and take `down`."""
    size = roots + actors
    one = np.zeros((1, 1))
    return Network(
        names=tuple(f"n{i:02}" for i in range(size)),
        trainer=0,
        up=np.where(np.arange(size) < roots, root_up, up),
        down=np.full(size, down),
        region=np.zeros(size, np.int64),
        regions=("lan",),
        rate=one + np.inf,
        delay=one + 0.001,
        loss=one.copy(),
        measured=np.ones((1, 1), bool),
        dialable=np.ones(size, bool),
    )


class _Swarm(FluidSwarm):
    """The first nodes publish, each a run of the chunks, as ranks have them."""

    def __init__(self, network: Network, options: FluidOptions, roots: int) -> None:
        super().__init__(network, options)
        self.roots = list(network.names[:roots])

    def start(self) -> None:
        """See `FluidSwarm`; the plan knows the roots as one."""
        names, co_publishers = self.network.names, self.roots[1:]
        for name in names:
            self._enter(name)
        keep = np.array([name not in co_publishers for name in names])
        network = self.network.only(keep)
        up = network.up.copy()
        up[network.trainer] *= len(self.roots)
        plan_result = HubPlanResult(
            make_plan(replace(network, up=up), revision=1), {}, dict.fromkeys(co_publishers, 1 / len(self.roots))
        )
        for name in names:
            part = plan_result.node_plan(name)
            assert part is not None
            self._follow(self.live[name], part)
        for name in names:
            if name not in self.roots:
                for other in self._others(name):
                    self.connect(self.live[name], other)
        self.clock.at(0.0, self._publish)

    def connect(self, a: FluidNode, b: FluidNode) -> None:
        """See `FluidSwarm`; every root is a source."""
        super().connect(a, b)
        for one, other in ((a, b), (b, a)):
            for peer in one.swarm.peers:
                peer.publisher = peer.publisher or (peer.name == other.name and other.name in self.roots)

    def _begin(self, node: FluidNode, payload: SimulatedPayload, holds: bool = False) -> None:
        if node.name not in self.roots:
            super()._begin(node, payload)
            return
        held = np.arange(payload.manifest.chunks) * len(self.roots) // payload.manifest.chunks
        node.payloads[payload.id[:SHORT_ID_BYTES]] = payload
        mine = held == self.roots.index(node.name)
        node.swarm.begin(payload.id, payload.manifest, mine, payload.no_chunks, self.clock.now)
        node.drain()


@dataclass
class RootsRace:
    """One payload from several roots to everyone else. `run` returns the seconds until the last has it."""

    roots: int
    actors: int = 8
    root_up: float = 100.0
    up: float = 400.0
    down: float = 1000.0
    payload: int = 64 << 20

    def run(self) -> float:
        """Raises `NotConvergedError` if somebody has not got it within 300 seconds."""
        options = FluidOptions(payload_bytes=self.payload, others=self.actors, buffer=1e6, config=_CONFIG)
        self.swarm = _Swarm(
            behind_one_switch(self.roots, self.actors, self.root_up, self.up, self.down), options, self.roots
        )
        self.swarm.start()
        self.swarm._missing -= self.roots - 1
        self.swarm.run()
        unfinished = self.swarm.unfinished - set(self.swarm.roots)
        assert not unfinished
        done = self.swarm.trace.finished[1]
        return max(at for name, at in done.items() if name not in self.swarm.roots)

    @property
    def sent(self) -> list[float]:
        """Copies of the payload that each root handed out."""
        whole = self.swarm.payloads[0].manifest.payload_bytes
        return [self.swarm.live[name].swarm.statistics.sent_bytes / whole for name in self.swarm.roots]
