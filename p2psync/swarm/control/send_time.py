"""Estimates how long a connection takes to send what is given to it, from its window and what waits before it."""

from __future__ import annotations

import math

from p2psync.swarm.control.decaying_max import DecayingMax

#: Bytes of a connection that may wait in the kernel before they are sent, at least and at most, and for how long they
#: may (seconds): what waits there cannot be overtaken, nor called off.
MIN_NOTSENT_BYTES, MAX_NOTSENT_BYTES, MAX_NOTSENT_SECONDS = 16 << 10, 128 << 10, 0.04
#: The assumed rate of a connection that nobody has measured (bytes a second).
ASSUMED_RATE = 1e6


class SendTime:
    """The estimate of one connection.

    A connection that carried little has a small window; one that closes its window for a moment is believed to have it
    again soon. Where rates are not known they are taken for equal.
    """

    def __init__(self) -> None:
        #: Bytes a second that the window let out at the last estimate; at most what the connection is held to.
        self.rate = 0.0
        self._largest_window = DecayingMax()

    def seconds(self, size: int, waits: int, window: float, held_to: float, now: float) -> float:
        """Returns the seconds until `size` bytes more will have been sent.

        waits: bytes before them. window: bytes a second that the window lets out now. held_to: the limit on pacing, 0:
        none.
        """
        most = held_to or math.inf
        self.rate = min(window, most)
        rate = min(self._largest_window.seen(window, now), most)
        return (waits + size) / (rate or ASSUMED_RATE)


def notsent_for(rate: float) -> int:
    """Returns how many unsent bytes the kernel may hold at `rate` bytes/s: a power of two, so it seldom changes."""
    return max(MIN_NOTSENT_BYTES, min(MAX_NOTSENT_BYTES, 1 << int(rate * MAX_NOTSENT_SECONDS).bit_length()))
