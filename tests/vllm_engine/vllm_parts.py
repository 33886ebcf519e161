"""Small checkpoints of real architectures, a trainer that publishes them, and real vLLM engines."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from vllm_forks import ENVIRONMENT, call_forked, start_forked, start_plain, take_forks

from p2psync.delta.tensors import TensorKind
from p2psync.engines.checkpoint.files import Checkpoint, files_signature
from p2psync.net.background import BackgroundLoop
from p2psync.observe.events import Published
from p2psync.protocol.keys import public_text
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.versions.source import CheckpointSource

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
#: Seconds that a server may take to start, or a version from its publication to every engine, on a busy machine.
TIMEOUT = 300.0
PROMPT = [1, 2, 3, 4, 5, 6, 7]
#: Flags of servers of which several run at a time: no worker process besides the engine's.
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
ONE_PROCESS_FLAGS = {"distributed_executor_backend": "uni"}
_SIZES = {
    "vocab_size": 515,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def model_of(name: str) -> Any:
    """A random bf16 model: qwen3, llama (tied embeddings), qwen2 (biases)."""
    import torch
    import transformers as hf

    torch.manual_seed(7)
    config, kind = {
        "qwen3": (lambda: hf.Qwen3Config(**_SIZES, head_dim=32, tie_word_embeddings=False), hf.Qwen3ForCausalLM),
        "llama": (lambda: hf.LlamaConfig(**_SIZES, head_dim=32, tie_word_embeddings=True), hf.LlamaForCausalLM),
        "qwen2": (lambda: hf.Qwen2Config(**_SIZES, tie_word_embeddings=False), hf.Qwen2ForCausalLM),
    }[name]
    model = kind(config()).to(torch.bfloat16)
    for key, parameter in model.named_parameters():
        if key.endswith("bias") or "norm" in key:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key else 0.0, 0.1)
    return model


def save(name: str, into: Path) -> Path:
    """Saves a checkpoint of the model, with a tokenizer."""
    call_forked(_save, name, into)
    return into


def _save(name: str, into: Path) -> None:
    model_of(name).save_pretrained(into)
    save_tokenizer(into)


def stepped(old: Path, new: Path, seed: int, share: float = 0.01, *, nan: bool = False) -> Path:
    """A copy of a checkpoint in which a share of all units went up or down by a few ulps.

    nan: some of the last rows of the embedding, which belong to tokens that no test uses, get any bits at all.
    """
    shutil.copytree(old, new)
    rng = np.random.default_rng(seed)
    with Checkpoint.open(new, writable=True) as checkpoint:
        for spec in checkpoint.specs:
            if spec.kind != TensorKind.TENSOR:
                continue
            units = checkpoint.units(spec)
            where = rng.integers(0, units.size, max(1, int(units.size * share)))
            units[where] += rng.choice(np.array([1, 2, 0xFFFF, 0xFFFE], np.uint16), where.size)
            if nan and "embed_tokens" in spec.name:
                special = np.array([0x7FC1, 0xFFFF, 0x7F81, 0x7F80, 0xFF80, 0x8000, 0x0001, 0xFF81], np.uint16)
                units[-16 * spec.shape[1] :: 7] = rng.choice(special, units[-16 * spec.shape[1] :: 7].size)
    return new


class Trainer:
    """A trainer with its hub, on loopback."""

    def __init__(self, store: Path, **options: Any) -> None:
        self._loop = BackgroundLoop("test-trainer")
        config = TrainerConfig(
            store=store, key=KEY, host="127.0.0.1", hub_port=0, port=0, probe=False, plan=False, **options
        )
        self.node: TrainerNode = self._loop.run(lambda: TrainerNode(config))
        self._loop.call(self.node.start())

    def publish(self, checkpoint: Path) -> int:
        """Publish a checkpoint; returns its version."""
        with Checkpoint.open(checkpoint) as opened:
            event = self._loop.call(self.node.publish(CheckpointSource(opened, files_signature(checkpoint))))
        assert isinstance(event, Published)
        return event.version

    def join(self, **options: Any) -> dict[str, Any]:
        """Returns the arguments that an engine is initialised with."""
        trust = [public_text(KEY.public_key().public_bytes_raw())]
        return {"hub_url": self.node.hub_url, "trust": trust, "host": "127.0.0.1", **options}

    def close(self) -> None:
        self._loop.call(self.node.stop())
        self._loop.close()


@contextmanager
def trainer(store: Path, **options: Any) -> Iterator[Trainer]:
    made = Trainer(store, **options)
    try:
        yield made
    finally:
        made.close()


def engine_options(model: Path, tp: int = 1, **options: Any) -> dict[str, Any]:
    """Returns the arguments of a small engine."""
    return {
        "model": str(model),
        "dtype": "bfloat16",
        "enforce_eager": True,
        "kv_cache_memory_bytes": 32 << 20,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "skip_tokenizer_init": True,
        "tensor_parallel_size": tp,
        "weight_transfer_config": {"backend": "p2psync"},
        **options,
    }


@asynccontextmanager
async def engine(model: Path, tp: int = 1, **options: Any) -> AsyncIterator[Any]:
    """An AsyncLLM."""
    os.environ.update(ENVIRONMENT)
    take_forks()
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_options(model, tp, **options)))
    try:
        yield llm
    finally:
        llm.shutdown()


async def greedy(llm: Any, prompt: list[int], tokens: int = 12) -> tuple[list[int], list[float]]:
    """Greedy tokens and their logprobs."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=1, ignore_eos=True, detokenize=False)
    last = None
    async for output in llm.generate({"prompt_token_ids": prompt}, params, request_id=f"greedy-{time.monotonic_ns()}"):
        last = output.outputs[0]
    assert last is not None and last.logprobs is not None
    found = [row[token].logprob for row, token in zip(last.logprobs, last.token_ids, strict=True)]
    return list(last.token_ids), found


