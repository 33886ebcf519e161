"""libtorrent in a race: a session on every host, each told the addresses of all others.

Warm: all run and listen; the trainer's has the torrent and seeds, the others are given it at the start. Cold: all are
started with it.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from p2psync.bench.swarm import torrent_client
from p2psync.bench.swarm.metainfo import torrent_of
from p2psync.bench.swarm.processes import PYTHON, Child
from p2psync.bench.swarm.trial import SETTLE, Trial

_PORT = 6881


class Libtorrent(Trial):
    """See the module."""

    def start(self, cold: bool) -> None:
        """See `Trial`."""
        track = self.track
        (self.place / "torrent").write_bytes(torrent_of(track.file, track.piece, ""))
        self._clients: dict[str, Child] = {}
        self.began = time.monotonic()
        for host in track.network.hosts:
            seeds = host == track.trainer
            folder = track.file.parent if seeds else self.place / host
            folder.mkdir(exist_ok=True)
            self._clients[host] = self._client(host, folder, seeds, cold or seeds)

    def ready(self, deadline: float) -> None:
        """See `Trial`."""
        for child in self._clients.values():
            child.wait_for("listening", deadline)
        time.sleep(min(SETTLE, self.track.settle))

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

    def _client(self, host: str, folder: Path, seeds: bool, at_once: bool) -> Child:
        network = self.track.network
        options = torrent_client.TorrentOptions(
            address=network.address(host),
            port=_PORT,
            torrent=str(self.place / "torrent"),
            folder=str(folder),
            seed=seeds,
            at_once=at_once,
            peers=[f"{network.address(other)}:{_PORT}" for other in network.hosts if other != host],
        )
        return self.children.start(
            host, *PYTHON, "-m", "p2psync.bench.swarm.torrent_client", msgspec.json.encode(options).decode(), talks=True
        )
