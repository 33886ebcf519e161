"""Who sent wrong chunks, and what follows from it. A part of the swarm's core.

A wrong chunk is either a lie, or has rotted on the disk or in the memory of a node that does not know it. So the first
one costs its sender a ban of seconds. When it comes back it is told which chunk was wrong, looks at what it holds, and
offers that no more. Whoever goes on sending wrong chunks is shut out ten times as long each time: a liar gains next to
nothing, and an honest sole source is back before anybody gives up on it.
"""

from __future__ import annotations

from p2psync.protocol.messages import BadChunk
from p2psync.swarm.exchange.config import ExchangeConfig

#: Peers that are remembered; of more, the one that was wrong longest ago is forgotten.
MAX_BLAMED_PEERS = 1024
#: Chunks that are remembered of a peer, and looked at for one accusation.
MAX_WRONG_CHUNKS = 4
#: How many times longer each further ban is.
BAN_FACTOR = 10.0


class Blame:
    """The accounts of one node."""

    def __init__(self, config: ExchangeConfig) -> None:
        self._config = config
        # Of each peer: how often it was wrong lately, and when last; the chunks that it is to be told.
        self._wrong: dict[str, tuple[int, float]] = {}
        self._accusations: dict[str, list[tuple[bytes, int]]] = {}
        self._rechecked: dict[str, float] = {}

    def record_wrong_chunk(self, name: str, short: bytes, index: int, now: float) -> float:
        """A peer sent a wrong chunk of a manifest (short id); returns for how many seconds it is shut out."""
        count, at = self._wrong.pop(name, (0, now))
        if now - at > 2 * self._config.ban:
            count = 0
        self._wrong[name] = (count + 1, now)
        if len(self._wrong) > MAX_BLAMED_PEERS:
            oldest = next(iter(self._wrong))
            del self._wrong[oldest]
            self._accusations.pop(oldest, None)
        accusations = self._accusations.setdefault(name, [])
        if (short, index) not in accusations:
            accusations.append((short, index))
            del accusations[:-MAX_WRONG_CHUNKS]
        return min(self._config.ban, self._config.first_ban * BAN_FACTOR ** min(count, 8))

    def take_accusations(self, name: str) -> list[BadChunk]:
        """What a peer that is here again is to be told, once."""
        return [BadChunk(short, [index]) for short, index in self._accusations.pop(name, ())]

    def may_recheck(self, name: str, now: float) -> bool:
        """Whether a peer may have this node look at its chunks now; it may not soon after."""
        recent = now - self._config.recheck_after
        self._rechecked = {peer: at for peer, at in self._rechecked.items() if at > recent}
        if name in self._rechecked or len(self._rechecked) >= MAX_BLAMED_PEERS:
            return False
        self._rechecked[name] = now
        return True
