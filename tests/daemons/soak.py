"""Kill trainer, actors and hub at seeded moments, start them again by the same commands, and look at every bit.

    python -m tests.daemons.soak --kills 200 --seed 7

Each round writes one checkpoint, kills one daemon when it tells of some event (or a few milliseconds later), starts it
again, and waits until every actor's directory is that checkpoint. No version may ever mean two things.
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

#: Who is killed, and at which of its events; "" stands for the moment at which the checkpoint appears.
MOMENTS = (
    ("trainer", ""),
    ("trainer", "Published"),
    ("trainer", "PeerUp"),
    ("one", ""),
    ("one", "Fetching"),
    ("one", "Committed"),
    ("two", "Fetching"),
    ("two", "Committed"),
    ("hub", ""),
)
#: Up to so long after that event (seconds).
LATER = 0.15


@dataclass
class Soak:
    """A hub, a trainer and two actors, each of which can be killed and started again."""

    swarm: Swarm
    rng: random.Random
    model: Model = field(default_factory=lambda: Model(rows=1024))
    daemons: dict[str, Process] = field(default_factory=dict)
    told: dict[int, str] = field(default_factory=dict)
    kills: int = 0

    def begin(self) -> None:
        """Start everything, and publish version 0."""
        for name in ("hub", "trainer", "one", "two"):
            self.start(name)
        self.converge(self.write())

    def start(self, name: str) -> None:
        """The same command as before."""
        if name == "hub":
            self.daemons[name] = self.swarm.hub(self.swarm.port, ttl=3)
        elif name == "trainer":
            self.daemons[name] = self.swarm.trainer(hub=False, anchor_ratio=0.5, keep=3)
        else:
            self.daemons[name] = self.swarm.actor(name)

    def rounds(self, kills: int) -> Iterator[str]:
        """Kill so often; yields a line for each."""
        moments: list[tuple[str, str]] = []
        while self.kills < kills:
            if not moments:
                moments = self.rng.sample(MOMENTS, len(MOMENTS))
            name, event = moments.pop()
            begun = time.monotonic()
            self.one(name, event)
            yield f"kill {self.kills}: {name} at {event or 'once'}: converged in {time.monotonic() - begun:.2f} s"

    def one(self, name: str, event: str) -> None:
        """One round."""
        victim = self.daemons[name]
        seen = len(victim.events)
        wanted = self.write()
        if event:
            # Some events do not come in this round, such as PeerUp: then it is killed in peace.
            victim.wait_until(lambda events: any(e["type"] == event for e in events[seen:]), limit=1.0)
        # What never happens is waited for, so that the moment is anywhere after the event.
        victim.wait_until(lambda events: False, limit=self.rng.random() * LATER)
        victim.kill()
        self.kills += 1
        self.start(name)
        self.converge(wanted)

    def write(self) -> dict[str, str]:
        """The next checkpoint, on its way to the trainer; returns what every actor should hold."""
        if self.rng.random() < 0.15:
            self.model.files["config.json"] += b" "  # a layout that changes is another path through the engines
        version = self.swarm.publish(self.model.step(), None)
        assert version == -1
        newest = max(self.swarm.watch.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return sums(newest)

    def converge(self, wanted: dict[str, str]) -> None:
        """Wait until both actors hold these files, then look at what was told."""
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
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    with tempfile.TemporaryDirectory(prefix="p2psync-soak-") as place:
        swarm = Swarm(Path(place), key)
        try:
            soak = Soak(swarm, random.Random(args.seed))
            soak.begin()
            for line in soak.rounds(args.kills):
                print(line, flush=True)
        finally:
            swarm.close()
    print(f"{args.kills} kills, {len(soak.told)} versions, every bit right")


if __name__ == "__main__":
    main()
