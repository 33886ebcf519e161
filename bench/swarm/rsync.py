"""A star of rsync in a race: a daemon beside the trainer, from which all others fetch the whole file at once."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from p2psync.bench.swarm.processes import Child
from p2psync.bench.swarm.trial import SETTLE_SECONDS, Trial
from p2psync.errors import P2PSyncError

_PORT = 8730
_SETTINGS = """use chroot = no
uid = root
gid = root
max connections = 0
[race]
path = {}
read only = yes
"""


class Rsync(Trial):
    """The daemon runs; each client is started and connects on the clock, as rsync always does: warm and cold are the
    same."""

    def start(self, cold: bool) -> None:
        """See `Trial`."""
        track = self.track
        self._address = track.network.address(track.trainer)
        (self.place / "rsyncd.conf").write_text(_SETTINGS.format(track.file.parent))
        self._clients: dict[str, Child] = {}
        self._daemon = self.children.start(
            track.trainer,
            *("rsync", "--daemon", "--no-detach", f"--config={self.place / 'rsyncd.conf'}"),
            *(f"--address={self._address}", f"--port={_PORT}"),
        )

    def ready(self, deadline: float) -> None:
        """See `Trial`."""
        self._until_listening(deadline)
        time.sleep(min(SETTLE_SECONDS, self.track.settle))

    def go(self, deadline: float) -> float:
        """See `Trial`."""
        began = time.monotonic()
        url = f"rsync://{self._address}:{_PORT}/race/{self.track.file.name}"
        for host in self.track.receivers:
            (self.place / host).mkdir()
            self._clients[host] = self.children.start(host, "rsync", "--whole-file", url, f"{self.result(host)}")
        return began

    def finished(self) -> dict[str, float]:
        """See `Trial`."""
        now = time.monotonic()
        for host, child in self._clients.items():
            if host not in self.done and child.ended() == 0:
                self.done[host] = now
        return self.done

    def trouble(self) -> str:
        """See `Trial`."""
        failed = next((child for child in self._clients.values() if child.ended()), None)
        return f"rsync on {failed.host} failed: {failed.last_words()}" if failed else ""

    def node(self, host: str) -> Child:
        """See `Trial`."""
        return self._clients[host]

    def result(self, host: str) -> Path:
        """See `Trial`."""
        return self.place / host / self.track.file.name

    def _until_listening(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            with self.track.network.inside(self.track.trainer):
                call = socket.socket()
            with call:
                call.settimeout(1)
                if call.connect_ex((self._address, _PORT)) == 0:
                    return
            time.sleep(0.01)
        raise P2PSyncError(f"rsync does not listen: {self._daemon.last_words()}")
