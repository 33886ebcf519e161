"""Gives a trainer its hub: an embedded one, or an external one that may be away at the start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from p2psync.errors import HubError
from p2psync.membership.hub import HubConfig
from p2psync.membership.planning import Planner
from p2psync.net.addresses import url_of
from p2psync.net.hub import HubService
from p2psync.net.listening import local_host, reachable_host
from p2psync.observe.events import Event, HubUnreachable, Trouble
from p2psync.trainer.announcer import RETRY_FIRST, RETRY_LAST
from p2psync.trainer.config import TrainerConfig

T = TypeVar("T")


def embedded_hub(config: TrainerConfig, trusted: frozenset[bytes], on_event: Callable[[Event], None]) -> HubService:
    """Returns the hub of a trainer's own process, not started yet. trusted: public keys, 32 bytes each."""
    return HubService(
        HubConfig(trusted=trusted, ttl=config.ttl, embedded=True),
        token=config.token,
        planner=_planner() if config.plan else None,
        on_trouble=lambda message: on_event(Trouble(message)),
        port_setting="hub_port",
    )


def embedded_hub_urls(host: str, advertised: tuple[str, ...], port: int) -> tuple[str, str]:
    """Returns the URL at which actors join an embedded hub, and the one at which this machine reaches it."""
    local = url_of(local_host(host), port)
    reached = reachable_host(host, advertised)
    return url_of(reached, port) if reached else local, local


async def ask_hub(ask: Callable[[], Awaitable[T]], *, wait: bool, on_event: Callable[[Event], None]) -> T:
    """Returns what `ask` returns. wait: repeat it, with a backoff, until the hub answers, and tell that once.

    Raises `HubError` if the hub does not answer and `wait` is False, and whatever else `ask` raises.
    """
    pause, told = RETRY_FIRST, False
    while True:
        try:
            return await ask()
        except HubError as error:
            if not wait:
                raise
            if not told:
                on_event(HubUnreachable(f"{error}; waiting for it"))
            told = True
        await asyncio.sleep(pause)
        pause = min(RETRY_LAST, pause * 2)


def _planner() -> Planner:
    from p2psync.topology.plan_process import PlanProcess

    # Above the revisions of an earlier life of this hub, which nodes may still follow.
    return PlanProcess(int(time.time()))
