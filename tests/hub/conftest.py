"""A hub on a free port of this machine with a manual clock, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hub_parts import TRUSTED, Clock

from p2psync.membership.hub import HubConfig
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def hub(clock: Clock) -> AsyncIterator[HubService]:
    service = HubService(HubConfig(trusted=TRUSTED, ttl=10.0), clock=clock)
    await service.start("127.0.0.1", 0)
    yield service
    await service.stop()


@pytest.fixture
def url(hub: HubService) -> str:
    return f"http://127.0.0.1:{hub.port}"


@pytest.fixture
async def client(url: str) -> AsyncIterator[HubClient]:
    async with HubClient(url) as opened:
        yield opened
