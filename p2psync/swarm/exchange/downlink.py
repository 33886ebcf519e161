"""How fast chunks come in over all peers together, while they come: what a node's own downlink seems to give."""

from __future__ import annotations

from dataclasses import dataclass

#: Seconds: before this much of a busy time there is no estimate; what is older than this counts half.
_MIN_BUSY_SECONDS = 1.0
_MEMORY_SECONDS = 10.0
#: What is asked for so soon after the last chunk came (seconds) belongs to the same busy time: where the window is one
#: chunk, nothing is owed for a moment after each.
_MAX_GAP_SECONDS = 0.05


@dataclass(slots=True)
class Downlink:
    """Bytes that came since `begun`, the beginning of the busy time; the last of them at `last` (seconds).

    rate: bytes a second in the last busy time that was long enough to tell, 0 before the first. A shorter one tells of
    round trips rather than of the link; and where all are short, the link is not what takes time.
    """

    begun: float = 0.0
    nbytes: float = 0.0
    last: float = 0.0
    rate: float = 0.0

    def begin(self, now: float) -> None:
        """The first request after an idle time: what was measured before says nothing of now."""
        if not self.nbytes or now - self.last > _MAX_GAP_SECONDS:
            self.begun, self.nbytes = now, 0.0

    def arrived(self, size: int, now: float) -> None:
        """A chunk came."""
        self.nbytes += size
        self.last = now
        if now - self.begun >= _MIN_BUSY_SECONDS:
            self.rate = self.nbytes / (now - self.begun)
        if now - self.begun > _MEMORY_SECONDS:
            self.begun, self.nbytes = (self.begun + now) / 2, self.nbytes / 2
