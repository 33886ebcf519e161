"""The plugin in vLLM's API server (`vllm.endpoint_plugins`): the server conducts its own commits.

vLLM loads it only if VLLM_PLUGINS names it: VLLM_PLUGINS=p2psync. Otherwise the trainer conducts over vLLM's own routes
(`p2psync.engines.vllm.conductor.HTTPControls`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from p2psync.actor.asgi_versions import STATE_ATTRIBUTE, VersionMiddleware
from p2psync.actor.commit_lock import CommitLock
from p2psync.actor.live_version import LiveVersion
from p2psync.actor.vllm.plugin import NAME, uses_backend
from p2psync.engines.vllm.conductor import Conductor, LLMControls
from p2psync.errors import EngineError

logger = logging.getLogger("vllm.p2psync")


class P2PSyncEndpoint:
    """Adds GET /p2psync/status, versions on requests, and a task that conducts."""

    name = NAME
    required_tasks = None

    def attach_router(self, app: FastAPI) -> None:
        """See vLLM's `EndpointPlugin`."""

        @app.get("/p2psync/status")
        async def status(request: Request) -> JSONResponse:
            return JSONResponse(await request.app.state.engine_client.collective_rpc("p2psync_status"))

        app.add_middleware(VersionMiddleware)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """See vLLM's `EndpointPlugin`."""
        first = engine_client is not None and getattr(engine_client.engine_core, "client_index", 0) == 0
        if first and uses_backend(engine_client.vllm_config):
            hold = os.environ.get("P2PSYNC_VLLM_HOLD", "") not in ("", "0")
            commit_lock = CommitLock()
            conductor = Conductor(LLMControls(engine_client), hold=hold, exclusive=commit_lock.write_lock_async)
            if getattr(args, "api_server_count", None) in (None, 1):
                setattr(state, STATE_ATTRIBUTE, LiveVersion(commit_lock, lambda: conductor.position))
            state.p2psync = asyncio.create_task(_conduct(conductor, commit_lock))


async def _conduct(conductor: Conductor, commit_lock: CommitLock) -> None:
    try:
        await conductor.run()
    except Exception as error:  # nobody awaits this task: log why it ended
        logger.error("p2psync: commits are no longer conducted: %s", error)
        commit_lock.end(EngineError(f"commits are no longer conducted: {error}"))
