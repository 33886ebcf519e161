"""Commits into a real vLLM engine under load, and runs the baselines in the same worker.

A trainer publishes two versions in turn, over the swarm; the engine is conducted as in production. After each commit
the engine is stopped once more, and the baselines write the same elements of the same parameters.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.bench.codec import cpu_name
from p2psync.bench.pause.report import PauseReport, ShareReport, times_of
from p2psync.delta.tensors import TensorKind
from p2psync.engines.checkpoint.files import Checkpoint, files_signature
from p2psync.engines.vllm.conductor import ConductedCommit, LLMControls, conducted
from p2psync.net.background import BackgroundLoop
from p2psync.protocol.keys import public_text
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.versions.source import CheckpointSource

#: Variables with which vLLM runs on CPUs without a network.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
_TIMEOUT = 300.0
#: Every so many rounds the model is reloaded whole, too.
_RELOAD_EVERY = 5


@dataclass(frozen=True, kw_only=True)
class PauseOptions:
    """model: a checkpoint's directory. shares: of the elements, that change in a commit. changed: the same as numbers
    of elements, after the shares. requests: how many run."""

    model: Path
    shares: Sequence[float] = ()
    changed: Sequence[int] = ()
    rounds: int = 20
    requests: int = 2
    tensor_parallel: int = 1
    seed: int = 1


def run_pause_bench(options: PauseOptions, progress: Callable[[str], None]) -> PauseReport:
    """Measure. Needs vLLM."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory(prefix="p2psync-bench-") as folder:
        return asyncio.run(_run(options, Path(folder), progress))


async def _run(options: PauseOptions, folder: Path, progress: Callable[[str], None]) -> PauseReport:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    progress("starting vLLM")
    args = AsyncEngineArgs(
        model=str(options.model),
        dtype="bfloat16",
        enforce_eager=True,
        kv_cache_memory_bytes=256 << 20,
        max_model_len=1024,
        skip_tokenizer_init=True,
        tensor_parallel_size=options.tensor_parallel,
        weight_transfer_config={"backend": "p2psync"},
        worker_extension_cls="p2psync.bench.pause.worker.PauseWorker",
    )
    llm = AsyncLLM.from_engine_args(args)
    source = _LoopbackTrainer(folder / "run")
    try:
        with Checkpoint.open(options.model) as checkpoint:
            tensors = [spec for spec in checkpoint.specs if spec.kind == TensorKind.TENSOR]
            size, elements = sum(spec.nbytes for spec in tensors), sum(spec.count for spec in tensors)
        shares: list[ShareReport] = []
        for share in (*options.shares, *(number / elements for number in options.changed)):
            if not shares:
                await _join(llm, source, options.model)
            shares.append(await _measure(llm, source, options, share, folder, progress))
        return PauseReport(
            model=options.model.name,
            model_bytes=size,
            tensor_parallel=options.tensor_parallel,
            requests=options.requests,
            cpu=cpu_name(),
            shares=shares,
        )
    finally:
        llm.shutdown()
        source.close()


async def _join(llm: Any, source: _LoopbackTrainer, model: Path) -> None:
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

    await asyncio.to_thread(source.publish, model)
    await llm.init_weight_transfer_engine(WeightTransferInitRequest(source.join()))
    await _until(llm, 0)


async def _measure(
    llm: Any,
    source: _LoopbackTrainer,
    options: PauseOptions,
    share: float,
    folder: Path,
    progress: Callable[[str], None],
) -> ShareReport:
    other = folder / f"share-{share}"
    _changed(options.model, other, share, options.seed)
    found: dict[str, list[float]] = {}
    swaps: list[ConductedCommit] = []
    elements = 0
    controls = LLMControls(llm)
    load = [asyncio.create_task(_generate(llm, k)) for k in range(options.requests)]
    try:
        async with conducted(llm, on_commit=swaps.append) as conductor:
            await llm.collective_rpc("p2psync_bench", args=(str(options.model), str(options.model), False))
            # An even number of commits leads back to the model.
            for number in range(options.rounds + options.rounds % 2):
                progress(f"share {share:g}: commit {number + 1} of {options.rounds}")
                old, new = (options.model, other) if number % 2 == 0 else (other, options.model)
                version = await asyncio.to_thread(source.publish, new)
                await _until(llm, version)
                async with conductor.paused():
                    status = (await controls.status())[0]
                    reload = number % _RELOAD_EVERY == 0
                    baselines = (await llm.collective_rpc("p2psync_bench", args=(str(old), str(new), reload)))[0]
                elements = int(baselines.pop("elements"))
                mine = {
                    "pause": swaps[-1].pause_seconds,
                    "write": swaps[-1].write_seconds,
                    "stage": status["stage_seconds"],
                }
                for name, seconds in {**mine, **baselines}.items():
                    found.setdefault(name, []).append(seconds)
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    return ShareReport(share=share, elements=elements, times=times_of(dict(found), elements))


async def _generate(llm: Any, number: int) -> None:
    """Requests without end."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.0, max_tokens=256, ignore_eos=True, detokenize=False)
    turn = 0
    while True:
        turn += 1
        async for _ in llm.generate(
            {"prompt_token_ids": [number + 1, turn % 250 + 1, 7, 8]}, params, request_id=f"load-{number}-{turn}"
        ):
            pass


async def _until(llm: Any, version: int) -> None:
    """Wait until a version is live."""
    async with asyncio.timeout(_TIMEOUT):
        while (await llm.collective_rpc("p2psync_status"))[0]["version"] != version:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.05)


def _changed(old: Path, new: Path, share: float, seed: int) -> None:
    """A copy of a checkpoint of which a share of all elements is an ulp away."""
    shutil.copytree(old, new)
    rng = np.random.default_rng(seed)
    with Checkpoint.open(new, writable=True) as checkpoint:
        for spec in checkpoint.specs:
            if spec.kind == TensorKind.TENSOR:
                units = checkpoint.units(spec)
                where = rng.choice(units.size, max(1, round(units.size * share)), replace=False)
                units[where] ^= 1


class _LoopbackTrainer:
    """A trainer with its hub, on loopback."""

    def __init__(self, store: Path) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._loop = BackgroundLoop("bench-trainer")
        config = TrainerConfig(
            store=store, key=self._key, host="127.0.0.1", hub_port=0, port=0, probe=False, plan=False, squash=False
        )
        self._node: TrainerNode = self._loop.run(lambda: TrainerNode(config))
        self._loop.call(self._node.start())

    def publish(self, checkpoint: Path) -> int:
        """Publish a checkpoint; returns its version."""
        with Checkpoint.open(checkpoint) as opened:
            self._loop.call(self._node.publish(CheckpointSource(opened, files_signature(checkpoint))))
        assert self._node.position is not None
        return self._node.position.version

    def join(self) -> dict[str, Any]:
        """Returns the settings with which an engine joins."""
        trust = [public_text(self._key.public_key().public_bytes_raw())]
        return {"hub_url": self._node.hub_url, "trust": trust, "host": "127.0.0.1"}

    def close(self) -> None:
        """Stop."""
        self._loop.call(self._node.stop())
        self._loop.close()
