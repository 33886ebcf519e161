"""The settings of the demonstration, in one place, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoConfig:
    """Hyper-parameters of the run; the defaults are those whose figures `python -m rldemo.local` prints."""

    versions: int = 20
    prompts_per_version: int = 64
    prompts_per_item: int = 8
    group_size: int = 16
    max_new_tokens: int = 8
    temperature: float = 1.0

    learning_rate: float = 1e-5
    warmup_versions: int = 0
    beta1: float = 0.9
    beta2: float = 0.95
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    minibatches: int = 2
    epochs: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.28
    advantage_eps: float = 1e-4
    rows_per_pass: int = 512

    seed: int = 1
