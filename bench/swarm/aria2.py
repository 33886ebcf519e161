"""aria2 in a race: one aria2c on every host, which learn of each other from a tracker beside the trainer.

Its settings are those of a fast, private network: no limits, no other ways to find peers, no encryption asked for,
every peer allowed at once. Warm: all have the torrent and are connected; the trainer's aria2c may send a byte a second,
and any number of them from the start. aria2 has no way to be connected and send nothing: it sends one block (16 KiB)
before its limit holds, and looks at a changed limit about every half second. Cold: all run, and the receivers are given
the torrent over their control port at the start, where the trainer's has it already and seeds.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from http.client import HTTPResponse
from pathlib import Path

from p2psync.bench.swarm.metainfo import torrent_of
from p2psync.bench.swarm.processes import PYTHON, Child
from p2psync.bench.swarm.trial import SETTLE_SECONDS, Trial
from p2psync.errors import P2PSyncError

_PORT, _CONTROL, _TRACKER = 6881, 6800, 6969
_SETTINGS = (
    "--no-conf",
    "--quiet",
    "--enable-dht=false",
    "--enable-dht6=false",
    "--disable-ipv6",
    "--bt-enable-lpd=false",
    "--bt-max-peers=0",
    "--bt-request-peer-speed-limit=1000M",
    "--bt-tracker-interval=2",
    "--max-upload-limit=0",
    "--seed-ratio=0",
    "--file-allocation=none",
    "--disk-cache=64M",
    "--enable-rpc",
    f"--rpc-listen-port={_CONTROL}",
    f"--listen-port={_PORT}",
)
#: Called by aria2c as `… GID FILES PATH` once the last piece is there and its hash was right.
_HOOK = '#!/bin/sh\n: > "$3.done"\n'


class Aria2(Trial):
    """See the module."""

    def start(self, cold: bool) -> None:
        """See `Trial`."""
        track, network = self.track, self.track.network
        tracker = f"{network.address(track.met_at)}:{_TRACKER}"
        self._torrent = torrent_of(track.file, track.piece, f"http://{tracker}/announce")
        (self.place / "torrent").write_bytes(self._torrent)
        self._hook = self.place / "hook"
        self._hook.write_text(_HOOK)
        self._hook.chmod(0o755)
        self._clients: dict[str, Child] = {}
        self._calls: dict[str, socket.socket] = {}
        peers = [f"{network.address(host)}:{_PORT}" for host in network.hosts]
        address, port = tracker.split(":")
        self._cold = cold
        self._tracker = self.children.start(
            track.met_at, *PYTHON, "-m", "p2psync.bench.swarm.tracker", address, port, *peers, talks=True
        )
        self._client(
            *(track.trainer, track.file.parent, "--check-integrity=false", "--bt-seed-unverified=true"),
            f"--max-overall-upload-limit={0 if cold else 1}",
            torrent=True,
        )
        for host in track.receivers:
            (self.place / host).mkdir()
            self._client(host, self.place / host, torrent=not cold)

    def ready(self, deadline: float) -> None:
        """See `Trial`."""
        self._tracker.wait_for("listening", deadline)
        for host in self._clients:
            self._calls[host] = self._call(host, deadline)
        self._until_connected(deadline)
        time.sleep(min(SETTLE_SECONDS, self.track.settle))

    def go(self, deadline: float) -> float:
        """See `Trial`."""
        add = _request("aria2.addTorrent", base64.b64encode(self._torrent).decode())
        release = _request("aria2.changeGlobalOption", {"max-overall-upload-limit": "0"})
        began = time.monotonic()
        for host in self.track.receivers if self._cold else [self.track.trainer]:
            self._calls[host].sendall(add if self._cold else release)
        return began

    def finished(self) -> dict[str, float]:
        """See `Trial`."""
        now = time.monotonic()
        for host in self.track.receivers:
            if host not in self.done and Path(f"{self.result(host)}.done").exists():
                self.done[host] = now
        return self.done

    def trouble(self) -> str:
        """See `Trial`."""
        ended = next((child for child in self._clients.values() if child.ended() is not None), None)
        return f"aria2c on {ended.host} ended: {ended.last_words()}" if ended else ""

    def node(self, host: str) -> Child:
        """See `Trial`."""
        return self._clients[host]

    def result(self, host: str) -> Path:
        """See `Trial`."""
        return self.place / host / self.track.file.name

    def _client(self, host: str, place: Path, *more: str, torrent: bool) -> None:
        address = self.track.network.address(host)
        given = [str(self.place / "torrent")] if torrent else []
        self._clients[host] = self.children.start(
            host,
            "aria2c",
            *_SETTINGS,
            f"--dir={place}",
            f"--bt-external-ip={address}",
            f"--on-bt-download-complete={self._hook}",
            *more,
            *given,
        )

    def _until_connected(self, deadline: float) -> None:
        """Unless cold, all are connected with all others that can reach them."""
        if self._cold:
            return
        end, can = self.connect_until(deadline), self.connectable()
        for host in self.track.receivers:
            while time.monotonic() < end and self._connections(host) < can[host]:
                time.sleep(0.05)

    def _connections(self, host: str) -> int:
        """Returns how many peers a client is connected to."""
        call = self._calls[host]
        call.sendall(_request("aria2.tellActive"))
        answer = HTTPResponse(call)
        answer.begin()
        return sum(int(download["connections"]) for download in json.loads(answer.read())["result"])

    def _call(self, host: str, deadline: float) -> socket.socket:
        """A connection to a client's control port, once it has one."""
        while time.monotonic() < deadline:
            with self.track.network.inside(host):
                call = socket.socket()
            try:
                call.settimeout(5)
                call.connect(("127.0.0.1", _CONTROL))
                return call
            except OSError:
                call.close()
                if self._clients[host].ended() is not None:
                    break
                time.sleep(0.02)
        raise P2PSyncError(f"aria2c on {host} does not listen: {self._clients[host].last_words()}")


def _request(method: str, *params: object) -> bytes:
    """A call of aria2's control port, which keeps the connection."""
    body = json.dumps({"jsonrpc": "2.0", "id": "1", "method": method, "params": params}).encode()
    return f"POST /jsonrpc HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
