"""Makes the shipped policy by supervised training on a sloppy teacher.

    python -m p2psync.rldemo.warmstart --out rldemo/weights/warm.safetensors

First the policy learns the task from right answers, then to imitate somebody who knows it but is careless: right less
than half of the time, and else making one of the usual slips. What results is a policy that can do the task and often
does not: the state in which reinforcement learning with a verifiable reward finds most language models, and one from
which a few small steps show. Deterministic for a seed, a torch build and one thread.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from p2psync.rldemo.model import WARM_START, Policy, PolicyConfig, generate, save_policy
from p2psync.rldemo.task import (
    EOS,
    MAX_COMPLETION_LEN,
    PAD,
    PROMPT_LEN,
    answer,
    encode,
    operands,
    reward,
    sample_prompts,
    work,
)

IGNORE = -100
BATCH = 128

# The final norm's gain in the second part: how strongly the logits react to small moves of the hidden state. A wide
# network reacts by its width; one of this size would not: the moves that bf16 shows in a few per cent of the elements,
# a few thousandths of each weight in twenty versions, would add up to nothing to be seen. Measured first-order rise of
# the pass rate per version at 3 % changed: 0.0006 at gain 1, 0.005 at 8, 0.013 at 24.
FINAL_GAIN = 24.0


@dataclass(frozen=True)
class Teacher:
    """The writers that the policy imitates: how often they write their work down, and are right with and without it."""

    works: float
    right_with_work: float
    right_without: float


CAREFUL = Teacher(works=0.5, right_with_work=1.0, right_without=1.0)
SLOPPY = Teacher(works=0.25, right_with_work=0.96, right_without=0.0)


def slip(prompt: str, rng: np.random.Generator) -> str:
    """A wrong sum of a usual kind: one or ten (a carry) too many or too few."""
    right = sum(operands(prompt))
    choices = [right + 1, right - 1, right + 10, right - 10]
    return str(choices[rng.integers(len(choices))])


def teach(prompt: str, teacher: Teacher, rng: np.random.Generator) -> str:
    """One completion of the teacher's."""
    works = rng.random() < teacher.works
    right = rng.random() < (teacher.right_with_work if works else teacher.right_without)
    return (work(prompt) if works else "") + (answer(prompt) if right else slip(prompt, rng))


def make_batch(rng: np.random.Generator, size: int, teacher: Teacher) -> tuple[Tensor, Tensor]:
    """Inputs and next-token targets, int64 [size, PROMPT_LEN + MAX_COMPLETION_LEN - 1]; prompts are not targets."""
    rows, targets = [], []
    for prompt in sample_prompts(rng, size):
        completion = [*encode(teach(prompt, teacher, rng)), EOS]
        padding = MAX_COMPLETION_LEN - len(completion)
        rows.append([*encode(prompt), *completion, *[PAD] * padding])
        targets.append([IGNORE] * PROMPT_LEN + completion + [IGNORE] * padding)
    return torch.tensor(rows)[:, :-1], torch.tensor(targets)[:, 1:]


def supervise(net: Policy, rng: np.random.Generator, steps: int, peak: float, teacher: Teacher) -> None:
    """Trains on the texts of a teacher, by AdamW with a short warm-up and a cosine to zero."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    start = time.perf_counter()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
        inputs, targets = make_batch(rng, BATCH, teacher)
        loss = F.cross_entropy(net(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1:5d}  loss {loss.item():.4f}  {time.perf_counter() - start:.0f} s", flush=True)


def pass_rate(policy: Policy, seed: int, prompts: int = 2048, temperature: float = 1.0) -> float:
    """Share of right samples, one for each of some fresh prompts."""
    texts = sample_prompts(np.random.default_rng(seed), prompts)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor([encode(text) for text in texts])
    tokens, _ = generate(policy, rows, MAX_COMPLETION_LEN, temperature, generator)
    return float(np.mean([reward(text, ids) for text, ids in zip(texts, tokens.tolist(), strict=True)]))


def make_policy(seed: int, learn_steps: int, sloppy_steps: int) -> Policy:
    """The whole recipe: learn, grow careless, round to bf16."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = Policy(PolicyConfig(), dtype=torch.float32)
    net.initialize(seed)
    supervise(net, rng, learn_steps, peak=1.5e-3, teacher=CAREFUL)
    print(f"learnt: pass rate {pass_rate(net, seed):.3f}", flush=True)
    net.model.norm.weight.data *= FINAL_GAIN
    supervise(net, rng, sloppy_steps, peak=3e-4, teacher=SLOPPY)
    return net.to(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=WARM_START)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learn-steps", type=int, default=400)
    parser.add_argument("--sloppy-steps", type=int, default=450)
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = make_policy(args.seed, args.learn_steps, args.sloppy_steps)
    save_policy(policy, args.out)
    rates = [pass_rate(policy, seed=1, temperature=t) for t in (1.0, 0.01)]
    print(f"wrote {args.out}: pass rate {rates[0]:.3f} at temperature 1, {rates[1]:.3f} greedy")


if __name__ == "__main__":
    main()
