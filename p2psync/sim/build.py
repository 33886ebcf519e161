"""Builds a simulation: its settings, and the initial nodes, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p2psync.membership.hub import HubConfig
from p2psync.membership.records import NodeInfo, Role, new_run
from p2psync.sim.checks import InvariantChecker
from p2psync.sim.clock import VirtualClock
from p2psync.sim.engine import MemoryEngine
from p2psync.sim.hub import SimHub
from p2psync.sim.liars import LIARS
from p2psync.sim.network import SimHost, SimNetwork
from p2psync.sim.node import SimNode, SimWorld
from p2psync.sim.planner import SimPlanner
from p2psync.sim.trainer import SimTrainer
from p2psync.sim.weights import MODELS, history, signing_key
from p2psync.swarm.config import NodeConfig
from p2psync.swarm.exchange.config import ExchangeConfig

#: Settings scaled to the tiny model: chunks of 400 to 3000 bytes. The bounds on unrequested chunks and on those that
#: lead to a ban are as far apart as in the real settings.
SWARM = ExchangeConfig(
    window_least=4096,
    window_most=32 << 10,
    horizon=0.3,
    request_timeout=3.0,
    flush_limit=4096,
    unsolicited_bytes=16 << 10,
    surplus_most=96 << 10,
    have_delay=0.01,
)
NODE = NodeConfig(swarm=SWARM, redial_max_seconds=8.0)


@dataclass(frozen=True, kw_only=True)
class SimConfig:
    """The settings of a simulation. None: drawn from the seed. Seconds of virtual time.

    actors: honest ones at the start. versions, every: how many the trainer publishes, and how often. faults: kinds (see
    `faults.KINDS`) of which `fault_count` are drawn. liars: kinds (see `liars.LIARS`). bound: seconds after the last
    fault by which every node must run the newest version. planned: whether the hub makes (arbitrary) plans, see
    `SimPlanner`.
    """

    actors: int | None = None
    versions: int = 4
    every: float = 2.0
    faults: tuple[str, ...] | None = None
    fault_count: int | None = None
    liars: tuple[str, ...] | None = None
    bound: float = 120.0
    planned: bool | None = None
    node: NodeConfig = field(default_factory=lambda: NODE)


class Simulation:
    """All objects of one seed's simulation."""

    def __init__(self, seed: int, config: SimConfig) -> None:
        self.config = config
        self.clock = VirtualClock(seed)
        self.rng: random.Random = self.clock.rng
        self.bits = history(seed % MODELS)
        self.key = signing_key(seed % MODELS)
        self.invariants = InvariantChecker(self.bits)
        public = self.key.public_key().public_bytes_raw()
        # Some hubs inline manifests in the view; at others nodes fetch them by id.
        inline = self.rng.choice([0, 64 << 10])
        # A generator of its own, so that a seed gives the same simulation with and without plans.
        plans = random.Random(f"plans of {seed}")
        self.planned = config.planned if config.planned is not None else plans.random() < 0.5
        hub_config = HubConfig(
            trusted=frozenset({public}), inline_bytes=inline, new_manifests_bytes=min(inline, 48 << 10)
        )
        self.hub = SimHub(self.clock, hub_config, lambda: SimPlanner(plans) if self.planned else None)
        self.network = SimNetwork(self.clock)
        self.world = SimWorld(self.clock, self.network, self.hub, self.invariants, public)
        self.nodes: list[SimNode] = []
        self.run = new_run(1000 + seed, self.rng.randbytes(10))
        self.anchor_every = self.rng.choice([2, 3, 100])
        self.keep = self.rng.choice([0, 1, 3])
        #: The trainer that currently publishes.
        self.trainer = self.add_trainer(0)
        for _ in range(config.actors if config.actors is not None else self.rng.randint(3, 5)):
            self.add_actor()
        for kind in config.liars if config.liars is not None else self._draw_liars():
            self.add_actor(LIARS[kind])

    def add_trainer(self, epoch: int) -> SimTrainer:
        """Adds a trainer, not yet started."""
        info = self._info("trainer", reachable=True)
        trainer = SimTrainer(
            self.world,
            self._host(info),
            info,
            self.config.node,
            bits=self.bits,
            key=self.key,
            run=self.run,
            epoch=epoch,
            publish_observer=self.invariants,
            anchor_every=self.anchor_every,
            keep=self.keep,
        )
        self.nodes.append(trainer)
        return trainer

    def add_actor(self, kind: type[SimNode] = SimNode) -> SimNode:
        """Adds an actor without weights, not yet started."""
        info = self._info("actor", reachable=self.rng.random() < 0.8)
        node = kind(self.world, self._host(info), info, self.config.node, MemoryEngine(self.bits))
        if kind is not SimNode:
            self.invariants.liars.add(info.node)
        self.nodes.append(node)
        return node

    @property
    def actors(self) -> list[SimNode]:
        """The honest actors."""
        return [n for n in self.nodes if n.engine is not None and n.info.node not in self.invariants.liars]

    def _draw_liars(self) -> list[str]:
        return [self.rng.choice(sorted(LIARS))] if self.rng.random() < 0.4 else []

    def _info(self, role: Role, *, reachable: bool) -> NodeInfo:
        region = self.rng.choice(["", "east", "west"])
        name = f"{self.rng.getrandbits(128):032x}"
        return NodeInfo(node=name, role=role, region=region, host="simulated", port=1 if reachable else 0)

    def _host(self, info: NodeInfo) -> SimHost:
        rng = self.rng
        up, down = rng.uniform(30e3, 300e3), rng.uniform(60e3, 300e3)
        loss = rng.choice([0.0, 0.0, 0.002, 0.02])
        return self.network.add(SimHost(info.node, up, down, rng.uniform(0.001, 0.07), loss))
