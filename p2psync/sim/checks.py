"""The invariants: those that hold at every moment, and those that hold once faults have stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from p2psync.protocol.manifest import Manifest
from p2psync.protocol.messages import Chunk
from p2psync.protocol.versions import Position
from p2psync.sim.node import SimNode
from p2psync.sim.trainer import SimTrainer
from p2psync.sim.weights import ModelVersions, VersionName
from p2psync.swarm.exchange.actions import Ban

#: A process may receive this multiple of the bytes that it needed, plus this many: cancelled chunks in flight and
#: duplicates at the end; plus an allowance per liar for what it sends before each ban (a ban expires, and a clock may
#: jump).
WASTE_FACTOR = 2.5
WASTE_SLACK_BYTES = 20_000
LIAR_SLACK_BYTES = 103_000


class InvariantError(Exception):
    """An invariant is violated. kind: its short name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass
class InvariantChecker:
    """Observes all nodes and checks the invariants. liars: names of the lying nodes; any treatment of them is
    allowed."""

    bits: ModelVersions
    liars: set[str] = field(default_factory=set)
    #: Honest nodes whose chunks rotted unnoticed: peers may ban them for a moment, until they notice.
    rotten: set[str] = field(default_factory=set)
    #: The name of each published version, by (version, digest).
    truth: dict[tuple[int, bytes], VersionName] = field(default_factory=dict)
    published_at: dict[tuple[int, int], float] = field(default_factory=dict)
    committed_at: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    highest: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    bans_by: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    received_bytes: int = 0
    wasted_bytes: int = 0
    trainer_bytes: int = 0
    payload_bytes: int = 0

    @property
    def bans(self) -> int:
        """Bans by all nodes."""
        return sum(self.bans_by.values())

    # ---- at every moment -------------------------------------------------------------------------------------------

    def published(self, trainer: SimTrainer, manifest: Manifest, name: VersionName) -> None:
        """See `PublishObserver`."""
        self.truth[manifest.version, manifest.digest] = name
        self.published_at.setdefault((manifest.epoch, manifest.version), trainer.world.clock.now)
        self.payload_bytes += manifest.payload_bytes

    def started(self, node: SimNode) -> None:
        """See `NodeObserver`."""

    def ended(self, node: SimNode) -> None:
        """See `NodeObserver`."""
        self.check_waste(node)
        statistics = node.core.swarm.statistics
        self.received_bytes += statistics.received_bytes
        self.wasted_bytes += statistics.wasted_bytes
        if isinstance(node, SimTrainer):
            self.trainer_bytes += statistics.sent_bytes

    def committed(self, node: SimNode, position: Position) -> None:
        """Checks that every bit is the trainer's, that the hub has announced the version, and that versions
        only rise."""
        name = self.truth.get((position.version, position.digest))
        if name is None or node.engine is None or node.engine.live is None:
            raise InvariantError("bits", f"{_name(node)} made version {position.version} live, which nobody published")
        wanted = self.bits.weights(name).units
        if not all(np.array_equal(a, b) for a, b in zip(node.engine.live, wanted, strict=True)):
            raise InvariantError("bits", f"{_name(node)} made wrong bits live as version {position.version}")
        if (position.version, position.digest) not in node.announced_versions:
            raise InvariantError("announced", f"{_name(node)} did not wait for the hub to announce {position.version}")
        reached = (position.run, position.epoch, position.version)
        if reached <= self.highest.get(node.info.node, ("", -1, -1)):
            raise InvariantError("rising", f"{_name(node)} went back to epoch {reached[1]} version {reached[2]}")
        self.highest[node.info.node] = reached
        self.commits += 1
        times = self.committed_at.setdefault((position.epoch, position.version), {})
        times.setdefault(node.info.node, node.world.clock.now)

    def banned(self, node: SimNode, ban: Ban) -> None:
        """Checks that only liars are banned."""
        self.bans_by[node.info.node] = self.bans_by.get(node.info.node, 0) + 1
        moment = ban.peer in self.rotten and ban.until - node.now < node.config.swarm.ban / 2
        if ban.peer not in self.liars and node.info.node not in self.liars and not moment:
            raise InvariantError("honest", f"{_name(node)} banned the honest {ban.peer[:6]}: {ban.reason}")

    def received(self, node: SimNode, peer: str, chunk: Chunk, needed: bool) -> None:
        """Checks that a node bans the sender of a wrong chunk that it waited for."""
        if not needed or peer not in self.liars:
            return
        pack = next((p for id, p in node.store.packs.items() if id.startswith(chunk.manifest)), None)
        if pack is None or pack.manifest.verify_chunk(chunk.index, chunk.data):
            return
        if not node.core.swarm.trust.is_banned(peer, node.now):
            raise InvariantError("blame", f"{_name(node)} took a wrong chunk from {peer[:6]} and did not ban it")

    def check_waste(self, node: SimNode) -> None:
        """Checks that a process does not receive much more than it needed."""
        statistics = node.core.swarm.statistics
        useful = statistics.received_bytes - statistics.wasted_bytes
        slack = WASTE_SLACK_BYTES + LIAR_SLACK_BYTES * (len(self.liars) + self.bans_by.get(node.info.node, 0))
        if node.info.node not in self.liars and statistics.received_bytes > WASTE_FACTOR * useful + slack:
            raise InvariantError(
                "waste", f"{_name(node)} received {statistics.received_bytes} bytes and could use {useful} of them"
            )

    # ---- at the end ------------------------------------------------------------------------------------------------

    def has_converged(self, nodes: list[SimNode], head: Position | None) -> bool:
        """Returns whether every live, honest actor runs the newest version of the newest epoch."""
        return all(
            node.engine is not None and node.engine.position == head
            for node in nodes
            if node.alive and node.engine is not None and node.info.node not in self.liars
        )

    def check_end(self, nodes: list[SimNode], head: Position | None, bound: float) -> None:
        """Checks that every live, honest actor runs the newest version, and that its waste was bounded."""
        for node in nodes:
            if not node.alive:
                continue
            if isinstance(node, SimTrainer) or node.info.node in self.liars:
                continue
            position = node.engine.position if node.engine is not None else None
            if position != head:
                follower = node.core.follower
                where = f"version {position.version} epoch {position.epoch}" if position else "nothing"
                raise InvariantError(
                    "converge",
                    f"{_name(node)} runs {where} {bound:.0f} s after the last fault, the head is {_text(head)};"
                    f" it is in {follower.state.value if follower else '-'}: {follower.last_error if follower else ''}",
                )
            self.check_waste(node)

    def makespans(self, nodes: list[SimNode]) -> list[float]:
        """Returns the seconds from publication to the last commit, for each version that all live honest actors
        committed."""
        names = {n.info.node for n in nodes if n.alive and n.engine is not None and n.info.node not in self.liars}
        spans = []
        for version, began in sorted(self.published_at.items()):
            times = self.committed_at.get(version, {})
            if names and names <= times.keys():
                spans.append(max(times[name] for name in names) - began)
        return spans


def _name(node: SimNode) -> str:
    return f"node {node.info.node[:6]}"


def _text(position: Position | None) -> str:
    return f"version {position.version} epoch {position.epoch}" if position else "nothing"
