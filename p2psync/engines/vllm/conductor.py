"""Makes an engine commit: waits for a staged version, pauses generation, commits, and resumes.

    async with conducted(llm):          # an AsyncLLM whose backend is p2psync
        async for output in llm.generate(…): …

Requests in flight are kept. With `recompute` (the default) the pause also drops everything computed from older weights,
as vLLM's own `clear_cache` does: prefixes, and the keys and values of running requests, which are computed again when
they resume. Without it running requests keep theirs; that is allowed only if neither the engine nor an external store
caches prefixes, so that no request starts on another version's prefix. Each commit drops the outputs of encoders.
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

#: Seconds between polls of an engine that cannot notify. A larger value delays commits, a smaller one loads workers.
POLL_SECONDS = 0.05
_HTTP_LIMIT = aiohttp.ClientTimeout(total=300)


class ConductedCommit(msgspec.Struct, frozen=True):
    """A commit as its conductor saw it.

    changed: units. pause_seconds: from the end of the engine's pause call to the end of its resume call. write_seconds:
    the part of the pause in which weights were written.
    """

    version: int
    changed: int
    pause_seconds: float
    write_seconds: float


class EngineControls(Protocol):
    """The calls that a conductor makes to an engine. All raise `EngineError` if the engine cannot be reached."""

    async def status(self) -> list[dict[str, Any]]:
        """Returns the status of each rank; see `P2PSyncWeightTransferEngine.status`."""

    async def pause(self, *, clear: bool) -> None:
        """Pauses generation and keeps running requests. clear: also drop caches computed from the weights."""

    async def commit(self, version: int) -> None:
        """Makes the staged version live. Raises if it did not."""

    async def reset_encoder_cache(self) -> None:
        """Drops the outputs of encoders, which older weights computed. Called in a pause without `clear`."""

    async def resume(self, version: int | None) -> None:
        """Resumes generation. version: the live version, if it has changed."""


class LLMControls:
    """The controls of an AsyncLLM in this process."""

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
        """See `EngineControls`. vLLM's `pause_generation` does the same, and then sleeps for 20 ms."""
        if clear:
            await self._llm.renderer.clear_mm_cache_async()
        await self._llm.engine_core.pause_scheduler_async(mode="keep", clear_cache=clear)

    async def commit(self, version: int) -> None:
        """See `EngineControls`. Sends all three calls at once; the engine runs them in order."""
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
    """The controls of a vLLM server, over its own routes. The server runs with VLLM_SERVER_DEV_MODE=1."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def status(self) -> list[dict[str, Any]]:
        """See `EngineControls`."""
        return await self._call("p2psync_status")

    async def member(self) -> list[dict[str, Any]]:
        """Each rank's membership of the hub; see `p2psync.actor.vllm.work`."""
        return await self._call("p2psync_member")

    async def join(self, **init_info: object) -> None:
        """Makes the engine join a swarm, unless it has; see `p2psync.actor.vllm.backend.P2PSyncInitInfo`."""
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
    """Makes one engine commit the versions that it stages."""

    def __init__(
        self,
        controls: EngineControls,
        *,
        recompute: bool = True,
        hold: bool = False,
        poll_seconds: float = POLL_SECONDS,
        on_commit: Callable[[ConductedCommit], None] = lambda commit: None,
        exclusive: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        """recompute: see the module. hold: generate nothing before the first version is live. poll_seconds: time
        between polls. on_commit: called after each commit. exclusive: a context that is entered while a version goes
        live; readers that it keeps out find that `position` holds for every token
        (`p2psync.actor.commit_lock.CommitLock.write_lock_async`).
        """
        self._controls = controls
        self._recompute = recompute
        self._hold = hold
        self._ask_every = poll_seconds
        self._on_swap = on_commit
        self._exclusive = exclusive
        self._lock = asyncio.Lock()
        self._awaits_first = False
        #: The live version; changed only inside of `exclusive`.
        self.position: Position | None = None
        self._listener = CommitListener()
        self._notifier = ""

    async def run(self) -> None:
        """Conducts until it is cancelled.

        Raises `UnvouchedError` once nobody knows which weights the engine holds, `UsageError` if the engine's options
        contradict `recompute`, and the engine's own error when it is gone.
        """
        status = await self._status()
        if not self._recompute and any(rank["prefix_caching"] for rank in status):
            raise UsageError("keys and values can be kept only without cached prefixes: --no-enable-prefix-caching")
        if not self._recompute and any(rank.get("external_cache", False) for rank in status):
            raise UsageError("keys and values can be kept only without a store of them: leave out --kv-transfer-config")
        if self._hold and status[0]["version"] is None:
            self._awaits_first = True
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
                if failed or not await self._listener.wait_notified(self._notifier):
                    await asyncio.sleep(self._ask_every)
        finally:
            self._listener.close()

    async def reach(self, version: int, limit: float) -> None:
        """Conducts until `version` or a later one is live. Raises TimeoutError after `limit` seconds, and as `run`."""
        async with asyncio.timeout(limit):
            while (live := (await self._status())[0]["version"]) is None or live < version:
                if await self.step() is None:
                    await asyncio.sleep(self._ask_every)

    async def step(self) -> ConductedCommit | None:
        """Commits the staged version, if there is one; returns the commit.

        Raises `EngineError` if it failed and the old version is live, `UnvouchedError` if no version is.
        """
        async with self._lock:
            first = (await self._status())[0]
            if first["staged"] is not None:
                async with self._exclusive():
                    return await self._commit(first["staged"])
            if (found := _position(first)) is not None and found != self.position:
                # The weights in memory turned out to be a version: nothing had to be committed.
                async with self._exclusive():
                    await self._resume(found.version)
                    self.position = found
            return None

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pauses the engine: it computes nothing, and no version goes live. Requests in flight are kept."""
        async with self._lock:
            await self._controls.pause(clear=False)
            try:
                yield
            finally:
                await self._resume(None)

    async def _resume(self, version: int | None) -> None:
        """Resumes the engine, unless it waits for its first version."""
        if version is not None:
            self._awaits_first = False
        if not self._awaits_first:
            await self._controls.resume(version)

    async def _status(self) -> list[dict[str, Any]]:
        status = sorted(await self._controls.status(), key=lambda rank: int(rank["rank"]))
        for rank in status:
            if rank["refused"]:
                raise UnvouchedError(rank["refused"])
        self._notifier = status[0].get("bell", "")
        return status

    async def _commit(self, version: int) -> ConductedCommit:
        await self._controls.pause(clear=self._recompute)
        begun = time.perf_counter()
        try:
            await self._controls.commit(version)
            if not self._recompute:
                await self._controls.reset_encoder_cache()
        except Exception as error:
            await self._status()  # raises if the live version is not known; the engine then stays paused
            await self._resume(None)
            raise EngineError(f"version {version} was not made live: {error}") from error
        except BaseException:
            await self._resume(None)
            raise
        await self._resume(version)
        pause = time.perf_counter() - begun
        rank = (await self._status())[0]
        self.position = _position(rank)
        commit = ConductedCommit(version, rank["changed"], pause, rank["pause_seconds"])
        logger.info("p2psync: version %d is live after a pause of %.1f ms", version, 1e3 * pause)
        self._on_swap(commit)
        return commit


def _position(rank: dict[str, Any]) -> Position | None:
    """Returns the position in the status of rank 0, None before its first version."""
    if rank["version"] is None:
        return None
    digest = bytes.fromhex(rank["digest"])
    return Position(run=rank["run"], epoch=rank["epoch"], version=rank["version"], digest=digest)


@asynccontextmanager
async def conducting(controls: EngineControls, **options: Any) -> AsyncIterator[Conductor]:
    """Conducts an engine within the block; `options` are `Conductor`'s. An error of the conductor is raised at the
    end of the block."""
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
    """Conducts an AsyncLLM of this process: see `conducting`."""
    return conducting(LLMControls(llm), **options)


def commit_now(llm: Any, version: int = -1, wait: float = 0.0) -> None:
    """Commits the staged version between two calls of an offline `LLM`.

    version: wait up to `wait` seconds for this one or a later one; −1: whatever is staged. Drops what older weights
    computed: prefixes, stored keys and values, outputs of encoders. Raises the engine's error if the version was not
    staged in time or could not be written, `UnvouchedError` if something could not be dropped.
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
