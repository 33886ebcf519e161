"""A hub with a ledger on a free port of this machine, its clock turned by hand, and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from ledger_parts import Clock

from p2psync.membership.hub import HubConfig
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.trainer.ledger.core import LedgerConfig
from p2psync.trainer.ledger.service import LedgerService, mount


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def hub(clock: Clock) -> HubService:
    return HubService(HubConfig(trusted=frozenset(), ttl=10.0), clock=clock)


@pytest.fixture
async def service(hub: HubService) -> AsyncIterator[LedgerService]:
    mounted = mount(hub.build_app(), hub, LedgerConfig(claim_ttl=30, max_hold=100, first_items=256, hedge_margin=0))
    await hub.start("127.0.0.1", 0)
    yield mounted
    await hub.stop()


@pytest.fixture
async def client(hub: HubService, service: LedgerService) -> AsyncIterator[HubClient]:
    async with HubClient(f"http://127.0.0.1:{hub.port}") as opened:
        yield opened
