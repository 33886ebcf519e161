"""Compares the live weights after each commit with a fresh load, in real vLLM on many architectures.

    python -m tests.vllm_engine.matrix [NAME …] [--quick] [--amx] [--json FILE] [--write PAGE]

Each architecture has a process for the engine that follows, and one for the fresh loads. All parameters and
buffers are compared bit for bit, and greedy tokens with their log-probabilities. What comes out is a table of: exact;
refused, with the engine's reason; wrong, with the differences. Exits 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import json
import logging.config
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from architectures import ARCHITECTURES, QUICK, save
from simulated_amx import hide_amx, simulate_amx
from vllm_forks import ENVIRONMENT, process_of
from vllm_parts import TIMEOUT, engine_options, trainer

from p2psync.delta.tensors import TensorKind
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.vllm.conductor import commit_now

VERSIONS = 3
#: Seconds for a version of a tiny model to come and go live.
COMMIT = 40.0
#: The environment variable that shows vLLM's output, and tokens that differ.
VERBOSE = "P2PSYNC_MATRIX_VERBOSE"
#: Seconds for one process of one architecture; a hang is told as such.
LIMIT = 240.0
PROMPTS = ([1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 300, 301])


def try_architecture(name: str, *, amx: bool, versions: int = VERSIONS) -> tuple[str, str]:
    """(outcome, detail): "exact", "refused" with the engine's reason, "wrong" with the differences, or "failed" where
    vLLM itself does not run the model here."""
    with tempfile.TemporaryDirectory(prefix="p2psync-matrix-") as made:
        folder = Path(made)
        steps = [folder / str(number) for number in range(versions + 1)]
        if (failure := run_alone(save, name, steps[0])) is not None:
            return "failed", failure
        for number in range(1, len(steps)):
            step(steps[number - 1], steps[number], number)
        dtype = ARCHITECTURES[name].dtype
        live = folder / "live.json"
        if (failure := run_alone(follow, steps, dtype, amx, live)) is not None:
            return ("refused" if failure.startswith("EngineError: ") else "failed"), failure
        seen = json.loads(live.read_text())
        fresh = folder / "fresh.json"
        if (failure := run_alone(load_fresh, steps, dtype, amx, fresh)) is not None:
            return "failed", failure
        loads = json.loads(fresh.read_text())
        for number, loaded in enumerate(loads):
            if different := differences(loaded, seen[number]):
                return "wrong", f"version {number}: {different}"
    repeatable = all(loaded["repeatable"] for loaded in loads)
    return "exact", "" if repeatable else "vLLM's own answers vary from call to call, so parameters were compared alone"


def differences(fresh: dict[str, Any], live: dict[str, Any]) -> str:
    """Returns the differences between a fresh load and the live engine as a line; "" if there are none."""
    names = [name for name in fresh["bits"] if live["bits"].get(name) != fresh["bits"][name]]
    names += [name for name in live["bits"] if name not in fresh["bits"]]
    found = [f"{len(names)} tensors, such as {names[0]}"] if names else []
    if fresh["tokens"] != live["tokens"] and fresh["repeatable"]:
        found.append(f"tokens: {fresh['tokens']} is {live['tokens']}" if os.environ.get(VERBOSE) else "tokens")
    return ", ".join(found)


def step(old: Path, new: Path, seed: int, share: float = 0.01) -> None:
    """A copy of a checkpoint in which a share of each tensor's units went up or down by a few ulps."""
    shutil.copytree(old, new)
    rng = np.random.default_rng(seed)
    with Checkpoint.open(new, writable=True) as checkpoint:
        specs = [spec for spec in checkpoint.specs if spec.kind == TensorKind.TENSOR]
        moves: dict[bytes, tuple[Any, Any]] = {}
        for spec in specs:
            units = checkpoint.units(spec)
            # Tensors that are equal, as a tied output matrix, stay equal.
            key = hashlib.sha256(units.tobytes()).digest()
            if key not in moves:
                where = np.unique(rng.integers(0, units.size, max(1, int(units.size * share))))
                moves[key] = where, rng.choice(np.array([1, 2, -1, -2]), where.size).astype(units.dtype)
            where, moved = moves[key]
            # One below zero is a NaN: it would stay in vLLM's cache, and each later answer would be made of it.
            below = (units[where] & (np.iinfo(units.dtype).max >> 1) < 2) & (moved > 2)
            units[where] += np.where(below, -moved, moved)


# ---- in processes of their own -----------------------------------------------------------------------------------


