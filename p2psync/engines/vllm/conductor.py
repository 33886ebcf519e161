"""Who makes an engine commit: watches for a staged version, pauses generation, commits, and lets it go on.

    async with conducted(llm):          # an AsyncLLM whose backend is p2psync
        async for output in llm.generate(…): …

Requests in flight are kept. With `recompute` (the default) the pause also drops everything that was computed from older
weights, as vLLM's own `clear_cache` does: prefixes, and the keys and values of running requests, which are computed
anew when they go on. Without it running requests keep theirs; that is only done where prefixes are not cached, here or
in a store beside the engine, so that no request ever begins on another version's prefix. Outputs of encoders are
dropped at each commit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, Protocol

import aiohttp
import msgspec

from p2psync.engines.vllm.commit_notifier import CommitListener
from p2psync.errors import EngineError, UnvouchedError, UsageError
from p2psync.protocol.versions import Position

logger = logging.getLogger("vllm.p2psync")

#: How often an engine whose bell cannot be heard is asked whether a version is staged (seconds).
POLL_SECONDS = 0.05
_HTTP_LIMIT = aiohttp.ClientTimeout(total=300)


class ConductedCommit(msgspec.Struct, frozen=True):
    """A commit as its conductor saw it. pause_seconds: from when the engine stood still to when it was told to go on;
    write_seconds: the part of it in which weights were written."""

    version: int
    changed: int
    pause_seconds: float
    write_seconds: float


class EngineControls(Protocol):
    """What is asked of an engine."""

    async def status(self) -> list[dict[str, Any]]:
        """What each rank says of itself."""

    async def pause(self, *, clear: bool) -> None:
        """Let no request be computed, and keep those that run; `clear`: drop what was computed from the weights."""

    async def commit(self, version: int) -> None:
        """Make the staged version live. Raises if it is not."""

    async def reset_encoder_cache(self) -> None:
        """Drop the outputs of encoders, which older weights computed. Asked for in a pause without `clear`."""

    async def resume(self, version: int | None) -> None:
        """Go on; `version`: what is live now, if it was changed."""


class LLMControls:
    """An AsyncLLM of this process."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    async def status(self) -> list[dict[str, Any]]:
        """See `EngineControls`."""
        found: list[dict[str, Any]] = await self._llm.collective_rpc("p2psync_status")
        return found

    async def member(self) -> list[dict[str, Any]]:
        """Each rank's membership of the hub; see `p2psync.actor.vllm.work`."""
        found: list[dict[str, Any]] = await self._llm.collective_rpc("p2psync_member")
        return found

    async def pause(self, *, clear: bool) -> None:
        """See `EngineControls`. `pause_generation` does the same, and then sleeps for 20 ms."""
        if clear:
            await self._llm.renderer.clear_mm_cache_async()
        await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=clear)

    async def commit(self, version: int) -> None:
        """See `EngineControls`. All three go out at once: the engine takes them in order."""
        calls = [
            self._llm.collective_rpc("start_weight_update"),
            self._llm.collective_rpc("update_weights", kwargs={"update_info": {"version": version}}),
            self._llm.collective_rpc("finish_weight_update"),
        ]
        _, updated, finished = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in (updated, finished):
            if isinstance(outcome, BaseException):
                raise outcome

    async def reset_encoder_cache(self) -> None:
        """See `EngineControls`."""
        await self._llm.reset_encoder_cache()

    async def resume(self, version: int | None) -> None:
        """See `EngineControls`."""
        calls = [self._llm.resume_generation()]
        if version is not None:
            calls.insert(0, self._llm.update_weight_version(str(version)))
        await asyncio.gather(*calls)


