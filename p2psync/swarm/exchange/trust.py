"""Whom this node trusts: bans, wrong chunks, useless bytes.

A chunk is verified against the signed manifest before it is kept, announced or forwarded. A peer whose chunk is wrong
is banned (`blame`); the blame is certain, since nobody else touched that chunk. So is a peer whose useless bytes,
beyond what it was ever asked for, outweigh its useful ones by far.
"""

from __future__ import annotations

from collections.abc import Callable

from p2psync.swarm.exchange.blame import Blame
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.peer import Peer

#: Peers that are gone and whose useless bytes are remembered.
MAX_ACCOUNTS = 1024
_NEVER = float("inf")

#: Bans a peer (name) for a reason, at a time, for so many seconds (None: as long as the settings say).
BanPeer = Callable[[str, str, float, "float | None"], None]


class Trust:
    """The accounts of one node."""

    def __init__(self, config: ExchangeConfig) -> None:
        self._config = config
        self.blame = Blame(config)
        self._banned: dict[str, float] = {}
        # Useless bytes of peers that are gone, and when they went: coming back does not clear the account.
        self._surplus: dict[str, tuple[int, float]] = {}

    def is_banned(self, name: str, now: float) -> bool:
        """Returns whether a peer is shut out."""
        return self._banned.get(name, now) > now

    def banned_until(self, name: str) -> float:
        """Returns when a peer may come back; before all time if it is not shut out."""
        return self._banned.get(name, -_NEVER)

    def peer_up(self, name: str) -> int:
        """A peer that is not shut out comes. Returns the useless bytes that it sent when it was here last."""
        self._banned.pop(name, None)
        return self._surplus.pop(name, (0, 0.0))[0]

    def peer_down(self, peer: Peer, now: float) -> None:
        """A peer is gone."""
        recent = now - self._config.ban
        self._surplus = {name: account for name, account in self._surplus.items() if account[1] > recent}
        if peer.surplus and len(self._surplus) < MAX_ACCOUNTS:
            self._surplus[peer.name] = (peer.surplus, now)

    def ban(self, name: str, now: float, seconds: float) -> float:
        """Shuts a peer out for so long. Returns until when."""
        until = now + seconds
        self._banned = {banned: end for banned, end in self._banned.items() if end > now}
        self._banned[name] = until
        return until

    def add_useless_bytes(self, peer: Peer, size: int) -> bool:
        """A peer sent so many bytes that nobody asked it for. Returns whether it is to be banned."""
        peer.surplus += size
        if peer.surplus > self._config.surplus_most:
            peer.surplus = 0
            return True
        return False
