"""GRPO in plain torch: bf16 weights as the actors run them, fp32 masters under AdamW.

Advantages are taken within a prompt's group of answers (Shao et al. 2024), the objective is PPO's clipped one against
the log-probabilities that came with the answers (Schulman et al. 2017), so answers that are a version old are corrected
for; it is averaged over tokens, and there is no KL term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from wire import Sample

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
#: Answers computed at a time, which bounds the memory.
ROWS = 16


@dataclass(frozen=True)
class Group:
    """A prompt and its answers."""

    prompt: list[int]
    samples: list[Sample]
    rewards: list[float]


class Learner:
    """Turns groups of answers into new masters. It never writes the model: publishing does, from `masters`."""

    def __init__(self, model: PreTrainedModel, rate: float) -> None:
        """model: bf16, on any device."""
        self.model = model
        self.masters = {name: weight.detach().float().clone() for name, weight in model.named_parameters()}
        self._optimizer = torch.optim.AdamW(self.masters.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, groups: Sequence[Group]) -> None:
        """One step of the optimizer. Groups whose answers were all as good as each other teach nothing."""
        rows = [
            (group.prompt, *pair) for group in groups for pair in zip(group.samples, advantages(group), strict=True)
        ]
        rows = [row for row in rows if row[2] != 0.0]
        if not rows:
            return
        tokens = sum(len(sample.tokens) for _, sample, _ in rows)
        self._optimizer.zero_grad(set_to_none=True)
        for start in range(0, len(rows), ROWS):
            prompts, samples, gains = zip(*rows[start : start + ROWS], strict=True)
            (self._loss(prompts, samples, torch.tensor(gains)) / tokens).backward()
            self._collect()
        torch.nn.utils.clip_grad_norm_(self.masters.values(), 1.0)
        self._optimizer.step()

    def _loss(self, prompts: Sequence[list[int]], samples: Sequence[Sample], gains: Tensor) -> Tensor:
        """The negative objective, summed over tokens."""
        device = self.model.device
        width = max(len(prompt) for prompt in prompts)
        length = max(len(sample.tokens) for sample in samples)
        ids = torch.zeros(len(prompts), width + length, dtype=torch.int64)
        real = torch.zeros(len(prompts), width + length, dtype=torch.int64)
        old = torch.zeros(len(prompts), length)
        for row, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
            end = width + len(sample.tokens)  # prompts end, and answers begin, in the same column
            ids[row, width - len(prompt) : end] = torch.tensor(prompt + sample.tokens)
            real[row, width - len(prompt) : end] = 1
            old[row, : len(sample.logprobs)] = torch.tensor(sample.logprobs)
        places = (real.cumsum(1) - 1).clamp(min=0)
        ids, real, old, gains = (tensor.to(device) for tensor in (ids, real, old, gains))
        logits = self.model(
            input_ids=ids,
            attention_mask=real,
            position_ids=places.to(device),
            logits_to_keep=length + 1,
            use_cache=False,
        ).logits[:, :-1]
        answers = ids[:, width:, None]
        new = torch.log_softmax(logits.float(), -1).gather(-1, answers)[..., 0]
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
        return -(torch.minimum(ratio * gains[:, None], clipped * gains[:, None]) * real[:, width:]).sum()

    def _collect(self) -> None:
        """Add the bf16 gradients to those of the masters, in fp32."""
        for name, weight in self.model.named_parameters():
            if weight.grad is not None:
                master, grad = self.masters[name], weight.grad.float()
                master.grad = grad if master.grad is None else master.grad.add_(grad)
                weight.grad = None


def advantages(group: Group) -> list[float]:
    """(reward − mean) / standard deviation of the group; all 0 where rewards are equal."""
    rewards = torch.tensor(group.rewards)
    spread = rewards.std(correction=0)
    return ((rewards - rewards.mean()) / spread).tolist() if spread > 0 else [0.0] * len(rewards)
