"""Real vLLM engines follow every version bit for bit, while requests run: `pytest -m vllm`, where vLLM is installed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from vllm_parts import PROMPT, checksums, engine, greedy, reached, reload, save, spoil, stepped, trainer

from p2psync.engines.vllm.conductor import ConductedCommit, conducted

pytestmark = pytest.mark.vllm
COMMITS = 20


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("name", ["qwen3", "llama", "qwen2"])
async def test_after_each_commit_under_load_an_engine_is_a_fresh_load(tmp_path: Path, name: str, tp: int) -> None:
    steps = [save(name, tmp_path / "0")]
    commits: list[ConductedCommit] = []
    with trainer(tmp_path / "run") as source:
        source.publish(steps[0])
        async with engine(steps[0], tp) as llm, engine(steps[0], tp) as fresh:
            from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

            await llm.init_weight_transfer_engine(WeightTransferInitRequest(source.join()))
            async with conducted(llm, on_commit=commits.append):
                await reached(llm, 0)
                assert await checksums(llm) == await checksums(fresh), "a map was learned, and nothing was changed"
                for number in range(1, COMMITS + 1):
                    nonfinite = number == 2
                    steps.append(stepped(steps[-1 - (number == 3)], tmp_path / str(number), number, nan=nonfinite))
                    load = [asyncio.create_task(greedy(llm, [k, 9, 8], 60)) for k in range(3)]
                    version = source.publish(steps[-1])
                    assert version == number
                    await reached(llm, version)
                    for tokens, _ in await asyncio.gather(*load):
                        assert len(tokens) == 60, "a request in flight was lost"
                    if nonfinite:
                        await spoil(llm)
                    await reload(fresh, steps[-1])
                    assert await checksums(llm) == await checksums(fresh)
                    # NaN rows of a tied embedding leave no logits that could be compared.
                    assert nonfinite or await greedy(llm, PROMPT) == await greedy(fresh, PROMPT)
                    assert await llm.get_weight_version() == str(version)
    assert [commit.version for commit in commits] == list(range(1, COMMITS + 1))
