"""Prompts and results between the ledger and the actors, and an actor's work on them.

The structs are plain data (msgspec encodes them as JSON or MessagePack); moving them is somebody else's matter.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from p2psync.rldemo.config import DemoConfig
from p2psync.rldemo.model import Policy, generate
from p2psync.rldemo.task import EOS, decode, encode, reward, sample_prompts


class RolloutTask(msgspec.Struct, frozen=True):
    """Prompts, each to be answered `group_size` times. The seed makes the answers repeatable anywhere."""

    item_id: int
    seed: int
    prompts: list[str]
    group_size: int
    max_new_tokens: int
    temperature: float


class Sample(msgspec.Struct, frozen=True):
    """One completion up to and with its end token, its log-probabilities when sampled, and its reward."""

    tokens: list[int]
    logprobs: list[float]
    reward: float


class Group(msgspec.Struct, frozen=True):
    """All samples of one prompt; their rewards are compared with each other only."""

    prompt: list[int]
    samples: list[Sample]


class RolloutResult(msgspec.Struct, frozen=True):
    """The answer to a work item, and the version of the policy that gave it."""

    item_id: int
    version: int
    groups: list[Group]

    def mean_reward(self) -> float:
        """Over all samples, in 0..1."""
        return float(np.mean([sample.reward for group in self.groups for sample in group.samples]))


def make_tasks(config: DemoConfig, batch: int, count: int | None = None) -> list[RolloutTask]:
    """The work of one training batch; the same (config.seed, batch) gives the same prompts and sampling seeds."""
    rng = np.random.default_rng((config.seed, batch))
    count = count or config.prompts_per_version // config.prompts_per_item
    return [_make_task(config, batch * count + index, rng) for index in range(count)]


def _make_task(config: DemoConfig, item_id: int, rng: np.random.Generator) -> RolloutTask:
    return RolloutTask(
        item_id=item_id,
        seed=int(rng.integers(2**62)),
        prompts=sample_prompts(rng, config.prompts_per_item),
        group_size=config.group_size,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
    )


def generator_for(item: RolloutTask) -> torch.Generator:
    """The random numbers that belong to an item, wherever it is worked on."""
    return torch.Generator().manual_seed(item.seed)


def roll_out(policy: Policy, item: RolloutTask, generator: torch.Generator, version: int) -> RolloutResult:
    """Answer an item with the weights the policy has now; they must not change until this returns."""
    prompts = [encode(prompt) for prompt in item.prompts]
    rows = torch.tensor(prompts).repeat_interleave(item.group_size, dim=0)
    tokens, logprobs = generate(policy, rows, item.max_new_tokens, item.temperature, generator)
    samples = _samples(item, tokens.tolist(), logprobs.tolist())
    size = item.group_size
    groups = [Group(prompt, samples[i * size : (i + 1) * size]) for i, prompt in enumerate(prompts)]
    return RolloutResult(item.item_id, version, groups)


def _samples(item: RolloutTask, tokens: list[list[int]], logprobs: list[list[float]]) -> list[Sample]:
    """Rows cut after their end token, with rewards; row i answers prompt i // group_size."""
    samples = []
    for row, (ids, scores) in enumerate(zip(tokens, logprobs, strict=True)):
        prompt = item.prompts[row // item.group_size]
        length = _length(ids)
        samples.append(Sample(ids[:length], scores[:length], reward(prompt, ids)))
    return samples


def _length(ids: list[int]) -> int:
    return ids.index(EOS) + 1 if EOS in ids else len(ids)


def show(result: RolloutResult, limit: int = 4) -> list[str]:
    """A few samples as text, for people: '47+38=85 (right)'."""
    lines = []
    for group in result.groups[:limit]:
        sample = group.samples[0]
        verdict = "right" if sample.reward else "wrong"
        lines.append(f"{decode(group.prompt)}{decode(sample.tokens)} ({verdict})")
    return lines
