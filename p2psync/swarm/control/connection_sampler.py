"""Samples the connections that move bytes, and the idle ones now and then: a sample costs system calls."""

from __future__ import annotations

from p2psync.swarm.control.config import IDLE_EVERY_SECONDS, LINGER_SECONDS
from p2psync.swarm.control.connections import Connection, Connections
from p2psync.swarm.control.tcp_sample import TcpSample

_NEVER = float("-inf")


class ConnectionSampler:
    """Samples the connections of one node."""

    def __init__(self, peers: Connections) -> None:
        self._peers = peers
        #: Of each connection: bytes so far, and when they changed and when it was sampled last.
        self._seen: dict[Connection, tuple[int, float, float]] = {}

    def sample(self, now: float) -> tuple[dict[Connection, TcpSample], list[Connection]]:
        """Returns the samples of active connections, and the connections that are gone."""
        seen: dict[Connection, tuple[int, float, float]] = {}
        samples: dict[Connection, TcpSample] = {}
        for stream in self._peers.all_streams():
            moved = stream.written + stream.got
            before, moved_at, sampled_at = self._seen.pop(stream, (0, now, _NEVER))
            if moved != before or stream.backlog:
                moved_at = now
            if now - moved_at < LINGER_SECONDS or now - sampled_at > IDLE_EVERY_SECONDS:
                samples[stream] = stream.sample()
                sampled_at = now
            seen[stream] = (moved, moved_at, sampled_at)
        gone = list(self._seen)
        self._seen = seen
        return samples, gone