def follow(steps: Sequence[Path], dtype: str, amx: bool, out: Path) -> None:
    """An engine that begins with the first checkpoint and commits the others; writes its bits and tokens after each."""
    with trainer(out.parent / "run") as source:
        source.publish(steps[0])
        llm = start(steps[0], dtype, amx)
        llm.init_weight_transfer_engine({"init_info": source.join()})
        commit_now(llm, 0, COMMIT)
        found = [look(llm)]
        for number, checkpoint in enumerate(steps[1:], start=1):
            source.publish(checkpoint)
            commit_now(llm, number, COMMIT)
            found.append(look(llm))
        llm.shutdown_weight_transfer_engine()
    out.write_text(json.dumps(found))


def load_fresh(steps: Sequence[Path], dtype: str, amx: bool, out: Path) -> None:
    """Loads each checkpoint into a fresh engine, and writes its bits and tokens to `out`."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    found = []
    for checkpoint in steps:
        llm = start(checkpoint, dtype, amx)
        found.append(look(llm))
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    out.write_text(json.dumps(found))


def follow_packed(model: Path, what: str) -> None:
    """An engine in which vLLM packs weights for AMX, though it was told not to: the output matrix, experts, or all."""
    simulate_amx()
    import vllm.plugins

    vllm.plugins.load_general_plugins()
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.oracle import unquantized

    plain, packing = utils.dispatch_cpu_unquantized_gemm, utils.dispatch_cpu_unquantized_gemm.__wrapped__
    if what == "experts":
        unquantized.backend_to_kernel_cls = unquantized.backend_to_kernel_cls.__wrapped__
    elif what == "every matrix":
        utils.dispatch_cpu_unquantized_gemm = packing
    else:
        utils.dispatch_cpu_unquantized_gemm = lambda layer, remove_weight: (plain if remove_weight else packing)(
            layer, remove_weight
        )
    start(model, "bfloat16", amx=True)


def commits_parted_head(model: Path) -> None:
    """An engine that tied an output matrix to the equal embedding, and is offered a version in which they differ."""
    apart = model.parent / "apart"
    shutil.copytree(model, apart)
    with Checkpoint.open(apart, writable=True) as checkpoint:
        (spec,) = [spec for spec in checkpoint.specs if spec.name == "lm_head.weight"]
        checkpoint.units(spec)[7] ^= 1
    with trainer(model.parent / "run") as source:
        source.publish(model)
        llm = start(model, "bfloat16", amx=False)
        llm.init_weight_transfer_engine({"init_info": source.join()})
        commit_now(llm, 0, TIMEOUT)
        before = look(llm)
        source.publish(apart)
        deadline = time.monotonic() + TIMEOUT
        while "no longer equal" not in (said := llm.collective_rpc("p2psync_status")[0])["trouble"]:
            assert time.monotonic() < deadline, said
            time.sleep(0.05)
        assert said["version"] == 0
        assert look(llm) == before
        llm.shutdown_weight_transfer_engine()


def start(model: Path, dtype: str, amx: bool) -> Any:
    """An LLM within this process."""
    (simulate_amx if amx else hide_amx)()
    import vllm

    options = engine_options(model, dtype=dtype, distributed_executor_backend="uni", kv_cache_memory_bytes=64 << 20)
    # A prompt whose beginning is cached is computed by another kernel, which rounds otherwise.
    return vllm.LLM(**options, enable_prefix_caching=False)


def look(llm: Any) -> dict[str, Any]:
    """Digests of all parameters and buffers, and greedy tokens with their log-probabilities."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=1, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    first, second = (
        [
            [[token, row[token].logprob] for row, token in zip(one.logprobs, one.token_ids, strict=True)]
            for one in (output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False))
        ]
        for _ in range(2)
    )
    return {"bits": llm.apply_model(digests)[0], "tokens": second, "repeatable": first == second}


def digests(model: Any) -> dict[str, str]:
    """Returns the SHA-256 of each parameter and buffer, by name."""
    import torch

    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {
        name: hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in named
        if tensor.numel()
    }


# ---- processes ---------------------------------------------------------------------------------------------------


def run_alone(work: Callable[..., None], *args: Any) -> str | None:
    """Call it in a process of its own; why that failed, if it did."""
    with tempfile.NamedTemporaryFile(prefix="p2psync-matrix-") as told:
        process = process_of(_tell, (told.name, work, args))
        process.start()
        process.join(LIMIT)
        if process.exitcode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
            return f"no end after {LIMIT:.0f} s"
        if process.exitcode == 0:
            return None
        return Path(told.name).read_text() or f"ended with {process.exitcode}"


