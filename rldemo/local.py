"""The whole loop in one process: what the demonstration's settings give, without any network.

    python -m p2psync.rldemo.local --versions 20 --seed 1

One line a version: mean reward of its rollouts, the share of bf16 elements whose bits changed, and the processor
seconds that generation and learning took (one thread; neighbours on the machine do not count). With --staleness 1 each
batch is rolled out by the version before the newest, as it is when rollouts and training overlap; with --staleness 2 by
the one before that.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from p2psync.rldemo.config import DemoConfig
from p2psync.rldemo.grpo import Learner, StepStats
from p2psync.rldemo.model import Policy, load_warm_start
from p2psync.rldemo.rollout import RolloutResult, generator_for, make_tasks, roll_out


@dataclass(frozen=True)
class VersionReport:
    """One version, as measured."""

    version: int  # the one that the rollouts led to
    stats: StepStats
    changed: float  # share of the elements, 0..1
    generate_s: float  # processor seconds
    learn_s: float  # processor seconds


def snapshot(policy: Policy) -> list[torch.Tensor]:
    """The bits of all parameters, uint16, copied."""
    return [weight.detach().view(torch.uint16).clone() for weight in policy.parameters()]


def changed_fraction(old: list[torch.Tensor], new: list[torch.Tensor]) -> float:
    """Share of the elements whose bits differ."""
    differing = sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in zip(old, new, strict=True))
    return differing / sum(a.numel() for a in old)


def roll_out_batch(policy: Policy, config: DemoConfig, batch: int, version: int) -> list[RolloutResult]:
    """All items of a batch, one after another."""
    return [roll_out(policy, item, generator_for(item), version) for item in make_tasks(config, batch)]


def train(config: DemoConfig, policy: Policy, staleness: int = 0) -> Iterator[VersionReport]:
    """Make config.versions versions of a policy, in place; yields a report after each."""
    learner = Learner(policy, config)
    waiting: list[tuple[list[RolloutResult], float]] = []
    for version in range(1, config.versions + 1):
        while len(waiting) <= staleness:
            waiting.append(_timed_batch(policy, config, version + len(waiting), version - 1))
        results, generate_s = waiting.pop(0)
        old, start = snapshot(policy), time.process_time()
        stats = learner.step([group for result in results for group in result.groups])
        learn_s = time.process_time() - start
        yield VersionReport(version, stats, changed_fraction(old, snapshot(policy)), generate_s, learn_s)


def _timed_batch(policy: Policy, config: DemoConfig, batch: int, version: int) -> tuple[list[RolloutResult], float]:
    start = time.process_time()
    return roll_out_batch(policy, config, batch, version), time.process_time() - start


def _line(report: VersionReport) -> str:
    stats = report.stats
    return (
        f"version {report.version:3d}  reward {stats.reward:.3f}  changed {100 * report.changed:5.2f} %  "
        f"grad {stats.grad_norm:.3f}  ratio {stats.ratio_mean:.4f}  clipped {100 * stats.clip_fraction:4.1f} %  "
        f"entropy {stats.entropy:.3f}  used {stats.used_samples}/{stats.samples}  "
        f"generate {report.generate_s:.2f} s  learn {report.learn_s:.2f} s"
    )


def main() -> None:
    default = DemoConfig()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=default.versions)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--learning-rate", type=float, default=default.learning_rate)
    parser.add_argument(
        "--staleness", type=int, default=0, help="versions between a rollout's policy and the learner's"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = replace(default, versions=args.versions, seed=args.seed, learning_rate=args.learning_rate)
    reports = []
    for report in train(config, load_warm_start(), args.staleness):
        print(_line(report), flush=True)
        reports.append(report)
    _summary(reports)


def _summary(reports: list[VersionReport]) -> None:
    changed = sorted(report.changed for report in reports)
    print(
        f"reward {reports[0].stats.reward:.3f} -> {reports[-1].stats.reward:.3f}   changed per version "
        f"{100 * changed[0]:.2f} / {100 * changed[len(changed) // 2]:.2f} / {100 * changed[-1]:.2f} % "
        f"(min / median / max)   generation {sum(r.generate_s for r in reports):.1f} s, "
        f"learning {sum(r.learn_s for r in reports):.1f} s"
    )


if __name__ == "__main__":
    main()
