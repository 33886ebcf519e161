"""vLLM in this very process: commits between two calls, a write that fails, weights that are lost, and refusals."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_parts import ENVIRONMENT, TIMEOUT, engine_options, save, stepped, trainer

from p2psync.engines.vllm.conductor import commit_now
from p2psync.engines.vllm.rank_writer import RankWriter
from p2psync.errors import EngineError, UnvouchedError

pytestmark = pytest.mark.vllm


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Starts an LLM in this process."""
    for name, value in {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
        monkeypatch.setenv(name, value)
    import vllm
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    def made(model: Path, **options: Any) -> Any:
        return vllm.LLM(**engine_options(model, distributed_executor_backend="uni", **options))

    yield made
    gc.collect()
    cleanup_dist_env_and_memory()


def outputs(llm: Any) -> Any:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=1, ignore_eos=True, detokenize=False)
    (found,) = llm.generate([{"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)
    one = found.outputs[0]
    return list(one.token_ids), [row[t].logprob for row, t in zip(one.logprobs, one.token_ids, strict=True)]


def checksums(llm: Any) -> Any:
    return llm.collective_rpc("compute_weight_checksums")[0]


def test_an_offline_engine_commits_between_two_calls_and_a_failed_commit_leaves_no_trace(
    tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [save("llama", tmp_path / "0")]
    with trainer(tmp_path / "run") as source:
        source.publish(steps[0])
        llm = start(steps[0])
        before, first = checksums(llm), outputs(llm)
        llm.init_weight_transfer_engine({"init_info": source.join()})
        commit_now(llm, 0, TIMEOUT)
        assert (checksums(llm), outputs(llm)) == (before, first)
        with pytest.raises(EngineError, match="version 7 is not staged"):
            commit_now(llm, 7)

        steps.append(stepped(steps[0], tmp_path / "1", 1, 0.2))
        source.publish(steps[1])
        _break_once(monkeypatch)
        with pytest.raises(EngineError, match="are as they were"):
            commit_now(llm, 1, TIMEOUT)
        assert (checksums(llm), outputs(llm)) == (before, first)
        commit_now(llm, 1, TIMEOUT)
        after, second = checksums(llm), outputs(llm)
        assert after != before
        assert second != first
        assert llm.get_weight_version() == "1"
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(steps[1])})
        llm.reset_prefix_cache()
        assert (checksums(llm), outputs(llm)) == (after, second), "a fresh load is what was committed"

        source.publish(stepped(steps[1], tmp_path / "2", 2))
        monkeypatch.setattr(RankWriter, "write", _lose)
        with pytest.raises(UnvouchedError, match="between two versions"):
            commit_now(llm, 2, TIMEOUT)
        with pytest.raises(Exception, match="restart the engine"):
            outputs(llm)
        llm.shutdown_weight_transfer_engine()


def _break_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the next commit fail in the middle of writing."""
    prepare = RankWriter.prepare

    def breaking(writer: RankWriter, edits: Any) -> None:
        monkeypatch.setattr(RankWriter, "prepare", prepare)
        prepare(writer, edits)

        def fail() -> None:
            raise RuntimeError("the device fell off")

        writer._writes.insert(len(writer._writes) // 2, fail)

    monkeypatch.setattr(RankWriter, "prepare", breaking)


def _lose(writer: RankWriter) -> None:
    writer._writes[0]()
    raise ZeroDivisionError("and could not be undone")


def test_nan_that_a_version_left_in_the_cache_does_not_reach_later_answers(
    tmp_path: Path, start: Callable[..., Any]
) -> None:
    sound = save("llama", tmp_path / "0")
    nonfinite = stepped(sound, tmp_path / "1", 1, nan=True)
    with trainer(tmp_path / "run") as source:
        source.publish(sound)
        llm = start(sound)
        llm.init_weight_transfer_engine({"init_info": source.join()})
        commit_now(llm, 0, TIMEOUT)
        before = outputs(llm)
        source.publish(nonfinite)
        commit_now(llm, 1, TIMEOUT)
        fill(llm)
        source.publish(sound)
        commit_now(llm, 2, TIMEOUT)
        assert outputs(llm) == before
        llm.shutdown_weight_transfer_engine()


def fill(llm: Any) -> None:
    """Fills every block of the cache by prompts of the tokens whose rows `stepped` makes non-finite."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
    prompts = [{"prompt_token_ids": [500 + k % 15] * 500} for k in range(400)]
    llm.generate(prompts, params, use_tqdm=False)


def test_unsupported_engines_are_refused_at_the_start(tmp_path: Path, start: Callable[..., Any]) -> None:
    model = save("qwen2", tmp_path / "0")
    with pytest.raises(EngineError, match="in the checkpoint's dtype"):
        start(model, dtype="float16")
    with pytest.raises(EngineError, match="does not support LoRA"):
        start(model, enable_lora=True, max_lora_rank=8)
    with pytest.raises(EngineError, match="load format dummy"):
        start(model, load_format="dummy")
