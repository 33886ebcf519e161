"""Faults of a simulation, and their schedule, drawn from the seed.

Each fault is a function of the simulation and of its longest duration (seconds). It takes effect at once and ends by
itself in time, unless it is permanent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from p2psync.sim.build import Simulation
from p2psync.sim.network import SimHost
from p2psync.sim.node import SimNode

Fault: TypeAlias = Callable[[Simulation, float], None]


def crash_and_restart(sim: Simulation, seconds: float) -> None:
    """An actor's process ends; a new one starts from its disk."""
    node = _pick(sim)
    if node is not None:
        node.crash()
        _later(sim, seconds, _start, node)


def crash_and_forget(sim: Simulation, seconds: float) -> None:
    """An actor restarts with its weights, but without the record of their version."""
    node = _pick(sim)
    if node is not None and node.engine is not None:
        node.crash()
        node.engine.forget()
        sim.invariants.highest.pop(node.info.node, None)
        _later(sim, seconds, _start, node)


def crash_for_good(sim: Simulation, seconds: float) -> None:
    """An actor ends and never restarts."""
    if len([node for node in sim.actors if node.alive]) > 2:
        node = _pick(sim)
        if node is not None:
            node.crash()


def join_with_nothing(sim: Simulation, seconds: float) -> None:
    """A new actor joins without weights."""
    sim.add_actor().start()


def join_with_copy(sim: Simulation, seconds: float) -> None:
    """A new actor joins with the weights of a published version, and no record of which."""
    node = sim.add_actor()
    names = sorted(sim.invariants.truth.values())
    if names and node.engine is not None:
        node.engine.live = sim.bits.weights(sim.rng.choice(names)).units
    node.start()


def restart_hub(sim: Simulation, seconds: float) -> None:
    """The hub stops, and restarts empty."""
    if sim.hub.up:
        sim.hub.stop()
        _later(sim, min(seconds, sim.rng.choice([0.1, 15.0])), sim.hub.restart)


def lose_hub_calls(sim: Simulation, seconds: float) -> None:
    """Calls to the hub, or its replies, are lost."""
    sim.hub.loss = 0.4
    _later(sim, seconds, _restore_hub, sim)


def cut_off_hub(sim: Simulation, seconds: float) -> None:
    """Cuts some nodes off from the hub, but not from their peers."""
    names = [node.info.node for node in sim.nodes if sim.rng.random() < 0.4]
    sim.hub.cut_off.update(names)
    _later(sim, seconds, sim.hub.cut_off.difference_update, names)


def restart_trainer(sim: Simulation, seconds: float) -> None:
    """The trainer crashes at any point, and restarts at the next epoch."""
    trainer = sim.trainer
    if trainer.alive:
        trainer.crash()
        _later(sim, min(seconds, 3.0), _start, trainer)


def die_while_publishing(sim: Simulation, seconds: float) -> None:
    """The trainer crashes when a version is durable and not yet announced."""
    trainer = sim.trainer
    if trainer.alive and not trainer.fenced:
        trainer.publish()
        trainer.crash()
        _later(sim, min(seconds, 3.0), _start, trainer)


def take_over(sim: Simulation, seconds: float) -> None:
    """Another trainer takes the run over from an older state and publishes; the first one is fenced."""
    first = sim.trainer
    if not first.alive or first.fenced or not first.name:
        return
    rival = sim.add_trainer(0)
    rival.copy_disk(first, sim.rng.randint(1, len(first.name)))
    sim.trainer = rival
    rival.start()
    rival.publish(anchor=True)


def restore_backup(sim: Simulation, seconds: float) -> None:
    """The trainer and its hub are lost; a new trainer starts from a backup, and reuses version numbers with
    other bits."""
    trainer = sim.trainer
    if not trainer.alive or trainer.fenced or not trainer.name or not sim.hub.up:
        return
    trainer.crash()
    trainer.restore(sim.rng.randint(1, len(trainer.name)))
    sim.hub.stop()
    sim.hub.restart()
    trainer.start()
    trainer.publish(anchor=True)


def claim_in_vain(sim: Simulation, seconds: float) -> None:
    """A trainer of an earlier epoch claims the run and publishes; only a hub that has forgotten everything
    grants it."""
    if sim.trainer.epoch > 0:
        rival = sim.add_trainer(sim.trainer.epoch - 2)
        rival.unix_skew = -1e9
        rival.start()
        rival.publish()


def partition(sim: Simulation, seconds: float) -> None:
    """Cuts some nodes off from all others, and in half of the cases from the hub too."""
    names = [node.info.node for node in sim.nodes if sim.rng.random() < 0.4]
    sim.network.partition(names, seconds)
    if sim.rng.random() < 0.5:
        sim.hub.cut_off.update(names)
        _later(sim, seconds, sim.hub.cut_off.difference_update, names)


