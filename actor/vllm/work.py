"""A vLLM engine as a rollout actor: its live version, and work from the ledger under its own membership.

    async with conducted(llm), EngineWork(LLMControls(llm), "http://trainer:7070") as work:
        grant = await work.lease(max_items=8)
        for item in grant.items:
            begun = await work.begin(grant, item)           # before the engine gets the request
            result, tokens = await answer(llm, item.payload)
            await work.deliver(grant.work, item.item, result, begun.position, tokens)

The node inside the engine is the member of the hub: claims last as long as it lives, and the ledger knows which version
it has. The engine may be an AsyncLLM of this process (`LLMControls`) or a server (`HTTPControls`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

import aiohttp

from p2psync.actor.demand import LiveState
from p2psync.actor.work_client import WorkClient
from p2psync.errors import EngineError, LeaseError, UnvouchedError, UsageError
from p2psync.membership.work import MAX_WORK_WAIT_SECONDS, Receipt, WorkGrant, WorkItem
from p2psync.net.hub_client import HubClient
from p2psync.net.hub_wire import one_line
from p2psync.protocol.versions import Position

RankStatuses = list[dict[str, Any]]
_POLL_SECONDS = 0.05
_TIMEOUT = aiohttp.ClientTimeout(total=60)


class EngineMember(Protocol):
    """The calls that are made to an engine."""

    async def status(self) -> RankStatuses:
        """Returns the status of each rank."""

    async def member(self) -> RankStatuses:
        """Returns the hub membership of each rank."""


class EngineVersion:
    """The live version of a vLLM engine: a `p2psync.actor.live_version.LiveVersionReader`.

    Each read asks the engine, which answers between two of its steps, so never during a commit.
    """

    def __init__(self, status: Callable[[], Awaitable[RankStatuses]]) -> None:
        """status: of an engine's controls, or `server_status` of a server that conducts itself."""
        self._status = status

    async def read(self) -> LiveState:
        """Returns the live version.

        Raises `UnvouchedError` if the engine has stopped serving, `EngineError` if it does not answer.
        """
        first = min(await self._status(), key=lambda rank: int(rank["rank"]))
        if first["refused"]:
            raise UnvouchedError(first["refused"])
        position = None
        if first["version"] is not None:
            digest = bytes.fromhex(first["digest"])
            position = Position(run=first["run"], epoch=first["epoch"], version=first["version"], digest=digest)
        return LiveState(position=position, commits=first["commits"])

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[LiveState]:
        """Raises `UsageError`: a request cannot keep a commit of a vLLM engine out."""
        raise UsageError("a vLLM engine holds no version for a request: ask for P2PSync-Exact-Version instead")
        yield


def server_status(url: str) -> Callable[[], Awaitable[RankStatuses]]:
    """Returns a call for the status of a vLLM server that conducts itself (VLLM_PLUGINS=p2psync)."""
    address = f"{url.rstrip('/')}/p2psync/status"

    async def status() -> RankStatuses:
        try:
            async with aiohttp.ClientSession(timeout=_TIMEOUT) as session, session.get(address) as answer:
                if answer.status != 200:
                    raise EngineError(f"{address}: {answer.status}; is VLLM_PLUGINS=p2psync set there?")
                found: RankStatuses = await answer.json()
                return found
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineError(f"{address}: {one_line(str(error)) or type(error).__name__}") from None

    return status


class EngineWork:
    """Leases work for one engine and delivers its results. An async context manager, for one loop."""

    def __init__(self, engine: EngineMember, hub_url: str, token: str | None = None) -> None:
        """hub_url, token: those with which the engine joined. Raises `UsageError` for a malformed url."""
        self._engine = engine
        self._hub = HubClient(hub_url, token)
        self._client = WorkClient(self._hub)
        self.live = EngineVersion(engine.status)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hub.close()

    async def lease(self, max_items: int = 1, wait: float = MAX_WORK_WAIT_SECONDS) -> WorkGrant:
        """Claims work; returns no items if there was none for `wait` seconds (at most 20).

        Raises `LeaseError` while the engine is no member or has no version yet, and as `WorkClient.lease`.
        """
        position = (await self.live.read()).position
        lease = min(await self._engine.member(), key=lambda rank: int(rank["rank"]))["lease"]
        if lease is None or position is None:
            raise LeaseError("the engine is not a member of the hub now, or has no version yet")
        return await self._client.lease(lease, max_items, wait, position.version)

    async def begin(self, grant: WorkGrant, item: WorkItem) -> LiveState:
        """Waits until the live version suits the item, and returns it.

        An item may be meant for a version that does not exist yet. It is started under a version that will be within
        the grant's staleness bound then, as far as that exists. The ledger judges the result when it arrives; newer
        versions may come until then. Raises as `read`.
        """
        newest = grant.head if grant.head is not None else 0
        needed = min(newest, item.version - grant.max_staleness)
        while True:
            now = await self.live.read()
            if now.position is not None and now.position.version >= needed:
                return now
            await asyncio.sleep(_POLL_SECONDS)

    async def deliver(
        self,
        work: str,
        item: str,
        result: bytes,
        position: Position | None,
        tokens: int = 0,
        *,
        timeout_seconds: float = 120.0,
    ) -> Receipt:
        """Hands in a result of `tokens` tokens that was started under `position`; commits may have come since.

        Raises as `WorkClient.deliver`, and `UsageError` without a position.
        """
        if position is None:
            raise UsageError("a result is made under a version: read it before the engine hears of the request")
        return await self._client.deliver(
            *(work, item, result),
            version=position.version,
            digest=position.digest.hex(),
            tokens=tokens,
            timeout_seconds=timeout_seconds,
        )
