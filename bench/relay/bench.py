"""The relay bench: rounds of runs through one relay, each contender in turn, and each first in its turn.

The contenders are those of the swarm's race, on a network of three hosts and more (`wires`). A run is from the moment
when the payload is offered to the moment when the relay has stored, and every leaf has, each byte, verified; then the
files are compared. All moments are of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from p2psync.bench.codec import cpu_name
from p2psync.bench.relay.meter import Meter
from p2psync.bench.relay.report import Passage, RelayReport
from p2psync.bench.relay.wires import RELAY, Wires, star
from p2psync.bench.swarm.contenders import TRIALS, missing
from p2psync.bench.swarm.processes import Children
from p2psync.bench.swarm.trial import Track, Trial, in_turn, sha256, write_random
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.errors import P2PSyncError
from p2psync.store.encoding import block_and_chunk
from p2psync.topology.model import MAX_RATE

BASELINES = ("aria2", "libtorrent")
#: How long processes may take to start and to find each other (seconds).
READY = 60.0
#: Seconds between two looks whether all is there, which cost CPU time of the bench's own process.
_GLANCE = 0.002


@dataclass(frozen=True)
class RelayOptions:
    """sizes: bytes of payloads. rates: Mbit/s of the links, 0: no limit. leaves: to how many the relay sends. limit:
    seconds of one run. settle: see `Track`."""

    contenders: Sequence[str]
    sizes: Sequence[int]
    rates: Sequence[float] = (0.0, 1000.0)
    rounds: int = 5
    leaves: int = 1
    congestion: str = "bbr"
    limit: float = 120.0
    settle: float = 15.0
    seed: int = 1


@dataclass
class RelayBench:
    """One bench; `run` may be called once. progress: gets a line now and then."""

    options: RelayOptions
    progress: Callable[[str], None] = lambda line: None
    passages: list[Passage] = field(default_factory=list)

    def run(self) -> RelayReport:
        """All rounds. Raises `P2PSyncError` where no network can be made."""
        options = self.options
        skipped = [f"{name}: {why}" for name in options.contenders if (why := missing(name))]
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="p2psync-relay-") as folder:
            for rate in options.rates:
                with Wires(options.leaves, rate=rate, congestion=options.congestion) as wires:
                    for size in options.sizes:
                        self._rounds(wires, rate, size, Path(folder))
            return RelayReport(
                leaves=options.leaves,
                congestion=options.congestion,
                passages=self.passages,
                skipped=skipped,
                file_system=_file_system(Path(folder)),
                load_before=load,
                cpu=cpu_name(),
                cpus_allowed=len(os.sched_getaffinity(0)),
            )

    def _rounds(self, wires: Wires, rate: float, size: int, folder: Path) -> None:
        track = self._track(wires, rate, size, folder)
        names = [name for name in self.options.contenders if not missing(name)]
        for number in range(self.options.rounds):
            for name in in_turn(names, number):
                self._pass(track, wires, rate, name, number)
        track.file.unlink()

    def _track(self, wires: Wires, rate: float, size: int, folder: Path) -> Track:
        options = self.options
        file = folder / "seed" / "payload"
        write_random(file, size, options.seed)
        return Track(
            star(options.leaves),
            wires,
            file,
            sha256(file),
            size,
            piece=_piece(size, rate),
            settle=options.settle,
            congestion=options.congestion,
            meeting=RELAY,
        )

    def _pass(self, track: Track, wires: Wires, rate: float, name: str, number: int) -> None:
        label = f"{name}, {track.payload_bytes / (1 << 20):.4g} MiB, {limit_of(rate)}, round {number + 1}"
        self.progress(f"{label} …")
        passage = Passage(name, number, rate, track.payload_bytes)
        with (
            tempfile.TemporaryDirectory(dir=track.file.parents[1]) as place,
            Children(wires, Path(place)) as children,
        ):
            trial = TRIALS[name](track, children, Path(place), self.options.seed + number)
            try:
                passage = _measure(trial, wires, passage, self.options.limit)
            except P2PSyncError as error:
                passage = msgspec.structs.replace(passage, trouble=str(error))
        self.passages.append(passage)
        if passage.trouble:
            self.progress(f"{label}: {passage.trouble}")
        else:
            cost = passage.cpu_seconds / passage.gigabytes
            self.progress(f"{label}: {passage.seconds:.2f} s, {cost:.2f} CPU s per GB")


def _piece(size: int, rate: float) -> int:
    """Bytes of a torrent's pieces: as large as our chunks may be. rate: Mbit/s of the links, 0: no limit."""
    rows = [TableRow(TensorSpec(TensorKind.TENSOR, "payload", "U8", (size,)), False, True)]
    return block_and_chunk(rows, anchor=True, rate=(rate or MAX_RATE) / 8e-6)[1]


def limit_of(rate: float) -> str:
    """The links' rate (Mbit/s, 0: none), for people."""
    return f"{rate:g} Mbit/s" if rate else "no limit"


def _measure(trial: Trial, wires: Wires, passage: Passage, limit: float) -> Passage:
    """One run. Raises `P2PSyncError` where it cannot begin."""
    trial.start(False)
    trial.ready(time.monotonic() + READY)
    with Meter(trial.node(RELAY)) as meter:
        before = wires.traffic(RELAY)
        begin = trial.go(time.monotonic() + READY)
        trouble = _until_done(trial, begin + limit)
        after = wires.traffic(RELAY)
    finished = trial.finished()
    if not trouble and (unsound := trial.unsound(list(finished))):
        trouble = f"other bytes on {', '.join(unsound)}"
    end = max(finished.values(), default=begin)
    return msgspec.structs.replace(
        passage,
        payload_bytes=trial.payload_bytes,
        piece_bytes=trial.piece_bytes,
        seconds=end - begin,
        cpu_seconds=meter.between(begin, end),
        received=after.received - before.received,
        sent=after.sent - before.sent,
        trouble=trouble,
    )


def _until_done(trial: Trial, deadline: float) -> str:
    """Waits until relay and leaves have everything. Returns the fault, "" if there is none."""
    while any(host not in trial.finished() for host in trial.track.receivers):
        if trouble := trial.trouble():
            return trouble
        if time.monotonic() > deadline:
            return "not within the limit"
        time.sleep(_GLANCE)
    return ""


def _file_system(folder: Path) -> str:
    """The kind of file system that a folder is on; "" where that is not known."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    found = [(len(place), kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    return max(found)[1] if found else ""


def quick_options(options: RelayOptions) -> RelayOptions:
    """The short form: 8 MiB, no limit, one round."""
    return replace(options, sizes=[8 << 20], rates=[0.0], rounds=1, limit=20.0, settle=1.5)
