"""GRPO (Shao et al. 2024) with fp32 masters and bf16 published weights.

The advantage of a sample is its reward against its group's: (r - mean) / (std + eps). The objective is PPO's clipped
one (Schulman et al. 2017) with the ratio taken against the behaviour log-probabilities that came with the rollout, so
a rollout that is a version old is corrected for; the upper clip is the wider one, as in DAPO (Yu et al. 2025), and
the loss is averaged over tokens. There is no KL term.

Gradients are taken at the bf16 values, which are what the actors run; AdamW moves the fp32 masters, which remember the
small moves that bf16 can not show: an element's published bits change with probability
min(1, |move| / ulp(w)), a few per cent at the usual learning rates. That formula holds for masters that lie anywhere
between two roundings, as they do in the midst of a run; see `masters_within`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from p2psync.rldemo.config import DemoConfig
from p2psync.rldemo.model import Policy, completion_logprobs, working_copy
from p2psync.rldemo.rollout import Group
from p2psync.rldemo.task import PAD

T = TypeVar("T")


@dataclass(frozen=True)
class StepStats:
    """The figures of one call of `Learner.step`."""

    reward: float  # mean over all samples given
    samples: int
    used_samples: int  # those of groups whose rewards differ; the others have no gradient
    optimizer_steps: int
    loss: float  # mean over the optimizer steps
    grad_norm: float  # before clipping, mean over the optimizer steps
    ratio_mean: float  # importance ratio against the behaviour policy, mean over tokens
    clip_fraction: float  # of the tokens, where the clipped term was the smaller
    entropy: float  # estimate: mean negative log-probability of the sampled tokens, nats per token


@dataclass(frozen=True)
class Batch:
    """Samples as tensors; all rows have prompts of one width."""

    prompts: Tensor  # int64 [rows, prompt length]
    completions: Tensor  # int64 [rows, n], PAD after the end
    behaviour: Tensor  # fp32 [rows, n], log-probabilities when sampled
    mask: Tensor  # fp32 [rows, n], 1 on real tokens
    advantages: Tensor  # fp32 [rows]

    def __len__(self) -> int:
        return self.prompts.shape[0]

    def take(self, rows: Tensor) -> Batch:
        fields = (self.prompts, self.completions, self.behaviour, self.mask, self.advantages)
        return Batch(*(field[rows] for field in fields))

    def trimmed(self) -> Batch:
        """The same without the columns in which no row has a token."""
        width = int(self.mask.sum(1).max())
        parts = (self.completions[:, :width], self.behaviour[:, :width], self.mask[:, :width])
        return Batch(self.prompts, *parts, self.advantages)


def group_advantages(rewards: Sequence[float], eps: float) -> list[float]:
    """(r - mean) / (population std + eps); all zero where the rewards are equal."""
    values = torch.tensor(rewards, dtype=torch.float64)
    centred = values - values.mean()
    scaled: list[float] = (centred / (centred.square().mean().sqrt() + eps)).tolist()
    return scaled


def make_batch(groups: Sequence[Group], eps: float) -> Batch | None:
    """The samples that have a gradient, padded on the right; None when there are none."""
    rows = []
    for group in groups:
        advantages = group_advantages([sample.reward for sample in group.samples], eps)
        if any(advantages):
            rows += [(group.prompt, s, a) for s, a in zip(group.samples, advantages, strict=True)]
    if not rows:
        return None
    width = max(len(sample.tokens) for _, sample, _ in rows)
    return Batch(
        prompts=torch.tensor([prompt for prompt, _, _ in rows]),
        completions=torch.tensor([_pad(s.tokens, width, PAD) for _, s, _ in rows]),
        behaviour=torch.tensor([_pad(s.logprobs, width, 0.0) for _, s, _ in rows]),
        mask=torch.tensor([_pad([1.0] * len(s.tokens), width, 0.0) for _, s, _ in rows]),
        advantages=torch.tensor([advantage for _, _, advantage in rows]),
    )


def _pad(values: list[T], width: int, fill: T) -> list[T]:
    return values + [fill] * (width - len(values))


def clipped_objective(
    logprobs: Tensor, behaviour: Tensor, advantages: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """PPO's min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) per token, and the ratio; all fp32 [rows, n]."""
    ratio = (logprobs - behaviour).exp()
    plain = ratio * advantages[:, None]
    clipped = ratio.clamp(1 - low, 1 + high) * advantages[:, None]
    return torch.minimum(plain, clipped), ratio


def masters_within(weight: Tensor, generator: torch.Generator) -> Tensor:
    """fp32 masters that round to these bf16 weights bit for bit, at random places within half an ulp of them.

    Masters that started exactly on the bf16 values would all be half an ulp from their first visible change. Adam
    moves them at nearly one speed, so whole binades of weights would change in the same version: spikes of twice the
    usual size each time that the way travelled has doubled. A run that has gone on for a while has no such memory.

    fp32 bits are bf16 bits and 16 more, and both are ordered like integers of sign and magnitude: adding less than
    0x8000 to the magnitude, or taking it away, leaves the rounding as it was.
    """
    bits = weight.detach().float().view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    moved = magnitude + torch.randint(-0x7FFF, 0x8000, bits.shape, generator=generator, dtype=torch.int32)
    # zero has no magnitude to give away, and infinities and NaN have no room either way
    safe = (moved >= 0) & (magnitude < 0x7F7F0000)
    return torch.where(safe, (bits ^ magnitude) | moved, bits).view(torch.float32)