async def spoil(llm: Any) -> None:
    """Fills every block of the cache by prompts of tokens whose rows `stepped` makes non-finite."""
    await asyncio.gather(*(greedy(llm, [500 + k % 15] * 500, 1) for k in range(150)))


async def status(llm: Any) -> dict[str, Any]:
    """Returns the status of rank 0."""
    found: dict[str, Any] = (await llm.collective_rpc("p2psync_status"))[0]
    return found


async def reached(llm: Any, version: int) -> None:
    """Wait until a version is live."""
    async with asyncio.timeout(TIMEOUT):
        while (await status(llm))["version"] != version:  # noqa: ASYNC110 - another process is asked
            await asyncio.sleep(0.02)


async def checksums(llm: Any) -> dict[str, str]:
    """Returns the checksums of vLLM's own /weight_checker, of all ranks."""
    found: dict[str, str] = {}
    for rank in await llm.compute_weight_checksums():
        found |= rank
    return found


async def reload(llm: Any, checkpoint: Path) -> None:
    """Makes an engine load a checkpoint by vLLM's own loader."""
    await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(checkpoint)})
    await llm.reset_prefix_cache()


def save_tokenizer(into: Path) -> None:
    """A tokenizer of words t0, t1, …, so that a server can be asked over its OpenAI routes."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{k}": k for k in range(_SIZES["vocab_size"])}
    made = Tokenizer(models.WordLevel(words, unk_token="t0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="t0", eos_token="t0").save_pretrained(into)


class Server:
    """An OpenAI-compatible vLLM server in a process of its own."""

    def __init__(
        self,
        model: Path,
        log: Path,
        flags: Mapping[str, str] | None = None,
        *,
        forked: bool = True,
        **environment: str,
    ) -> None:
        """forked: from a process that has imported vLLM already; else it is the command that a user would give."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = {k: v for k, v in engine_options(model).items() if k not in ("skip_tokenizer_init", "enforce_eager")}
        options |= {"weight_transfer_config": '{"backend": "p2psync"}', **(flags or {})}
        words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        words += ["--enforce-eager", f"--port={self.port}", "--host=127.0.0.1", "--served-model-name=policy"]
        self._log = log
        start = start_forked if forked else start_plain
        self.process = start(words, log, os.environ | ENVIRONMENT | {"VLLM_SERVER_DEV_MODE": "1"} | environment)

    def ready(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + TIMEOUT
        while not self.healthy():
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.05)

    def told(self) -> str:
        """The end of its log."""
        return self._log.read_text()[-4000:]

    def healthy(self) -> bool:
        """Returns whether /health answers with 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
                return int(answer.status) == 200
        except OSError:
            return False

    def ask(self, route: str, body: object = None, limit: float = TIMEOUT) -> Any:
        """GET, or POST of a body. Raises OSError, and TimeoutError after `limit` seconds of silence."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{route}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=limit) as answer:
            return json.loads(answer.read() or b"null")

    def complete(self, tokens: int = 8, prompt: str = "t1 t2 t3", limit: float = TIMEOUT) -> Any:
        """A greedy completion with logprobs."""
        body = {"model": "policy", "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "logprobs": 1}
        choice = self.ask("v1/completions", body | {"ignore_eos": True}, limit)["choices"][0]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    def close(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
