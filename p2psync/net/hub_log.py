"""Logs for a hub, under `p2psync.hub`: nodes that come and go, and refused requests."""

from __future__ import annotations

import logging
from collections.abc import Callable

from p2psync.errors import FencedError, P2PSyncError, TrustError
from p2psync.membership.leases import EndedLease
from p2psync.membership.records import NodeInfo

logger = logging.getLogger("p2psync.hub")

#: The same refusal of the same host is logged again after so long (seconds): a host with a wrong token tries it
#: again every few seconds.
LOG_AGAIN_SECONDS = 60.0
#: Refusals that are remembered for that. More hosts than this at a time are an attack, and are logged in part.
MAX_REMEMBERED = 1024
#: Refusals that an operator must know of; others are part of a swarm's life.
_GRAVE = (TrustError, FencedError)


class HubLog:
    """Logs for one hub."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: seconds, never going back."""
        self._clock = clock
        self._refused: dict[tuple[str, str], float] = {}

    def joined(self, info: NodeInfo) -> None:
        """A node has a lease."""
        logger.info("%s joined%s", _called(info), f" from region {info.region}" if info.region else "")

    def ended(self, ended: EndedLease) -> None:
        """A node's lease has ended; one that joined again is told as joining."""
        if ended.reason != "replaced":
            how = "left" if ended.reason == "left" else "is gone: its lease was not renewed"
            logger.info("%s %s", _called(ended.member.info), how)

    def refused(self, host: str, request: str, error: P2PSyncError) -> None:
        """A request was refused. host: where it came from."""
        if not isinstance(error, _GRAVE):
            logger.debug("refused %s from %s: %s", request, host, error)
            return
        now, key = self._clock(), (host, str(error))
        if now - self._refused.get(key, -LOG_AGAIN_SECONDS) < LOG_AGAIN_SECONDS:
            return
        if len(self._refused) >= MAX_REMEMBERED:
            self._refused = {k: at for k, at in self._refused.items() if now - at < LOG_AGAIN_SECONDS}
            if len(self._refused) >= MAX_REMEMBERED:
                return
        self._refused[key] = now
        logger.warning("refused %s from %s: %s", request, host, error)


def _called(info: NodeInfo) -> str:
    name = f" {info.name}" if info.name else ""
    return f"{info.role}{name} {info.node[:8]} ({info.location})"
