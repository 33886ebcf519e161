"""The race: rounds of runs on one emulated network, each contender in turn, with a limit on everything.

A run's time is from the moment when the payload is there to be sent (p2psync: the manifest is signed and its chunks are
durable; others: the file and its torrent exist) to the moment when the last receiver has every byte, verified. Before a
warm run all contenders are connected, as far as each can be; before a cold one their processes run and know each
other's addresses, and nothing is connected or measured. All moments are of CLOCK_MONOTONIC, which the hosts of an
emulated network share.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from p2psync.bench.codec import cpu_name
from p2psync.bench.swarm import faults
from p2psync.bench.swarm.contenders import P2PSYNC, TRIALS, missing
from p2psync.bench.swarm.faults import InjectedFault
from p2psync.bench.swarm.processes import Children
from p2psync.bench.swarm.report import LinkSample, RaceRun, SwarmReport
from p2psync.bench.swarm.trial import Track, Trial, in_turn, sha256, write_random
from p2psync.errors import P2PSyncError, UsageError
from p2psync.net.tcp import AUTO_CONGESTION, PREFERRED
from p2psync.topology.bound import broadcast_bound, least_makespan
from p2psync.topology.emulator import EmulatedNetwork, Emulator
from p2psync.topology.model import Region, Topology

#: How long processes may take to start and to find each other (seconds).
READY = 120.0
#: How often it is looked whether a receiver has all.
_GLANCE = 0.005
#: How often the links' counters are read until it goes.
_LOOK = 0.01
#: Samples of the links' counters in a run that takes as long as the floor, and the shortest time between two.
_SAMPLES, _MIN_STEP_SECONDS = 20, 0.05


@dataclass(frozen=True)
class RaceOptions:
    """contenders: names, p2psync among them or not. base: see `Track`. limit: seconds of one run. cold: as many cold
    rounds, too. with_faults: runs of p2psync with each fault. reports_chunks: see `Track`."""

    payload_bytes: int
    contenders: Sequence[str]
    rounds: int = 5
    congestion: str = "bbr"
    base: int = 0
    limit: float = 300.0
    cold: bool = True
    with_faults: bool = False
    piece: int = 64 << 10
    settle: float = 60.0
    seed: int = 1
    reports_chunks: bool = False


@dataclass
class Race:
    """One race; `run` may be called once. progress: gets a line now and then."""

    name: str
    topology: Topology
    options: RaceOptions
    progress: Callable[[str], None] = lambda line: None
    runs: list[RaceRun] = field(default_factory=list)

    def run(self) -> SwarmReport:
        """All rounds. Raises `P2PSyncError` where no network can be emulated, `UsageError` for an unfit one."""
        options, topology = self.options, self.topology
        _check(topology)
        bound = broadcast_bound(topology)
        skipped = [f"{name}: {why}" for name in options.contenders if (why := missing(name))]
        names = [name for name in options.contenders if not missing(name)]
        receivers = [host for host, _ in topology.hosts if host != topology.trainer]
        with (
            tempfile.TemporaryDirectory(prefix="p2psync-race-") as folder,
            Emulator(topology, congestion=options.congestion, seed=options.seed) as network,
        ):
            load = os.getloadavg()[0]
            track = self._track(network, Path(folder))
            for number in range(options.rounds):
                for cold in (False, True) if options.cold and not options.base else (False,):
                    for name in in_turn(names, number):
                        if not self._is_hopeless(name, cold):
                            self._run_trial(track, name, number, cold=cold)
            if options.cold and options.base:
                skipped.append("cold: not with a delta, whose base must be there first")
            if options.with_faults and P2PSYNC in names:
                self._faults(track)
            late = network.counters().late_ms_p99
        return SwarmReport(
            topology=self.name,
            receivers=receivers,
            congestion=options.congestion,
            payload_bytes=options.payload_bytes,
            delta=bool(options.base),
            floor=least_makespan(topology, options.payload_bytes),
            bound=bound.rate,
            because=bound.because,
            limit=options.limit,
            runs=self.runs,
            skipped=skipped,
            load_before=load,
            late_ms=late,
            cpu=cpu_name(),
            cpus_allowed=len(os.sched_getaffinity(0)),
        )

    def _is_hopeless(self, name: str, cold: bool) -> bool:
        """Returns whether this is another contender that was over the limit once: it is not waited for again."""
        return name != P2PSYNC and any(
            (run.contender, run.cold) == (name, cold) and run.over_limit for run in self.runs
        )

    def _track(self, network: EmulatedNetwork, folder: Path) -> Track:
        options = self.options
        file = folder / "seed" / "payload"
        write_random(file, options.payload_bytes, options.seed)
        return Track(
            self.topology,
            network,
            file,
            sha256(file),
            options.payload_bytes,
            base=options.base,
            piece=options.piece,
            settle=options.settle,
            congestion=AUTO_CONGESTION if options.congestion == PREFERRED[0] else options.congestion,
            reports_chunks=options.reports_chunks,
        )

    def _faults(self, track: Track) -> None:
        """Runs p2psync with each fault, at a share of the time that runs without one take."""
        whole = sorted(run.seconds for run in self.runs if run.contender == P2PSYNC and not run.cold and run.seconds)
        if not whole:
            return
        typical = whole[len(whole) // 2]
        for name, share in faults.WHEN.items():
            for number in range(self.options.rounds):
                self._run_trial(track, P2PSYNC, number, fault=InjectedFault(name, share * typical))
                track.network.restore()

    def _run_trial(
        self, track: Track, name: str, number: int, *, cold: bool = False, fault: InjectedFault | None = None
    ) -> None:
        what = ", ".join(filter(None, ("cold" if cold else "", fault.name if fault else "")))
        label = f"{name}{f' ({what})' if what else ''}, round {number + 1}"
        self.progress(f"{label} …")
        with (
            tempfile.TemporaryDirectory(dir=track.file.parents[1]) as place,
            Children(track.network, Path(place)) as children,
        ):
            trial = TRIALS[name](track, children, Path(place), self.options.seed + number)
            run = _Timing(trial, name, number, cold, fault, self.options.limit).run()
        track.network.counters()  # a network that has died ends the race
        self.runs.append(run)
        took = f"{run.seconds:.2f} s, {run.ratio:.2f}× the floor" if run.seconds and run.ratio else run.trouble
        self.progress(f"{label}: {took}")


class _Timing:
    """One run."""

    def __init__(
        self, trial: Trial, name: str, number: int, cold: bool, fault: InjectedFault | None, limit: float
    ) -> None:
        self._trial, self._name, self._number, self._cold = trial, name, number, cold
        self._fault, self._limit = fault, limit
        self._network = trial.track.network
        self._alive = list(trial.track.receivers)
        self._samples: list[LinkSample] = []
        self._before: dict[str, int] = {}
        self._over_limit = False
        self._struck_at = 0.0

    def run(self) -> RaceRun:
        """Returns the figures, which name whatever went wrong."""
        trial, trouble = self._trial, ""
        begin, cpu = time.monotonic(), 0.0
        fault = ""
        try:
            trial.start(self._cold)
            trial.ready(time.monotonic() + READY)
            cpu = trial.children.cpu_seconds()
            begin = self._go()
            trouble, fault = self._until_done(begin)
        except P2PSyncError as error:
            trouble = str(error)
        return self._result(begin, trial.children.cpu_seconds() - cpu, trouble, fault)

    def _go(self) -> float:
        """Let it go, and note what links had carried when it did: not before, for p2psync seals for seconds, in which
        its nodes may still measure the links; nor when this process learns of it, for then chunks are on their way."""
        seen, over = [(0.0, self._sent())], threading.Event()

        def look() -> None:
            while not over.wait(_LOOK):
                with suppress(P2PSyncError):
                    sent = self._sent()
                    seen.append((time.monotonic(), sent))

        watch = threading.Thread(target=look, name="counters")
        watch.start()
        try:
            begin = self._trial.go(time.monotonic() + READY)
        finally:
            over.set()
            watch.join()
        self._before = next(sent for at, sent in reversed(seen) if at <= begin)
        return begin

    def _until_done(self, begin: float) -> tuple[str, str]:
        """Waits until the last receiver has everything. Returns the fault, "" if none, and the injected event."""
        trial, done = self._trial, ""
        step = max(_MIN_STEP_SECONDS, least_makespan(trial.track.topology, trial.track.payload_bytes) / _SAMPLES)
        pending, next_sample = self._fault, begin
        while True:
            now = time.monotonic()
            if now >= next_sample:
                self._sample(now - begin)
                next_sample = now + step
            if pending is not None and now >= begin + pending.at:
                done, pending = self._strike(pending), None
            if all(host in trial.finished() for host in self._alive):
                self._sample(time.monotonic() - begin)
                return "", done
            if trouble := trial.trouble():
                return trouble, done
            if now > begin + self._limit:
                self._over_limit = True
                return f"not within {self._limit:.0f} s", done
            time.sleep(_GLANCE)

    def _strike(self, fault: InjectedFault) -> str:
        topology, sent = self._trial.track.topology, self._since()
        self._struck_at = time.monotonic()
        if fault.name == faults.CUT:
            faults.cut_link(topology, self._network, sent)
            return fault.name
        victim = faults.busiest_relay(topology, sent)
        for child in self._trial.children.of(victim):
            child.process.kill()
        self._alive.remove(victim)
        return fault.name

    def _result(self, begin: float, cpu: float, trouble: str, fault: str) -> RaceRun:
        trial = self._trial
        sent = self._since() if self._before else {}
        finished = {} if not self._before else {h: t - begin for h, t in trial.finished().items() if h in self._alive}
        whole = not trouble and len(finished) == len(self._alive)
        unsound = trial.unsound(list(finished)) if whole else []
        topology, payload = trial.track.topology, trial.payload_bytes
        trainer, regions = faults.copies(topology, self._alive, sent, payload)
        seconds = max(finished.values()) if whole and not unsound else None
        return RaceRun(
            contender=self._name,
            round=self._number,
            cold=self._cold,
            fault=fault or (self._fault.name if self._fault else ""),
            payload_bytes=payload,
            floor=least_makespan(topology, payload),
            seconds=seconds,
            finished=finished,
            more_seconds=trial.more(begin + seconds) if seconds is not None else {},
            trainer_copies=trainer,
            region_copies=regions,
            cpu_seconds=cpu,
            unsound=unsound,
            over_limit=self._over_limit,
            replanned=self._replanned(),
            planned=trial.plan_rate(begin),
            piece_bytes=trial.piece_bytes,
            chunk_progress={
                host: [(at - begin, share) for at, share in shares] for host, shares in trial.chunk_progress().items()
            },
            trouble=trouble or (f"other bytes on {', '.join(unsound)}" if unsound else ""),
            progress=self._samples,
        )

    def _replanned(self) -> float | None:
        if not self._struck_at:
            return None
        return next((at - self._struck_at for at in self._trial.planned() if at > self._struck_at), None)

    def _sent(self) -> dict[str, int]:
        return {name: counter.bytes for name, counter in self._network.counters().links.items()}

    def _since(self) -> dict[str, int]:
        return {name: count - self._before.get(name, 0) for name, count in self._sent().items()}

    def _sample(self, seconds: float) -> None:
        sent = self._since()
        self._samples.append(LinkSample(seconds, [sent.get(f"{host} down", 0) for host in self._trial.track.receivers]))


def quick_options(options: RaceOptions) -> tuple[Topology, RaceOptions]:
    """The short form: three receivers on a network of its own, 4 MiB, one round."""
    topology = Topology("lan-0", {"lan": Region(4, 100)})
    return topology, replace(options, payload_bytes=4 << 20, rounds=1, limit=20.0, settle=0.5, base=0)


def _check(topology: Topology) -> None:
    """Raise `UsageError` if somebody cannot reach the trainer's host: the hub, the tracker and the daemon are there."""
    home = dict(topology.hosts)[topology.trainer]
    linked = {region for link in topology.link if home in link.between for region in link.between}
    if apart := sorted({region for _, region in topology.hosts} - linked - {home}):
        raise UsageError(f"no link joins {apart[0]} and {home}: all must reach the hub beside the trainer in a race")
