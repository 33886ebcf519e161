"""The runs: for each network, one loop each way, of real processes on emulated links."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.bench.codec import cpu_name
from p2psync.bench.rl import generator, learner, scale
from p2psync.bench.rl.arithmetic import MachineSpeed, measure_machine
from p2psync.bench.rl.figures import figures
from p2psync.bench.rl.ideal import copy_seconds, ideal_tokens_per_second
from p2psync.bench.rl.report import LoopRun, RlReport
from p2psync.bench.rl.scale import FREE, FULL_WAYS, LoopOptions
from p2psync.bench.rl.weights import draw_masters
from p2psync.bench.swarm.processes import PYTHON, Child, Children
from p2psync.bench.swarm.trial import in_turn
from p2psync.errors import P2PSyncError
from p2psync.protocol.keys import public_text
from p2psync.topology.emulator import EmulatedNetwork, Emulator
from p2psync.topology.model import Topology

_HUB_PORT, _PORT = 7070, 7071
#: How long the processes of a run may take to start, and to tell what there was (seconds).
_READY, _END = 300.0, 60.0
#: Members have finished measuring once all uplinks together carry no more than this share for so many seconds.
_QUIET_SHARE, _QUIET_SECONDS = 0.03, 5
#: The signing key of these runs' trainers, which only their actors trust.
_KEY = bytes(range(32))


@dataclass
class RlBench:
    """One bench; `run` may be called once. progress: gets a line now and then."""

    options: LoopOptions
    progress: Callable[[str], None] = lambda line: None
    runs: list[LoopRun] = field(default_factory=list)
    _speed: MachineSpeed = field(init=False)

    def run(self) -> RlReport:
        """All networks, all ways. Raises `P2PSyncError` where no network can be emulated."""
        options, load, late = self.options, os.getloadavg()[0], 0.0
        self._speed = measure_machine(options.model_bytes // 2, options.density)
        with tempfile.TemporaryDirectory(prefix="p2psync-rl-") as folder:
            masters = Path(folder) / "masters.npy"
            np.save(masters, draw_masters(scale.shapes(options.model_bytes), options.seed))
            for regions in options.regions:
                for gbit in options.gbits:
                    topology = scale.topology(options, regions, gbit)
                    with Emulator(topology, congestion=options.congestion, seed=options.seed) as network:
                        for number in range(options.rounds):
                            for way in in_turn(options.ways, number):
                                run = LoopRun(way=way, round=number, gbit=gbit, regions=regions, actors=0)
                                self._run(run, topology, network, masters)
                        late = max(late, network.counters().late_ms_p99)
        return RlReport(
            runs=self.runs,
            generation=options.generation,
            learning=options.learning,
            answer=options.answer,
            staleness=options.staleness,
            density=options.density,
            model_bytes=options.model_bytes,
            faster=options.faster,
            speed=options.speed,
            slots=options.slots,
            warm=options.warm,
            burnt_share=options.burnt_share(max(options.regions) * options.actors, len(os.sched_getaffinity(0))),
            machine_share=options.machine_share,
            load_before=load,
            late_ms=late,
            cpu=cpu_name(),
            cpus_allowed=len(os.sched_getaffinity(0)),
        )

    def _run(self, run: LoopRun, topology: Topology, network: EmulatedNetwork, masters: Path) -> None:
        label = f"{run.way}, {run.gbit:g} Gbit/s, {run.regions} region(s), round {run.round + 1}"
        self.progress(f"{label} …")
        with (
            tempfile.TemporaryDirectory(dir=masters.parent) as place,
            Children(network, Path(place)) as children,
        ):
            try:
                done = _LoopRunner(self.options, run, topology, children, masters, self._speed, self.progress).run()
            except P2PSyncError as error:
                done = msgspec.structs.replace(run, trouble=str(error))
        self.runs.append(done)
        self.progress(f"{label}: {done.trouble or f'{done.tokens_per_second:.0f} tokens/s'}")


class _LoopRunner:
    """One run."""

    def __init__(
        self,
        options: LoopOptions,
        run: LoopRun,
        topology: Topology,
        children: Children,
        masters: Path,
        speed: MachineSpeed,
        progress: Callable[[str], None],
    ) -> None:
        self._speed = speed
        self._options, self._run, self._topology = options, run, topology
        self._children, self._network, self._masters = children, children.network, masters
        self._board = children.place / "board"
        self._progress = progress
        self._hosts = [host for host, _ in topology.hosts if host != topology.trainer]

    def run(self) -> LoopRun:
        """Raises `P2PSyncError` where a process ends, or the time is over."""
        ready = time.monotonic() + _READY
        trainer = self._trainer()
        hub = trainer.wait_for("ready", ready)["ready"]
        actors = {host: self._actor(host, hub) for host in self._hosts}
        for actor in actors.values():
            actor.wait_for("up", ready)
        self._progress("  all are up")
        trainer.wait_for("all", ready)
        self._progress("  all are at the first version")
        self._settle()
        trainer.tell("go")
        began, cpu = time.monotonic(), self._children.cpu_seconds()
        steps, uplink = self._steps(trainer, began + self._options.limit)
        share = (self._children.cpu_seconds() - cpu) / (time.monotonic() - began)
        end = time.monotonic() + _END
        last = trainer.wait_for("hashes", end)
        hashes, skipped = last["hashes"], last["skipped"]
        for actor in actors.values():
            actor.tell("stop")
        said = {h: msgspec.convert(a.wait_for("sha256", end), generator.ActorResult) for h, a in actors.items()}
        if self._run.way == FREE:
            hashes = {str(actor.version): hashes["0"] for actor in said.values()}
        made = figures(self._options, self._run, steps, said, hashes, uplink)
        return msgspec.structs.replace(self._with_ideal(made), cpu_share=share, skipped=skipped)

    def _with_ideal(self, made: LoopRun) -> LoopRun:
        if made.way not in FULL_WAYS:
            return made
        copy = copy_seconds(self._options, self._topology, made.payload_bytes)
        tokens = ideal_tokens_per_second(self._options, len(self._hosts), copy)
        return msgspec.structs.replace(made, ideal_copy_seconds=copy, ideal_tokens_per_second=tokens)

    def _settle(self) -> None:
        """Newcomers probe their links once, for a minute or two of a loop that lasts for hours: that is waited for."""
        most = _QUIET_SHARE * self._options.rate(self._run.gbit) / 8e-6 * (1 + len(self._hosts))
        end, quiet, before = time.monotonic() + self._options.settle, 0, self._sent()
        while quiet < _QUIET_SECONDS and time.monotonic() < end:
            time.sleep(1.0)
            sent = self._sent()
            quiet = quiet + 1 if sent - before <= most else 0
            before = sent
        self._progress("  links are measured" if quiet >= _QUIET_SECONDS else "  links are still being measured")

    def _sent(self) -> int:
        """Bytes that have left all hosts."""
        links = self._network.counters().links
        return sum(counter.bytes for name, counter in links.items() if name.endswith(" up"))

    def _steps(self, trainer: Child, deadline: float) -> tuple[list[learner.LearnerStep], list[int]]:
        """Returns the trainer's record of each step, and the bytes that had left it by then."""
        steps, uplink = [], []
        for _ in range(self._options.steps_of(self._run.way)):
            said = msgspec.convert(trainer.wait_for("step", deadline), learner.LearnerStep, strict=False)
            steps.append(said)
            uplink.append(self._network.counters().links[f"{self._topology.trainer} up"].bytes)
            took = said.published - (steps[-2].published if len(steps) > 1 else said.put)
            self._progress(f"  step {said.step + 1}: {took * self._options.faster:.1f} s of the real loop")
        return steps, uplink

    def _trainer(self) -> Child:
        options, host = self._options, self._topology.trainer
        count = len(self._hosts)
        task = learner.LearnerTask(
            way=self._run.way,
            store=str(self._children.place / host),
            masters=str(self._masters),
            board=str(self._board),
            boards=[str(self._own_board(actor)) for actor in self._hosts],
            address=self._network.address(host),
            region=self._region(host),
            key=_KEY.hex(),
            hub_port=_HUB_PORT,
            port=_PORT,
            congestion=options.congestion,
            shapes=scale.shapes(options.model_bytes),
            density=options.density,
            prompts=[scale.lengths(options, count, step) for step in range(options.steps_of(self._run.way) + 1)],
            actors=count,
            learning=options.learning / options.faster,
            staleness=options.staleness,
            seed=options.seed,
        )
        return self._start(host, "p2psync.bench.rl.learner", task)

    def _actor(self, host: str, hub: str) -> Child:
        options, speed = self._options, self._speed
        burnt = options.burnt_share(len(self._hosts), len(os.sched_getaffinity(0)))
        # A full broadcast may load versions while the live one serves, on processors that generate nothing.
        charged = 0.0 if self._run.way in FULL_WAYS else 1.0
        beyond = charged * max(0.0, options.shrunk / options.faster - 1)
        task = generator.GeneratorTask(
            way=self._run.way,
            hub=hub,
            public=public_text(Ed25519PrivateKey.from_private_bytes(_KEY).public_key().public_bytes_raw()),
            store=str(self._children.place / host),
            masters=str(self._masters),
            board=str(self._board),
            own_board=str(self._own_board(host)),
            address=self._network.address(host),
            region=self._region(host),
            port=_PORT,
            congestion=options.congestion,
            shapes=scale.shapes(options.model_bytes),
            slots=options.slots,
            speed=options.speed / options.slots * options.faster,
            token_bytes=scale.TOKEN_BYTES / options.shrunk,
            staleness=options.staleness,
            rounds_per_token=burnt * speed.rounds_per_second / (options.speed * options.faster),
            staging_cost=charged / options.machine_share,
            write_seconds=speed.write_seconds * beyond,
            copy_seconds=speed.copy_seconds * beyond,
        )
        return self._start(host, "p2psync.bench.rl.generator", task)

    def _own_board(self, host: str) -> Path:
        return self._children.place / f"board-{host}"

    def _start(self, host: str, module: str, task: msgspec.Struct) -> Child:
        return self._children.start(host, *PYTHON, "-m", module, msgspec.json.encode(task).decode(), talks=True)

    def _region(self, host: str) -> str:
        return dict(self._topology.hosts)[host]
