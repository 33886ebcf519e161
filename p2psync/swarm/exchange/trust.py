"""Trust in peers: bans, wrong chunks, useless bytes.

A node verifies each chunk against the signed manifest before it stores, announces or forwards it. It bans a peer

- for a wrong chunk, in growing steps up to `ban` seconds (`Blame.record_wrong_chunk`): no other node can have changed
  that chunk;
- for more than `surplus_most` useless bytes beyond the useful ones, for `ban` seconds (`Trust.add_useless_bytes`);
- for a manifest without a trusted signature, for `ban` seconds (`ManifestGossiper.rejected`).
"""

from __future__ import annotations

from collections.abc import Callable

from p2psync.swarm.exchange.blame import Blame
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.peer import Peer

#: Disconnected peers whose useless bytes a node remembers.
MAX_SURPLUS_PEERS = 1024
_NEVER = float("inf")

#: Bans a peer (name) for a reason, at a time, for so many seconds (None: as long as the settings say).
BanPeer = Callable[[str, str, float, "float | None"], None]


class Trust:
    """The bans and the counts of useless bytes of one node's peers. blame: their wrong chunks."""

    def __init__(self, config: ExchangeConfig) -> None:
        self._config = config
        self.blame = Blame(config)
        self._banned: dict[str, float] = {}
        # Useless bytes of disconnected peers, and when each left: a new connection does not clear them.
        self._surplus: dict[str, tuple[int, float]] = {}

    def is_banned(self, name: str, now: float) -> bool:
        """Returns whether a peer is banned."""
        return self._banned.get(name, now) > now

    def banned_until(self, name: str) -> float:
        """Returns when a peer's ban ends (seconds); minus infinity if it has none."""
        return self._banned.get(name, -_NEVER)

    def peer_up(self, name: str) -> int:
        """Ends the expired ban of a peer that connects. Returns its useless bytes from its last connection."""
        self._banned.pop(name, None)
        return self._surplus.pop(name, (0, 0.0))[0]

    def peer_down(self, peer: Peer, now: float) -> None:
        """Keeps the useless bytes of a peer that disconnected, for as long as a ban."""
        recent = now - self._config.ban
        self._surplus = {name: account for name, account in self._surplus.items() if account[1] > recent}
        if peer.surplus and len(self._surplus) < MAX_SURPLUS_PEERS:
            self._surplus[peer.name] = (peer.surplus, now)

    def ban(self, name: str, now: float, seconds: float) -> float:
        """Bans a peer for so many seconds. Returns when the ban ends."""
        until = now + seconds
        self._banned = {banned: end for banned, end in self._banned.items() if end > now}
        self._banned[name] = until
        return until

    def add_useless_bytes(self, peer: Peer, size: int) -> bool:
        """Adds unrequested bytes of a peer. Returns whether to ban it."""
        peer.surplus += size
        if peer.surplus > self._config.surplus_most:
            peer.surplus = 0
            return True
        return False
