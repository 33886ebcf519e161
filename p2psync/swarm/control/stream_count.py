"""Decides how many connections to one peer to dial now, and which to close, to reach a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from p2psync.protocol.messages import MAX_STREAMS
from p2psync.swarm.control.config import CLOSE_IDLE_SECONDS, DIAL_PAUSE_SECONDS
from p2psync.swarm.control.connections import Connection

_Stream = TypeVar("_Stream", bound=Connection)


class StreamCount:
    """The number of connections to one peer that this node dialled."""

    def __init__(self) -> None:
        self._dials_from = float("-inf")

    def to_dial(self, wanted: int, standing: int, under_way: int, now: float) -> int:
        """Returns how many to dial now: the missing ones, unless the last dials were a moment ago."""
        missing = _bounded(wanted) - standing - under_way
        if missing <= 0 or now < self._dials_from:
            return 0
        self._dials_from = now + DIAL_PAUSE_SECONDS
        return missing

    @staticmethod
    def to_close(wanted: int, streams: Sequence[_Stream]) -> list[_Stream]:
        """Returns the idle connections beyond the number; busy ones stay."""
        return [stream for stream in streams[_bounded(wanted) :] if stream.idle(CLOSE_IDLE_SECONDS)]


def _bounded(wanted: int) -> int:
    return max(1, min(wanted, MAX_STREAMS))