class Learner:
    """Owns the fp32 masters and the optimizer of one live bf16 policy, which it rewrites in place at each step."""

    def __init__(self, policy: Policy, config: DemoConfig) -> None:
        self.policy, self.config = policy, config
        self.steps = 0
        self._net = working_copy(policy)  # computes at the published values
        self._names = [name for name, _ in policy.named_parameters()]
        places = torch.Generator().manual_seed(config.seed)
        self._masters = [masters_within(weight, places) for weight in policy.parameters()]
        self._shuffle = torch.Generator().manual_seed(config.seed)
        self._optimizer = torch.optim.AdamW(
            self._masters,
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )

    @property
    def masters(self) -> dict[str, Tensor]:
        """The fp32 masters by parameter name (the tensors themselves, not copies)."""
        return dict(zip(self._names, self._masters, strict=True))

    def step(self, groups: Sequence[Group]) -> StepStats:
        """One version: some optimizer steps on these rollouts, then the masters rounded into the live policy."""
        batch = make_batch(groups, self.config.advantage_eps)
        totals = torch.zeros(6, dtype=torch.float64)
        updates = 0
        if batch is not None:
            for rows in self._minibatches(len(batch)):
                totals += self._update(batch.take(rows))
                updates += 1
        self._publish()
        self.steps += 1
        return _stats(groups, batch, updates, totals)

    def _minibatches(self, rows: int) -> list[Tensor]:
        parts: list[Tensor] = []
        for _ in range(self.config.epochs):
            order = torch.randperm(rows, generator=self._shuffle)
            parts += [part for part in order.chunk(self.config.minibatches) if len(part)]
        return parts

    def _update(self, batch: Batch) -> Tensor:
        """One optimizer step. Returns sums: loss, gradient norm, then over tokens ratio, clipped, -logprob, count."""
        self._net.zero_grad(set_to_none=True)
        tokens = batch.mask.sum()
        sums = torch.zeros(6, dtype=torch.float64)
        # Rows of about one length go together: what pads the shorter ones costs as much as tokens.
        order = batch.mask.sum(1).argsort(stable=True)
        for rows in torch.split(order, self.config.rows_per_pass):
            sums += self._backward(batch.take(rows).trimmed(), tokens)
        for master, weight in zip(self._masters, self._net.parameters(), strict=True):
            master.grad = weight.grad
        norm = torch.nn.utils.clip_grad_norm_(self._masters, self.config.grad_clip)
        sums[1] = float(norm)
        self._set_rate()
        self._optimizer.step()
        self._round()
        return sums

    def _backward(self, part: Batch, tokens: Tensor) -> Tensor:
        """Add the gradient of a part of a minibatch of `tokens` tokens; rows_per_pass bounds the memory."""
        config = self.config
        logprobs = completion_logprobs(self._net, part.prompts, part.completions, config.temperature)
        gain, ratio = clipped_objective(logprobs, part.behaviour, part.advantages, config.clip_low, config.clip_high)
        loss = -(gain * part.mask).sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            clipped = (gain < ratio * part.advantages[:, None]).float()
            shown = [(x * part.mask).sum() for x in (ratio, clipped, -logprobs)]
            return torch.stack([loss, loss * 0, *shown, part.mask.sum()]).double()

    def _set_rate(self) -> None:
        """Linear warm-up over the first versions, then constant."""
        ramp = min(1.0, (self.steps + 1) / (self.config.warmup_versions + 1))
        for group in self._optimizer.param_groups:
            group["lr"] = self.config.learning_rate * ramp

    @torch.no_grad()
    def _round(self) -> None:
        for master, weight in zip(self._masters, self._net.parameters(), strict=True):
            weight.copy_(master.bfloat16())

    @torch.no_grad()
    def _publish(self) -> None:
        for master, weight in zip(self._masters, self.policy.parameters(), strict=True):
            weight.copy_(master.bfloat16())

    def state_dict(self) -> dict[str, Any]:
        """Returns the state to go on bit for bit after a restart: masters, optimizer, shuffling, step count."""
        return {
            "masters": {name: master.clone() for name, master in self.masters.items()},
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "shuffle": self._shuffle.get_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a saved state, and write its weights into the live policy."""
        for name, master in self.masters.items():
            master.copy_(state["masters"][name])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._shuffle.set_state(state["shuffle"])
        self.steps = state["steps"]
        self._round()
        self._publish()


def _stats(groups: Sequence[Group], batch: Batch | None, updates: int, totals: Tensor) -> StepStats:
    rewards = [sample.reward for group in groups for sample in group.samples]
    loss, norm, ratio, clipped, entropy, tokens = (float(x) for x in totals)
    return StepStats(
        reward=sum(rewards) / max(1, len(rewards)),
        samples=len(rewards),
        used_samples=0 if batch is None else len(batch),
        optimizer_steps=updates,
        loss=loss / max(1, updates),
        grad_norm=norm / max(1, updates),
        ratio_mean=ratio / max(1.0, tokens),
        clip_fraction=clipped / max(1.0, tokens),
        entropy=entropy / max(1.0, tokens),
    )
