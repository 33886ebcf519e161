"""libtorrent in a race: a session on every host, each with the addresses of all others.

Warm: all have the torrent and are connected with each other; the receivers are in upload mode, in which they request
nothing, and leave it at the start. Cold: all run and listen; the trainer's seeds, the others are given the torrent at
the start.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from p2psync.bench.swarm import torrent_client
from p2psync.bench.swarm.metainfo import torrent_of
from p2psync.bench.swarm.processes import PYTHON, Child
from p2psync.bench.swarm.trial import SETTLE_SECONDS, Trial

_PORT = 6881


class Libtorrent(Trial):
    """See the module."""

    super_seeding = False

    def start(self, cold: bool) -> None:
        """See `Trial`."""
        track = self.track
        (self.place / "torrent").write_bytes(torrent_of(track.file, track.piece, ""))
        self._clients: dict[str, Child] = {}
        self._cold = cold
        for host in track.network.hosts:
            seeds = host == track.trainer
            folder = track.file.parent if seeds else self.place / host
            folder.mkdir(exist_ok=True)
            self._clients[host] = self._client(host, folder, seeds)

    def ready(self, deadline: float) -> None:
        """See `Trial`."""
        for child in self._clients.values():
            child.wait_for("listening", deadline)
        self._until_connected(deadline)
        time.sleep(min(SETTLE_SECONDS, self.track.settle))

    def go(self, deadline: float) -> float:
        """See `Trial`."""
        began = time.monotonic()
        for host in self.track.receivers:
            self._clients[host].tell("go")
        return began

    def finished(self) -> dict[str, float]:
        """See `Trial`."""
        for host in self.track.receivers:
            while host not in self.done and (said := self._clients[host].next(0.0)) is not None:
                if "finished" in said:
                    self.done[host] = said["finished"]
        return self.done

    def trouble(self) -> str:
        """See `Trial`."""
        ended = next((child for child in self._clients.values() if child.ended() is not None), None)
        return f"libtorrent on {ended.host} ended: {ended.last_words()}" if ended else ""

    def node(self, host: str) -> Child:
        """See `Trial`."""
        return self._clients[host]

    def result(self, host: str) -> Path:
        """See `Trial`."""
        return self.place / host / self.track.file.name

    def _until_connected(self, deadline: float) -> None:
        """Unless cold, all are connected with all others that can reach them."""
        if self._cold:
            return
        end, can = self.connect_until(deadline), self.connectable()
        for host in self.track.receivers:
            peers = 0
            while peers < can[host] and (said := self._clients[host].next(end)) is not None:
                peers = said.get("peers", peers)

    def _client(self, host: str, folder: Path, seeds: bool) -> Child:
        network = self.track.network
        options = torrent_client.TorrentOptions(
            address=network.address(host),
            port=_PORT,
            torrent=str(self.place / "torrent"),
            folder=str(folder),
            seed=seeds,
            cold=self._cold,
            super_seeding=self.super_seeding,
            peers=[f"{network.address(other)}:{_PORT}" for other in network.hosts if other != host],
        )
        return self.children.start(
            host, *PYTHON, "-m", "p2psync.bench.swarm.torrent_client", msgspec.json.encode(options).decode(), talks=True
        )


class LibtorrentSuperSeeding(Libtorrent):
    """libtorrent with super-seeding: the trainer shows each peer one piece, and the next once it was passed on."""

    super_seeding = True
