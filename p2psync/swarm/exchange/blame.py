"""Wrong chunks: which peers sent them, and for how long each is banned.

A peer that sends a wrong chunk lies, or does not know that its disk or memory is damaged. So its first ban lasts
seconds. When the peer is back, this node reports the wrong chunk to it; an honest peer verifies its copy and stops
offering it. Each further ban is `ban_factor` times as long: a liar gains next to nothing, and an honest peer that is
the only source returns before a fetch fails.
"""

from __future__ import annotations

from p2psync.protocol.messages import BadChunk
from p2psync.swarm.exchange.config import ExchangeConfig

#: Peers whose wrong chunks a node remembers; beyond it, it forgets the one that was wrong longest ago.
MAX_BLAMED_PEERS = 1024
#: Wrong chunks that a node remembers of a peer, and chunks that it verifies for one report.
MAX_WRONG_CHUNKS = 4


class Blame:
    """The wrong chunks that one node received, by peer."""

    def __init__(self, config: ExchangeConfig) -> None:
        self._config = config
        # By peer: how many wrong chunks it sent of late and when the last came; the chunks to report to it.
        self._wrong: dict[str, tuple[int, float]] = {}
        self._accusations: dict[str, list[tuple[bytes, int]]] = {}
        self._rechecked: dict[str, float] = {}

    def record_wrong_chunk(self, name: str, short: bytes, index: int, now: float) -> float:
        """Records a wrong chunk of a manifest (short id) from a peer; returns the seconds to ban the peer for."""
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
        return min(self._config.ban, self._config.first_ban * self._config.ban_factor ** min(count, 8))

    def take_accusations(self, name: str) -> list[BadChunk]:
        """Returns the reports of wrong chunks for a peer that is back, once."""
        return [BadChunk(short, [index]) for short, index in self._accusations.pop(name, ())]

    def may_recheck(self, name: str, now: float) -> bool:
        """Returns whether a peer's report may make this node verify chunks; if so, not again within `recheck_after`."""
        recent = now - self._config.recheck_after
        self._rechecked = {peer: at for peer, at in self._rechecked.items() if at > recent}
        if name in self._rechecked or len(self._rechecked) >= MAX_BLAMED_PEERS:
            return False
        self._rechecked[name] = now
        return True
