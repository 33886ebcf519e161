"""p2psync in a race: the trainer's node and a relay on every other host, each a process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.bench.swarm import publisher, receiver
from p2psync.bench.swarm.processes import PYTHON, Child
from p2psync.bench.swarm.trial import Trial, sha256
from p2psync.errors import P2PSyncError
from p2psync.protocol.keys import public_text

HUB_PORT, PORT = 7070, 7071
#: A plan that has not changed for so long (seconds) is taken for settled: paths that are measured late change it late.
QUIET = 20.0
#: The share of the timed delta that the delta before it carries.
_FIRST_DELTA_SHARE = 0.25
#: The signing key of races' trainers, which only their receivers trust.
_KEY = bytes(range(32))


class P2PSync(Trial):
    """Warm: all are members and connected, the plan has settled; a delta's base is everywhere. Cold: all processes run
    with their nodes not started; the trainer's has the version in its store.

    The time counts from when the version is offered, as a torrent's from when it is handed to the seeder: the work
    before (drawing, encoding, hashing, the trainer's trial of its own chunks) is reported separately."""

    _published: publisher.PublishedVersion | None = None
    _called = 0.0

    def start(self, cold: bool) -> None:
        """See `Trial`."""
        self._cold = cold
        self._receivers: dict[str, Child] = {}
        #: By version: the hosts that have it, each with the moment since when.
        self._at: dict[int, dict[str, float]] = {}
        #: By version: the shares of its chunks that each host held, each with the moment.
        self._chunk_progress: dict[int, dict[str, list[tuple[float, float]]]] = {}
        self._peers: dict[str, int] = {}
        #: Each plan that the trainer has followed: when it did first, and its rate (Mbit/s).
        self._planned: list[tuple[float, float]] = []
        if cold:
            self._publish_before()
        self._trainer = self._publisher(cold)
        if self.track.met_at != self.track.trainer:
            self._lead_to_hub()

    def ready(self, deadline: float) -> None:
        """See `Trial`."""
        self._trainer.wait_for("loaded" if self._cold else "ready", deadline)
        self._start_receivers()
        if self._cold:
            for child in self._receivers.values():
                child.wait_for("loaded", deadline)
            return
        self._until_connected(deadline)
        if self.track.base:
            self._publish_everywhere(f"base {self.track.base}", deadline)
            # From a smaller delta the publisher learns how much must change for one of the size that is asked for.
            self._publish_everywhere(f"delta {int(_FIRST_DELTA_SHARE * self.track.payload_bytes)}", deadline)
        self._until_planned(time.monotonic() + self.track.settle)

    def go(self, deadline: float) -> float:
        """See `Trial`."""
        if self._cold:
            begin = time.monotonic()
            for child in (self._trainer, *self._receivers.values()):
                child.tell("start")
            return begin
        what = "delta" if self.track.base else "base"
        self._published = published = self._publish(f"{what} {self.track.payload_bytes}", deadline)
        self._called, self.payload_bytes = published.called, published.payload_bytes
        self.piece_bytes = published.payload_bytes // max(1, published.chunks)
        return published.offered

    def finished(self) -> dict[str, float]:
        """See `Trial`."""
        self._listen_for_plans()
        return self._holders(self._published.version) if self._published is not None else {}

    def planned(self) -> list[float]:
        """See `Trial`."""
        return [at for at, _ in self._planned]

    def chunk_progress(self) -> dict[str, list[tuple[float, float]]]:
        """See `Trial`."""
        return self._chunk_progress.get(self._published.version, {}) if self._published is not None else {}

    def plan_rate(self, at: float) -> float | None:
        """Mbit/s of the plan that was followed then."""
        return next((rate for since, rate in reversed(self._planned) if since <= at), None)

    def trouble(self) -> str:
        """See `Trial`."""
        return f"the trainer ended: {self._trainer.last_words()}" if self._trainer.ended() is not None else ""

    def node(self, host: str) -> Child:
        """See `Trial`."""
        return self._receivers[host]

    def result(self, host: str) -> Path:
        """See `Trial`."""
        assert self._published is not None
        return self.place / host / "packs" / self._published.id / "payload"

    def unsound(self, hosts: Sequence[str]) -> list[str]:
        """See `Trial`."""
        assert self._published is not None
        right = sha256(self.place / "trainer" / "packs" / self._published.id / "payload")
        return [host for host in hosts if sha256(self.result(host)) != right]

    def more(self, end: float) -> dict[str, float]:
        """See `Trial`."""
        if self._published is None or not self._called:
            return {}
        return {"publish called": end - self._called, "manifest sealed": end - self._published.sealed}

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _publisher(self, cold: bool) -> Child:
        host = self.track.trainer
        options = publisher.PublisherOptions(
            store=str(self.place / "trainer"),
            address=self.track.network.address(host),
            region=self._region(host),
            key=_KEY.hex(),
            seed=self.number,
            hub_port=HUB_PORT,
            port=PORT,
            congestion=self.track.congestion,
            cold=cold,
        )
        return self.children.start(
            host, *PYTHON, "-m", "p2psync.bench.swarm.publisher", msgspec.json.encode(options).decode(), talks=True
        )

    def _receiver(self, host: str) -> Child:
        topology, network = self.track.topology, self.track.network
        options = receiver.ReceiverOptions(
            hub=f"http://{network.address(self.track.met_at)}:{HUB_PORT}",
            public=_public(),
            store=str(self.place / host),
            address=network.address(host),
            region=self._region(host),
            port=PORT if topology.dialable(host, self._region(host)) else None,
            congestion=self.track.congestion,
            cold=self._cold,
            reports_chunks=self.track.reports_chunks,
        )
        return self.children.start(
            host, *PYTHON, "-m", "p2psync.bench.swarm.receiver", msgspec.json.encode(options).decode(), talks=True
        )

    def _lead_to_hub(self) -> None:
        """Makes the trainer's hub reachable at the host that all can reach."""
        address = self.track.network.address
        met_at, trainer = self.track.met_at, self.track.trainer
        ends = (address(met_at), str(HUB_PORT), address(trainer), str(HUB_PORT))
        self.children.start(met_at, *PYTHON, "-m", "p2psync.bench.swarm.forward", *ends)

    def _region(self, host: str) -> str:
        return dict(self.track.topology.hosts)[host]

    def _publish(self, line: str, deadline: float) -> publisher.PublishedVersion:
        self._trainer.tell(line)
        return msgspec.convert(self._trainer.wait_for("sealed", deadline), publisher.PublishedVersion)

    def _publish_everywhere(self, what: str, deadline: float) -> None:
        """Publish something, and wait until everyone has it."""
        published = self._publish(what, deadline)
        while len(self._holders(published.version)) < len(self._receivers):
            self._pause(deadline, f"{what}: it is not everywhere")

    def _start_receivers(self) -> None:
        for host in self.track.receivers:
            self._receivers[host] = self._receiver(host)

    def _publish_before(self) -> None:
        """A store with the version, of a trainer that has ended."""
        deadline = time.monotonic() + 60
        self._trainer = trainer = self._publisher(False)
        trainer.wait_for("ready", deadline)
        self._published = self._publish(f"base {self.track.payload_bytes}", deadline)
        self.payload_bytes = self._published.payload_bytes
        assert trainer.process.stdin
        trainer.process.stdin.close()
        while trainer.ended() is None:
            self._pause(deadline, "the trainer does not end")
        self.children.forget(trainer)

    def _until_connected(self, deadline: float) -> None:
        """Everyone has every peer that it can have."""
        can = self.connectable()
        while True:
            self._listen()
            if all(self._peers.get(host, 0) >= can[host] for host in self._receivers):
                return
            for host, child in self._receivers.items():
                if child.ended() is not None:
                    raise P2PSyncError(f"{host} ended: {child.last_words()}")
            self._pause(deadline, "not all are connected")

    def _until_planned(self, deadline: float) -> None:
        """The network is measured, as far as the plan does not change any more; or the time for that is over."""
        since = None
        while time.monotonic() < deadline and (since is None or time.monotonic() - since < QUIET):
            said = self._trainer.next(min(deadline, time.monotonic() + 1.0))
            if said is not None and "plan" in said:
                since = time.monotonic()
                self._planned.append((said["at"], said["rate"]))

    def _holders(self, version: int) -> dict[str, float]:
        self._listen()
        return self._at.get(version, {})

    def _listen(self) -> None:
        """Reads the lines of the receivers."""
        for host, child in self._receivers.items():
            while (said := child.next(0.0)) is not None:
                if "peers" in said:
                    self._peers[host] = said["peers"]
                elif "held" in said:
                    held = self._chunk_progress.setdefault(said["version"], {})
                    held.setdefault(host, []).append((said["at"], said["held"]))
                elif said.get("version") is not None:
                    self._at.setdefault(said["version"], {})[host] = said["at"]

    def _listen_for_plans(self) -> None:
        """Reads the lines of the trainer."""
        while (said := self._trainer.next(0.0)) is not None:
            if "plan" in said:
                self._planned.append((said["at"], said["rate"]))

    def _pause(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise P2PSyncError(f"{what} in time")
        time.sleep(0.02)


def _public() -> str:
    return public_text(Ed25519PrivateKey.from_private_bytes(_KEY).public_key().public_bytes_raw())
