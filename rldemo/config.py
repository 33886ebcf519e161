"""The settings of the demonstration, in one place, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoConfig:
    """Hyper-parameters of the run; the defaults are those whose figures `python -m p2psync.rldemo.local` prints."""

    versions: int = 20
    # 1024 samples a version: the gradients of two such batches have a cosine above 0.9, so more would buy little, and
    # the mean reward is known to about 0.015. Costs about 0.8 s of generation and 1.5 s of learning on one thread.
    prompts_per_version: int = 64
    prompts_per_item: int = 8  # 8 items a version: two for each of four actors, so that one that vanishes costs little
    group_size: int = 16  # a usual size; few groups have all rewards equal
    max_new_tokens: int = 8  # the longest answer with its work and end token
    temperature: float = 1.0  # the distribution that is learnt is the one that is sampled

    # The usual rate for reinforcement learning of language models. Two steps of 1e-6 a version move a weight by a few
    # per cent of its ulp, so 2 to 4 % of the bf16 elements change. Three steps: 3 to 5 %.
    learning_rate: float = 1e-6
    minibatches: int = 2
    epochs: int = 1  # each sample once: rollouts are cheap compared with a sample's second use
    warmup_versions: int = 0  # the warm start needs none: its gradients are steady from the first step
    # PyTorch's and the usual RL frameworks' AdamW. A shorter second moment (0.95) makes single versions change 7 %.
    beta1: float = 0.9
    beta2: float = 0.999
    adam_eps: float = 1e-8
    weight_decay: float = 0.0  # at these rates it would be invisible in bf16
    grad_clip: float = 1.0  # as usual; AdamW does not feel the scale, only its changes
    clip_low: float = 0.2
    clip_high: float = 0.28  # DAPO's: leaves room for unlikely tokens to become likely
    advantage_eps: float = 1e-4  # far below the least std of a group that has any (0.24 at sixteen samples)
    # Rows of a backward pass, which are padded to the longest of them: fewer pad less and read a prompt more often. No
    # effect on the result but rounding.
    rows_per_pass: int = 256

    seed: int = 1