def cut_connections(sim: Simulation, seconds: float) -> None:
    """Connections break, and lose the data in flight."""
    for a in sim.nodes:
        for b in sim.nodes:
            if a.info.node < b.info.node and sim.rng.random() < 0.3:
                sim.network.cut(a.info.node, b.info.node)


def shut_one_way(sim: Simulation, seconds: float) -> None:
    """Prevents some nodes from dialling some others, though these can dial them."""
    for node in sim.nodes:
        others = [n.info.node for n in sim.nodes if n is not node and sim.rng.random() < 0.3]
        node.host.shut.update(others)
        _later(sim, seconds, node.host.shut.difference_update, others)


def slow_down(sim: Simulation, seconds: float) -> None:
    """A node's link becomes twenty times slower, once at most, so that bounds on time stay meaningful."""
    host = sim.rng.choice(sim.nodes).host
    if host.slow:
        return
    host.slow, host.up, host.down = True, host.up / 20, host.down / 20
    _later(sim, seconds, _speed_up, host)


def jump_clock(sim: Simulation, seconds: float) -> None:
    """A node's clock jumps ahead, as when a suspended virtual machine resumes."""
    node = sim.rng.choice(sim.nodes)
    node.skew += sim.rng.choice([2.0, 15.0, 700.0])
    if node.alive:
        node.drain()


def damage_disk(sim: Simulation, seconds: float) -> None:
    """Either an actor stops and a bit of some chunks flips, or chunks of a running one become unreadable."""
    node = _pick(sim)
    if node is None:
        return
    running = sim.rng.random() < 0.5
    if not running:
        node.crash()
        _later(sim, seconds, _start, node)
    for pack in node.store.packs.values():
        for index, data in enumerate(pack.chunks):
            if data is not None and sim.rng.random() < 0.3:
                pack.chunks[index] = None if running else bytes([data[0] ^ 1]) + data[1:]


def rot(sim: Simulation, seconds: float) -> None:
    """Verified chunks rot on the disk of the trainer or an actor, unnoticed."""
    node = sim.rng.choice([sim.trainer, *sim.actors])
    sim.invariants.rotten.add(node.info.node)
    for pack in node.store.packs.values():
        index = sim.rng.randrange(len(pack.chunks))
        data = pack.chunks[index]
        if data is not None:
            pack.chunks[index] = bytes([data[0] ^ 1]) + data[1:]


def fill_disk(sim: Simulation, seconds: float) -> None:
    """A disk accepts no writes for a while."""
    node = _pick(sim)
    if node is not None:
        node.store.full_until = sim.clock.now + seconds


def break_engine(sim: Simulation, seconds: float) -> None:
    """An engine refuses its next commits."""
    node = _pick(sim)
    if node is not None:
        node.commit_failures = sim.rng.randint(1, 3)


#: Faults by name.
KINDS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        crash_and_restart,
        crash_and_forget,
        crash_for_good,
        join_with_nothing,
        join_with_copy,
        restart_hub,
        lose_hub_calls,
        cut_off_hub,
        restart_trainer,
        die_while_publishing,
        take_over,
        restore_backup,
        claim_in_vain,
        partition,
        cut_connections,
        shut_one_way,
        slow_down,
        jump_clock,
        damage_disk,
        rot,
        fill_disk,
        break_engine,
    )
}


def schedule(sim: Simulation, until: float) -> None:
    """Draws faults and their times; all temporary ones have ended at `until`."""
    kinds = sim.config.faults if sim.config.faults is not None else tuple(KINDS)
    count = sim.config.fault_count
    if count is None:
        count = sim.rng.randint(0, 6) if kinds else 0
    for _ in range(count if kinds else 0):
        kind = sim.rng.choice(kinds)
        when = sim.rng.uniform(0.05, 0.9) * until
        lasting = min(until - when, sim.rng.choice([0.5, 3.0, 20.0]))
        sim.clock.at(when, _happen, sim, kind, lasting)


def _happen(sim: Simulation, kind: str, lasting: float) -> None:
    sim.clock.note("fault", kind, lasting)
    KINDS[kind](sim, lasting)


def _pick(sim: Simulation) -> SimNode | None:
    alive = [node for node in sim.actors if node.alive]
    return sim.rng.choice(alive) if alive else None


def _later(sim: Simulation, seconds: float, call: Callable[..., None], *arguments: object) -> None:
    # A moment early, so that every fault has ended at the time when faults stop.
    sim.clock.after(max(0.0, seconds - 0.001), call, *arguments)


def _start(node: SimNode) -> None:
    if not node.alive:
        node.start()


def _speed_up(host: SimHost) -> None:
    host.slow, host.up, host.down = False, host.up * 20, host.down * 20


def _restore_hub(sim: Simulation) -> None:
    sim.hub.loss = 0.0
