"""vLLM as an actor of the run: an engine of this process, or a server over its HTTP routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import aiohttp
from wire import Prompt, Sample

from p2psync.engines.vllm.conductor import ConductedCommit, HTTPControls, LLMControls, conducted, conducting

BACKEND = {"backend": "p2psync"}
#: Seconds that a server may take to start.
STARTING = 600.0


class RolloutEngine(Protocol):
    """An engine that answers prompts, in this process or behind a server."""

    controls: LLMControls | HTTPControls

    async def answer(self, prompt: Prompt) -> list[Sample]:
        """Answer a prompt as often as it wants."""

    async def checksums(self) -> dict[str, str]:
        """vLLM's own sums over each live parameter."""

    async def reload(self, checkpoint: Path) -> None:
        """Loads a checkpoint by vLLM's own loader."""


class InProcess:
    """An `AsyncLLM`."""

    def __init__(self, llm: Any) -> None:
        self.controls = LLMControls(llm)
        self._llm = llm

    async def answer(self, prompt: Prompt) -> list[Sample]:
        """See `RolloutEngine`."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            n=prompt.samples,
            temperature=prompt.temperature,
            max_tokens=prompt.max_tokens,
            stop_token_ids=prompt.stop,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        asked = self._llm.generate({"prompt_token_ids": prompt.tokens}, params, request_id=uuid4().hex)
        answers = [output async for part in asked for output in part.outputs]
        return [
            Sample(
                list(one.token_ids),
                [row[token].logprob for row, token in zip(one.logprobs, one.token_ids, strict=True)],
            )
            for one in answers
        ]

    async def checksums(self) -> dict[str, str]:
        """See `RolloutEngine`."""
        return {name: total for rank in await self._llm.compute_weight_checksums() for name, total in rank.items()}

    async def reload(self, checkpoint: Path) -> None:
        """See `RolloutEngine`."""
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(checkpoint)})


class Server:
    """A `vllm serve`, of which VLLM_SERVER_DEV_MODE=1 opens the routes by which weights are changed."""

    def __init__(self, url: str, session: aiohttp.ClientSession, model: str) -> None:
        self.controls = HTTPControls(url)
        self._url, self._session, self._model = url.rstrip("/"), session, model

    async def answer(self, prompt: Prompt) -> list[Sample]:
        """See `RolloutEngine`."""
        body = {
            "model": self._model,
            "prompt": prompt.tokens,
            "n": prompt.samples,
            "temperature": prompt.temperature,
            "max_tokens": prompt.max_tokens,
            "stop_token_ids": prompt.stop,
            "logprobs": 0,
            "return_token_ids": True,
        }
        choices = (await self._post("v1/completions", body))["choices"]
        return [Sample(one["token_ids"], one["logprobs"]["token_logprobs"]) for one in choices]

    async def checksums(self) -> dict[str, str]:
        """See `RolloutEngine`."""
        found: dict[str, str] = (await self._post("weight_checker", {"action": "checksum"}))["checksums"]
        return found

    async def reload(self, checkpoint: Path) -> None:
        """See `RolloutEngine`."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
        await self._post("collective_rpc", body)

    async def _post(self, route: str, body: object) -> Any:
        async with self._session.post(f"{self._url}/{route}", json=body) as answer:
            if answer.status != 200:
                raise OSError(f"{self._url}/{route}: {answer.status} {(await answer.text())[:500]}")
            return await answer.json()


@asynccontextmanager
async def in_process(
    model: Path, options: str, init: dict[str, Any], on_commit: Callable[[ConductedCommit], None]
) -> AsyncIterator[RolloutEngine]:
    """An engine of this process that follows the run. options: further engine arguments (JSON). init: how it joins."""
    from vllm import AsyncEngineArgs
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = {
        "dtype": "bfloat16",
        "max_model_len": 512,
        "skip_tokenizer_init": True,
        # The learner needs log-probabilities after temperature and other processing.
        "logprobs_mode": "processed_logprobs",
        **json.loads(options),
    }
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model), weight_transfer_config=BACKEND, **arguments))
    try:
        await llm.init_weight_transfer_engine(WeightTransferInitRequest(init))
        async with conducted(llm, on_commit=on_commit):
            yield InProcess(llm)
    finally:
        llm.shutdown()


@asynccontextmanager
async def served(
    url: str, init: dict[str, Any], on_commit: Callable[[ConductedCommit], None]
) -> AsyncIterator[RolloutEngine]:
    """A server, which may still be starting. It joins, unless it has, and is conducted from here."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        server = Server(url, session, await _model_of(url, session))
        await server.controls.join(**init)
        async with conducting(server.controls, on_commit=on_commit):
            yield server


async def _model_of(url: str, session: aiohttp.ClientSession) -> str:
    """The name of the server's model, once it serves. TimeoutError after `STARTING` seconds."""
    async with asyncio.timeout(STARTING):
        while True:
            try:
                async with session.get(f"{url.rstrip('/')}/v1/models") as answer:
                    if answer.status == 200:
                        return str((await answer.json())["data"][0]["id"])
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(1.0)
