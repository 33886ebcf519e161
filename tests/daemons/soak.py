"""Kill trainer, actors and hub at seeded moments, start them again by the same commands, and look at every bit.

    python -m tests.daemons.soak --kills 200 --seed 7

Each round writes one checkpoint, kills one daemon when it tells of some event (or a few milliseconds later), starts it
again, and waits until every actor's directory is that checkpoint. A kill counts only if its event came and the work
that it is to interrupt was under way; else the moment comes again, with a shorter delay. No version may ever mean two
things.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

sys.path.insert(0, str(Path(__file__).parent))

from checkpoint_parts import Model, sums
from daemon_parts import LIMIT, Process, Swarm


@dataclass(frozen=True)
class Moment:
    """The moment of a kill: after the next event of a type, "" for the appearance of the checkpoint.

    undone: the actors of which one at least must not have the checkpoint yet, or the kill would interrupt nothing.
    joins: an actor that is killed and started again first, so that the event comes.
    """

    victim: str
    event: str
    undone: tuple[str, ...] = ("one", "two")
    joins: str = ""

    def __str__(self) -> str:
        return f"{self.victim} at {self.event or 'once'}"


MOMENTS = (
    Moment("trainer", ""),
    Moment("trainer", "Published"),
    Moment("trainer", "PeerUp", joins="one"),
    Moment("one", "", undone=("one",)),
    Moment("one", "Fetching", undone=("one",)),
    Moment("one", "Committed", undone=()),
    Moment("two", "Fetching", undone=("two",)),
    Moment("two", "Committed", undone=()),
    Moment("hub", ""),
)
#: Up to so long after that event (seconds); half of it each time that the kill came too late.
LATER = 0.15


class TooLateError(Exception):
    """The work that the kill was to interrupt was done."""


@dataclass
class Soak:
    """A hub, a trainer and two actors, each of which can be killed and started again."""

    swarm: Swarm
    rng: random.Random
    model: Model = field(default_factory=lambda: Model(rows=1024))
    daemons: dict[str, Process] = field(default_factory=dict)
    told: dict[int, str] = field(default_factory=dict)
    kills: int = 0
    #: Longest wait for an event (seconds), and how often a kill may come too late, one after another.
    limit: float = LIMIT
    most_late: int = 8
    #: The moment of each kill that interrupted something.
    interrupted: list[Moment] = field(default_factory=list)

    def begin(self) -> None:
        """Start everything, and publish version 0."""
        for name in ("hub", "trainer", "one", "two"):
            self.start(name)
        self.converge(self.write())

    def start(self, name: str) -> None:
        """Starts a daemon by the same command as before."""
        if name == "hub":
            self.daemons[name] = self.swarm.hub(self.swarm.port, ttl=3)
        elif name == "trainer":
            self.daemons[name] = self.swarm.trainer(hub=False, anchor_ratio=0.5, keep=3)
        else:
            self.daemons[name] = self.swarm.actor(name)

    def rounds(self, kills: int) -> Iterator[str]:
        """Kill so often; yields a line for each."""
        moments: list[Moment] = []
        while self.kills < kills:
            if not moments:
                moments = self.rng.sample(MOMENTS, len(MOMENTS))
            moment = moments.pop()
            begun = time.monotonic()
            late = self.one(moment)
            self.interrupted.append(moment)
            seconds = time.monotonic() - begun
            yield f"kill {self.kills}: {moment}, {late} too late before: converged in {seconds:.2f} s"

    def one(self, moment: Moment) -> int:
        """Kills until one kill interrupts something; returns how many came too late before it."""
        for late in range(self.most_late):
            try:
                self._kill(moment, self.rng.random() * LATER / 2**late)
            except TooLateError:
                continue
            return late
        raise AssertionError(f"{self.most_late} kills of {moment} came too late to interrupt anything\n{self._logs()}")

    def _kill(self, moment: Moment, delay: float) -> None:
        victim = self.daemons[moment.victim]
        if moment.joins:
            self.daemons[moment.joins].kill()
        seen, newest = len(victim.events), max(self.told, default=-1)
        wanted = self.write()
        if moment.joins:
            self.start(moment.joins)
        if moment.event:
            # An event of an earlier version may be told after its files are there.
            later = {"version": lambda version: version > newest} if moment.event == "Committed" else {}
            victim.wait_for(moment.event, seen, self.limit, **later)
        # The condition never holds: the wait lasts `delay`, so the kill comes at any moment after the event.
        victim.wait_until(lambda events: False, limit=delay)
        assert victim.process.poll() is None, f"{moment.victim} ended by itself\n{self._logs()}"
        victim.kill()
        too_late = moment.undone and all(self.swarm.current(name) == wanted for name in moment.undone)
        self.start(moment.victim)
        self.converge(wanted)
        if too_late:
            raise TooLateError
        self.kills += 1

    def write(self) -> dict[str, str]:
        """Writes the next checkpoint for the trainer; returns the files that every actor should hold."""
        if self.rng.random() < 0.15:
            self.model.files["config.json"] += b" "  # a layout that changes is another path through the engines
        version = self.swarm.publish(self.model.step(), None)
        assert version == -1
        newest = max(self.swarm.watch.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return sums(newest)

    def converge(self, wanted: dict[str, str]) -> None:
        """Wait until both actors hold these files, then check the events."""
        for name in ("one", "two"):
            actor = self.daemons[name]
            held = actor.wait_until(lambda events, name=name: self.swarm.current(name) == wanted, limit=LIMIT)
            if not held and self.swarm.current(name) != wanted:
                raise AssertionError(f"{name} did not get there after kill {self.kills}\n{self._logs()}")
        for process in self.swarm.processes:
            for event in list(process.events):
                if event["type"] in ("Published", "Committed"):
                    known = self.told.setdefault(event["version"], event["digest"])
                    assert known == event["digest"], f"version {event['version']} means two things"

    def _logs(self) -> str:
        return "\n".join(f"--- {name}\n{daemon.stderr[-1500:]}" for name, daemon in self.daemons.items())


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    command = f"python -m tests.daemons.soak --kills {args.kills} --seed {args.seed}"
    print(command, flush=True)
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    with tempfile.TemporaryDirectory(prefix="p2psync-soak-") as place:
        swarm = Swarm(Path(place), key)
        swarm.plans = True
        try:
            soak = Soak(swarm, random.Random(args.seed))
            soak.begin()
            for line in soak.rounds(args.kills):
                print(line, flush=True)
        except AssertionError:
            print(f"failed; again: {command}", flush=True)
            raise
        finally:
            swarm.close()
    print(f"{args.kills} kills, {len(soak.told)} versions, every bit right")


if __name__ == "__main__":
    main()