class HTTPControls:
    """A vLLM server, over its own routes (it runs with VLLM_SERVER_DEV_MODE=1)."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def status(self) -> list[dict[str, Any]]:
        """See `EngineControls`."""
        return await self._call("p2psync_status")

    async def member(self) -> list[dict[str, Any]]:
        """Each rank's membership of the hub; see `p2psync.actor.vllm.work`."""
        return await self._call("p2psync_member")

    async def join(self, **init_info: object) -> None:
        """Have the engine join a swarm, unless it is in one; see `p2psync.actor.vllm.backend.P2PSyncInitInfo`."""
        if not any(rank["joined"] for rank in await self.member()):
            await self._post("init_weight_transfer_engine", {"init_info": init_info})

    async def pause(self, *, clear: bool) -> None:
        """See `EngineControls`."""
        await self._post(f"pause?mode=keep&clear_cache={str(clear).lower()}")

    async def commit(self, version: int) -> None:
        """See `EngineControls`."""
        await self._post("start_weight_update")
        await self._post("update_weights", {"update_info": {"version": version}})
        await self._post("finish_weight_update")

    async def reset_encoder_cache(self) -> None:
        """See `EngineControls`."""
        await self._post("reset_encoder_cache")

    async def resume(self, version: int | None) -> None:
        """See `EngineControls`."""
        if version is not None:
            await self._post("update_weight_version", {"new_version": str(version)})
        await self._post("resume")

    async def _call(self, method: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._post("collective_rpc", {"method": method}))["results"]
        return found

    async def _post(self, route: str, body: object = None) -> Any:
        try:
            async with (
                aiohttp.ClientSession(timeout=_HTTP_LIMIT) as session,
                session.post(f"{self._url}/{route}", json=body) as answer,
            ):
                if answer.status != 200:
                    raise EngineError(f"{self._url}/{route}: {answer.status} {(await answer.text())[:500]}")
                return await answer.json() if answer.content_type == "application/json" else None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineError(f"{self._url}/{route}: {error or type(error).__name__}") from None