def _tell(file: str, work: Callable[..., None], args: Sequence[Any]) -> None:
    os.environ.update(ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"})
    if not os.environ.get(VERBOSE):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
    _spare_the_processor()
    try:
        work(*args)
    except BaseException as error:
        traceback.print_exc()
        lines = (str(error) or repr(error)).strip().splitlines()
        Path(file).write_text(f"{type(error).__name__}: {lines[0]}")
        os._exit(1)
    os._exit(0)


def _spare_the_processor() -> None:
    """Omits work that vLLM does for long-lived processes: collections over all that was imported, one more look through
    all modules for each engine, and a process of its own to look at a model's class."""
    gc.collect = lambda *_: 0
    gc.unfreeze = lambda: None
    logging.config.dictConfig = lambda _: None
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    registry._run_in_subprocess = lambda look_at: look_at()
    register = type(current_platform).register_triton_kernel_overrides
    type(current_platform).register_triton_kernel_overrides = staticmethod(functools.cache(register))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm_engine.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="architectures (default: all)")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--amx", action="store_true", help="as on a processor with AMX")
    parser.add_argument("--versions", type=int, default=VERSIONS, help=f"how many are committed (default {VERSIONS})")
    parser.add_argument("--json", type=Path, help="a file in which outcomes are kept from run to run")
    parser.add_argument("--write", type=Path, help="write the table of what --json keeps, and try nothing")
    asked = parser.parse_args()
    kept: dict[str, dict[str, list[str]]] = {"plain": {}, "amx": {}}
    if asked.json and asked.json.exists():
        kept = json.loads(asked.json.read_text())
    if asked.write:
        asked.write.write_text(table(kept["plain"], kept["amx"]))
        return
    outcomes = kept["amx" if asked.amx else "plain"]
    wrong = False
    for name in asked.names or (QUICK if asked.quick else list(ARCHITECTURES)):
        begun = time.monotonic()
        outcome, detail = try_architecture(name, amx=asked.amx, versions=asked.versions)
        outcomes[name] = [outcome, detail]
        wrong = wrong or outcome == "wrong"
        print(f"{name}: {outcome}{': ' if detail else ''}{detail} ({time.monotonic() - begun:.0f} s)", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(kept, indent=1))
    sys.exit(wrong)


def table(plain: dict[str, list[str]], amx: dict[str, list[str]]) -> str:
    """The page of both runs."""
    lines = [PAGE, "| architecture | here | with AMX (simulated) | why |", "|---|---|---|---|"]
    for name in ARCHITECTURES:
        here, there = plain.get(name, ["not tried", ""]), amx.get(name, ["not tried", ""])
        why = here[1] if here[1] == there[1] or not there[1] else " / ".join(filter(None, [here[1], there[1]]))
        why = why.replace("EngineError: ", "")
        lines.append(f"| {name} | {here[0]} | {there[0]} | {why.replace('|', '/')} |")
    counts = {
        name: sum(outcome[0] == name for outcome in plain.values()) for name in ("exact", "refused", "wrong", "failed")
    }
    return "\n".join([*lines, "", f"In all: {', '.join(f'{count} {name}' for name, count in counts.items())}.", ""])


PAGE = """# Architectures in vLLM

Tiny random models, one for each architecture, in real vLLM on a CPU: the engine loads the model, learns where the
checkpoint's units lie, and commits three versions, in each of which 1 % of every tensor changed. Beside
it vLLM loads each version again. **exact**: all parameters and buffers are equal bit for bit, and so are greedy tokens
with their log-probabilities. **refused**: the engine said at its start why it cannot be kept exact. **wrong**: anything
else; there must be none. **failed**: vLLM or transformers does not run such a tiny model here, so nothing was tried.

Experts and matrices are computed with plain weights in these engines: what vLLM packs for a processor's kernels is
packed for each batch (experts) or not at all (`p2psync.actor.vllm.plain_weights`). AMX is simulated where it is missing
(`tests/vllm_engine/simulated_amx.py`). Made by:

    python -m tests.vllm_engine.matrix --json outcomes.json
    python -m tests.vllm_engine.matrix --json outcomes.json --amx
    python -m tests.vllm_engine.matrix --json outcomes.json --write docs/reference/vllm-architectures.md
"""


if __name__ == "__main__":
    main()
