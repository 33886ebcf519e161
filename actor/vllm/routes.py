"""The backend in vLLM's API server (`vllm.endpoint_plugins`): the server conducts its own commits.

vLLM loads such plugins only where VLLM_PLUGINS names them: VLLM_PLUGINS=p2psync. Without that, whoever trains conducts
over vLLM's own routes (`p2psync.engines.vllm.conductor.HTTPControls`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from p2psync.actor.asgi_versions import STATE, VersionMiddleware
from p2psync.actor.commit_lock import Gate
from p2psync.actor.live_version import LiveVersion
from p2psync.actor.vllm.plugin import NAME, chosen
from p2psync.engines.vllm.conductor import Conductor, LLMControls
from p2psync.errors import EngineError

logger = logging.getLogger("vllm.p2psync")


class P2PSyncEndpoint:
    """GET /p2psync/status, versions on requests, and a task that conducts."""

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
        if first and chosen(engine_client.vllm_config):
            hold = os.environ.get("P2PSYNC_VLLM_HOLD", "") not in ("", "0")
            gate = Gate()
            conductor = Conductor(LLMControls(engine_client), hold=hold, closing=gate.closing)
            if getattr(args, "api_server_count", None) in (None, 1):
                setattr(state, STATE, LiveVersion(gate, lambda: conductor.position))
            state.p2psync = asyncio.create_task(_conduct(conductor, gate))


async def _conduct(conductor: Conductor, gate: Gate) -> None:
    try:
        await conductor.run()
    except Exception as error:  # a task nobody waits for must say why it ended
        logger.error("p2psync: commits are no longer conducted: %s", error)
        gate.end(EngineError(f"commits are no longer conducted: {error}"))
