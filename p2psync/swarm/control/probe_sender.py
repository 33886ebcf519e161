"""Sends junk to peers that may have some: one static frame, over and over, as fast as the connections take it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from p2psync.protocol.messages import ProbePadding, encode_control
from p2psync.swarm.control.config import PADDING_BYTES
from p2psync.swarm.control.connections import Connection, Connections, Scheduler, TimerHandle

#: Bytes of a frame of padding.
FRAME_BYTES = len(encode_control(ProbePadding(memoryview(bytes(PADDING_BYTES)))))
#: How often connections are filled (seconds), and up to how many bytes that wait in user space.
TURN = 0.005
FILL = 192 << 10


@dataclass(slots=True)
class _Flow:
    left: int
    until: float
    rate: float = 0.0
    sent: int = 0


class ProbeSender:
    """The junk that one node sends."""

    def __init__(self, peers: Connections, width: int, ended: Callable[[str, int], None], loop: Scheduler) -> None:
        """width: connections of a peer to use. ended: told of each pump once, with its peer and the bytes it sent."""
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
        """To whom junk is sent now."""
        return self._flows.keys()

    @property
    def held(self) -> Collection[str]:
        """Those of them to whom it is sent at a rate that was asked for."""
        return [peer for peer, flow in self._flows.items() if flow.rate]

    def start(self, peer: str, size: int, until: float, rate: float = 0.0) -> None:
        """Send at most so many bytes, until the loop's clock says `until`. rate: bytes a second, 0: no limit."""
        self.stop(peer)
        self._flows[peer] = _Flow(size, until, rate)
        if not rate:
            # It is to show what the path gives, not what little went over it last.
            for stream in self._peers.streams(peer)[: self._width]:
                stream.restart()
        if self._timer is None:
            self._timer = self._loop.call_later(0, self._turn)

    def stop(self, peer: str) -> None:
        """Send no more to this peer. What the connections took already still leaves."""
        flow = self._flows.pop(peer, None)
        if flow is not None:
            for stream in self._peers.streams(peer):
                stream.set_pacing_limit(0.0)
            self._ended(peer, flow.sent)

    def close(self) -> None:
        """Stop all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flows.clear()

    def _turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        for peer, flow in list(self._flows.items()):
            if not self._fill(peer, flow) or now >= flow.until:
                self.stop(peer)
        if self._flows and self._timer is None:
            self._timer = self._loop.call_later(TURN, self._turn)

    def _fill(self, peer: str, flow: _Flow) -> bool:
        """Whether there is more to send."""
        streams = self._peers.streams(peer)[: self._width]
        for stream in streams:
            stream.set_pacing_limit(flow.rate / len(streams))
            while stream.backlog < FILL and flow.left >= FRAME_BYTES:
                stream.send_padding()
                flow.left -= FRAME_BYTES
                flow.sent += FRAME_BYTES
                self.sent += FRAME_BYTES
        return bool(streams) and flow.left >= FRAME_BYTES
