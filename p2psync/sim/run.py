"""Runs one simulation from its seed: the faults, the publishing, the end, and the report."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.sim.build import SimConfig, Simulation
from p2psync.sim.checks import InvariantError
from p2psync.sim.faults import schedule
from p2psync.sim.node import SimNode
from p2psync.sim.trainer import SimTrainer

#: Events after which a simulation counts as an endless loop.
MAX_EVENTS = 400_000


@dataclass(frozen=True, kw_only=True)
class SimReport:
    """The results of a simulation. Seconds of virtual time, bytes.

    makespans: of the versions that every actor alive at the end committed, from publication to the last commit.
    converged_after: from the last fault until all ran the newest version. trainer_bytes: chunks sent by trainers.
    payload_bytes: of all published manifests. trace: a fingerprint of all events.
    """

    seed: int
    trace: str
    events: int
    seconds: float
    converged_after: float
    makespans: list[float]
    trainer_bytes: int
    payload_bytes: int
    received_bytes: int
    wasted_bytes: int
    commits: int
    bans: int
    nodes: int


class SimFailure(Exception):
    """An invariant is violated; the message says how to replay it. kind: the invariant's short name."""

    def __init__(self, seed: int, error: InvariantError) -> None:
        super().__init__(f"{error}\nreplay it with: python -m p2psync.sim --seeds {seed}:{seed + 1}")
        self.seed = seed
        self.kind = error.kind


def run_sim(seed: int, config: SimConfig | None = None) -> SimReport:
    """Simulates a seed. Raises `SimFailure` when an invariant is violated. Equal arguments give equal reports."""
    sim = Simulation(seed, config or SimConfig())
    try:
        faults_end = _run(sim)
        return _report(seed, sim, faults_end)
    except InvariantError as error:
        raise SimFailure(seed, error) from error


def _run(sim: Simulation) -> float:
    """Runs the simulation; returns when faults stopped (seconds)."""
    config = sim.config
    faults_end = 1.0 + config.versions * config.every
    for node in list(sim.nodes):
        sim.clock.at(sim.rng.uniform(0.0, 1.0), _start_once, node)
    for i in range(config.versions):
        sim.clock.at(0.5 + i * config.every, _publish, sim)
    schedule(sim, faults_end)
    sim.clock.run(faults_end, lambda: _check_events(sim))
    sim.clock.note("calm")
    # The last version is published after all faults, so that no node is excused.
    _publish(sim)
    sim.clock.run(faults_end + config.bound, lambda: _check_events(sim) or _is_over(sim))
    sim.invariants.check_end(sim.nodes, sim.trainer.head, config.bound)
    return faults_end


def _start_once(node: SimNode) -> None:
    if node.processes == 0:
        node.start()


def _publish(sim: Simulation) -> None:
    if sim.trainer.alive:
        sim.trainer.publish()


def _check_events(sim: Simulation) -> bool:
    if sim.clock.events > MAX_EVENTS:
        raise InvariantError("busy", f"{sim.clock.events} events in {sim.clock.now:.1f} s")
    return False


def _is_over(sim: Simulation) -> bool:
    return sim.clock.events % 16 == 0 and sim.invariants.has_converged(sim.nodes, sim.trainer.head)


def _report(seed: int, sim: Simulation, faults_end: float) -> SimReport:
    invariants = sim.invariants
    for node in sim.nodes:
        if node.alive:
            invariants.ended(node)
    return SimReport(
        seed=seed,
        trace=sim.clock.trace,
        events=sim.clock.events,
        seconds=sim.clock.now,
        converged_after=sim.clock.now - faults_end,
        makespans=invariants.makespans(sim.nodes),
        trainer_bytes=invariants.trainer_bytes,
        payload_bytes=invariants.payload_bytes,
        received_bytes=invariants.received_bytes,
        wasted_bytes=invariants.wasted_bytes,
        commits=invariants.commits,
        bans=invariants.bans,
        nodes=sum(not isinstance(node, SimTrainer) for node in sim.nodes),
    )
