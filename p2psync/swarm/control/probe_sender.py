"""Sends probe padding: one static frame, over and over, as fast as the connections take it or as was requested."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from p2psync.protocol.messages import ProbePadding, encode_control
from p2psync.swarm.control.config import FILL_BYTES, FILL_SECONDS, PADDING_BYTES
from p2psync.swarm.control.connections import Connections, Scheduler, TimerHandle

#: Bytes of a frame of padding.
FRAME_BYTES = len(encode_control(ProbePadding(memoryview(bytes(PADDING_BYTES)))))


@dataclass(slots=True)
class _Flow:
    """The padding for one peer. left: bytes to send. rate: bytes a second, 0: no limit. sent: bytes so far."""

    left: int
    until: float
    rate: float = 0.0
    sent: int = 0


class ProbeSender:
    """The padding that one node sends."""

    def __init__(self, peers: Connections, width: int, ended: Callable[[str, int], None], loop: Scheduler) -> None:
        """width: connections of a peer to use. ended: takes the peer and the bytes sent when its padding ends."""
        self._peers = peers
        self._width = width
        self._ended = ended
        #: Bytes so far.
        self.sent = 0
        self._flows: dict[str, _Flow] = {}
        self._timer: TimerHandle | None = None
        self._loop = loop

    @property
    def peers(self) -> Collection[str]:
        """Peers that get padding."""
        return self._flows.keys()

    @property
    def paced(self) -> Collection[str]:
        """Peers that get padding at a requested rate."""
        return [peer for peer, flow in self._flows.items() if flow.rate]

    def start(self, peer: str, size: int, until: float, rate: float = 0.0) -> None:
        """Starts to send a peer up to `size` bytes, until the clock says `until`. rate: bytes a second, 0: no limit."""
        self.stop(peer)
        self._flows[peer] = _Flow(size, until, rate)
        if not rate:
            # The probe measures the path, not the low rate of the last small messages.
            for stream in self._peers.streams(peer)[: self._width]:
                stream.restart()
        if self._timer is None:
            self._timer = self._loop.call_later(0, self._fill_all)

    def stop(self, peer: str) -> None:
        """Stops the padding for a peer; its connections still send the padding that they have taken."""
        flow = self._flows.pop(peer, None)
        if flow is not None:
            for stream in self._peers.streams(peer):
                stream.set_pacing_limit(0.0)
            self._ended(peer, flow.sent)

    def close(self) -> None:
        """Stops all padding."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flows.clear()

    def _fill_all(self) -> None:
        self._timer = None
        now = self._loop.time()
        for peer, flow in list(self._flows.items()):
            if not self._fill(peer, flow) or now >= flow.until:
                self.stop(peer)
        if self._flows and self._timer is None:
            self._timer = self._loop.call_later(FILL_SECONDS, self._fill_all)

    def _fill(self, peer: str, flow: _Flow) -> bool:
        """Fills a peer's connections with padding; returns whether there is more to send."""
        streams = self._peers.streams(peer)[: self._width]
        for stream in streams:
            stream.set_pacing_limit(flow.rate / len(streams))
            while stream.backlog < FILL_BYTES and flow.left >= FRAME_BYTES:
                stream.send_padding()
                flow.left -= FRAME_BYTES
                flow.sent += FRAME_BYTES
                self.sent += FRAME_BYTES
        return bool(streams) and flow.left >= FRAME_BYTES