class Conductor:
    """Makes one engine commit what it has staged."""

    def __init__(
        self,
        controls: EngineControls,
        *,
        recompute: bool = True,
        hold: bool = False,
        poll_seconds: float = POLL_SECONDS,
        on_commit: Callable[[ConductedCommit], None] = lambda swap: None,
        exclusive: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        """recompute: see above. hold: nothing is generated before the first version is live. ask_every: seconds.
        exclusive: entered while a version goes live, so that whoever is kept out of it finds `position` true of every
        token (`p2psync.actor.commit_lock.CommitLock.write_lock_async`)."""
        self._controls = controls
        self._recompute = recompute
        self._hold = hold
        self._ask_every = poll_seconds
        self._on_swap = on_commit
        self._exclusive = exclusive
        self._turn = asyncio.Lock()
        self._held = False
        #: What is live; told from inside `exclusive`.
        self.position: Position | None = None
        self._listener = CommitListener()
        self._bell = ""

    async def run(self) -> None:
        """Conduct for ever. Raises `UnvouchedError` once the engine's weights cannot be vouched for, `UsageError` if
        it cannot be conducted so, and what the engine raises when it is gone."""
        status = await self._status()
        if not self._recompute and any(rank["prefix_caching"] for rank in status):
            raise UsageError("keys and values can be kept only without cached prefixes: --no-enable-prefix-caching")
        if not self._recompute and any(rank.get("external_cache", False) for rank in status):
            raise UsageError("keys and values can be kept only without a store of them: leave out --kv-transfer-config")
        if self._hold and status[0]["version"] is None:
            self._held = True
            await self._controls.pause(clear=False)
        try:
            while True:
                failed = False
                try:
                    await self.step()
                except UnvouchedError:
                    raise
                except EngineError as error:
                    failed = True
                    logger.warning("p2psync: %s", error)
                if failed or not await self._listener.heard(self._bell):
                    await asyncio.sleep(self._ask_every)
        finally:
            self._listener.close()

    async def reach(self, version: int, limit: float) -> None:
        """Conduct until `version` or a later one is live. Raises TimeoutError after `limit` seconds, and as `run`."""
        async with asyncio.timeout(limit):
            while (live := (await self._status())[0]["version"]) is None or live < version:
                if await self.step() is None:
                    await asyncio.sleep(self._ask_every)

    async def step(self) -> ConductedCommit | None:
        """Commit what is staged, if anything is. Raises `EngineError` if that failed, and the old version is live;
        `UnvouchedError` if none is."""
        async with self._turn:
            first = (await self._status())[0]
            if first["staged"] is not None:
                async with self._exclusive():
                    return await self._swap(first["staged"])
            if (found := _position(first)) is not None and found != self.position:
                # The weights at hand turned out to be a version: nothing had to be committed.
                async with self._exclusive():
                    await self._go_on(found.version)
                    self.position = found
            return None

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """The engine computes nothing meanwhile, and no version becomes live; requests in flight are kept."""
        async with self._turn:
            await self._controls.pause(clear=False)
            try:
                yield
            finally:
                await self._go_on(None)

    async def _go_on(self, version: int | None) -> None:
        """Resume, but for an engine that waits for its first version."""
        if version is not None:
            self._held = False
        if not self._held:
            await self._controls.resume(version)

    async def _status(self) -> list[dict[str, Any]]:
        status = sorted(await self._controls.status(), key=lambda rank: int(rank["rank"]))
        for rank in status:
            if rank["refused"]:
                raise UnvouchedError(rank["refused"])
        self._bell = status[0].get("bell", "")
        return status

    async def _swap(self, version: int) -> ConductedCommit:
        await self._controls.pause(clear=self._recompute)
        begun = time.perf_counter()
        try:
            await self._controls.commit(version)
            if not self._recompute:
                await self._controls.reset_encoder_cache()
        except Exception as error:
            await self._status()  # raises if nobody knows what is live; then nothing goes on
            await self._go_on(None)
            raise EngineError(f"version {version} was not made live: {error}") from error
        except BaseException:
            await self._go_on(None)
            raise
        await self._go_on(version)
        pause = time.perf_counter() - begun
        rank = (await self._status())[0]
        self.position = _position(rank)
        swap = ConductedCommit(version, rank["changed"], pause, rank["pause_seconds"])
        logger.info("p2psync: version %d is live after a pause of %.1f ms", version, 1e3 * pause)
        self._on_swap(swap)
        return swap


def _position(rank: dict[str, Any]) -> Position | None:
    """What rank 0 said that it holds."""
    if rank["version"] is None:
        return None
    digest = bytes.fromhex(rank["digest"])
    return Position(run=rank["run"], epoch=rank["epoch"], version=rank["version"], digest=digest)


@asynccontextmanager
async def conducting(controls: EngineControls, **options: Any) -> AsyncIterator[Conductor]:
    """Conduct an engine meanwhile; `options` as `Conductor` takes them. What ends the conducting is raised at the end
    of the block."""
    conductor = Conductor(controls, **options)
    task = asyncio.create_task(conductor.run())
    try:
        yield conductor
    finally:
        if not task.done():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def conducted(llm: Any, **options: Any) -> AbstractAsyncContextManager[Conductor]:
    """`conducting` of an AsyncLLM of this process."""
    return conducting(LLMControls(llm), **options)


def commit_now(llm: Any, version: int = -1, wait: float = 0.0) -> None:
    """Between two calls of an offline `LLM`: make what is staged live, or wait (seconds) for `version`.

    What older weights computed is dropped: prefixes, stored keys and values, outputs of encoders. Raises as the engine
    does if the version could not be had, or written; `UnvouchedError` if something could not be dropped.
    """
    llm.start_weight_update()
    llm.update_weights({"update_info": {"version": version, "wait": wait}})
    llm.finish_weight_update()
    if not llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
        raise UnvouchedError("the stored keys and values of older weights could not be dropped: restart this engine")
    llm.llm_engine.reset_encoder_cache()
    live = llm.collective_rpc("p2psync_status")[0]["version"]
    if live is not None:
        llm.update_weight_version(str(live))
