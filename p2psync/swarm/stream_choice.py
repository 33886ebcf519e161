"""The choice of one of several connections to a peer for a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from p2psync.protocol.messages import Control, ManifestGossip


class _Stream(Protocol):
    def seconds_to_send(self, nbytes: int) -> float:
        """Returns the seconds until so many bytes more have been sent."""


_S = TypeVar("_S", bound=_Stream)


def soonest(streams: Sequence[_S], nbytes: int) -> _S:
    """Returns the connection that will have sent so many bytes more first."""
    return min(streams, key=lambda stream: stream.seconds_to_send(nbytes))


def stream_for(streams: Sequence[_S], message: Control) -> _S:
    """Returns the connection for a control message: the first one, so that messages keep their order.

    A manifest, as large as a chunk, takes the connection that will have sent it first.
    """
    return soonest(streams, len(message.signed)) if isinstance(message, ManifestGossip) else streams[0]
