"""The result of a demonstration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from p2psync.observe.events import Published
from p2psync.rldemo.cast import DemoProcess
from p2psync.rldemo.lines import Learned

#: Batches that the first and the last reward are the mean of: one batch alone is noisy.
REWARD_WINDOW = 3
#: By how many standard errors the rewards of a run must rise. Of runs of 12 versions in which nothing is learnt about 1
#: in 800 reaches it; a healthy run rises by more than twice as many then, and by far more later.
RISE_MIN_STANDARD_ERRORS = 4.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Seconds, bytes, shares in 0..1.

    delta_bytes: mean payload of a delta. sync_seconds: for each delta, from its announcement to the last commit among
    the actors that were live then. re_leased: work items leased again because their holders were gone. reward_trend: in
    standard errors.
    """

    passed: bool
    verdict: str
    rewards: list[float]
    reward_first: float
    reward_last: float
    reward_trend: float
    versions: int
    changed: list[float]
    delta_bytes: float
    full_bytes: int
    sync_seconds: list[float]
    pause_p50: float
    pause_p99: float
    re_leased: int
    sha256: str
    equal: dict[str, bool]
    memory_bytes: int
    seconds: float


def conclude(
    learned: Sequence[Learned], published: Sequence[Published], members: Sequence[DemoProcess], seconds: float
) -> Result:
    """Computes the figures and the verdict: live actors equal the trainer, work was re-leased, and the reward rose."""
    trainer = next(member for member in members if member.name == "trainer")
    actors = [member for member in members if member is not trainer]
    sha256 = trainer.final.sha256 if trainer.final else ""
    equal = {member.name: member.final.sha256 == sha256 for member in actors if member.final is not None}
    rewards = [line.reward for line in learned]
    first, last = statistics.mean(rewards[:REWARD_WINDOW]), statistics.mean(rewards[-REWARD_WINDOW:])
    deltas = [event for event in published if not event.anchor]
    pauses = [c.pause_seconds for member in actors for c in member.commits.values() if c.changed < c.total]
    problems = []
    if not equal or not all(equal.values()):
        problems.append("not every actor holds the trainer's bits")
    trend = reward_trend(rewards)
    if trend < RISE_MIN_STANDARD_ERRORS:
        problems.append(
            f"the reward did not rise: its trend is {trend:.1f} standard errors, "
            f"and {RISE_MIN_STANDARD_ERRORS:.0f} tell learning from chance"
        )
    if learned[-1].re_leased == 0:
        problems.append("the killed actor's work was not leased again")
    return Result(
        passed=not problems,
        verdict="; ".join(problems) or f"{len(equal)} actors hold the trainer's bits, and the reward rose",
        rewards=rewards,
        reward_first=first,
        reward_last=last,
        reward_trend=trend,
        versions=len({event.version for event in published}) - 1,
        changed=[event.changed / max(1, event.total) for event in deltas],
        delta_bytes=statistics.mean(event.payload_bytes for event in deltas),
        full_bytes=published[0].full_bytes,
        sync_seconds=[delay for event in deltas if (delay := _delay(event, actors)) is not None],
        pause_p50=_quantile(pauses, 0.5),
        pause_p99=_quantile(pauses, 0.99),
        re_leased=learned[-1].re_leased,
        sha256=sha256,
        equal=equal,
        memory_bytes=sum(member.final.memory_bytes for member in members if member.final is not None),
        seconds=seconds,
    )


def reward_trend(rewards: Sequence[float]) -> float:
    """Returns by how many standard errors the rewards rise from version to version.

    That is the slope of the least-squares line through the rewards (one for each version, at least 3), over the slope's
    standard error as their scatter about the line tells it. Where nothing is learnt the rewards are independent draws
    around one mean, and this is Student's t with len(rewards) - 2 degrees of freedom, whatever the size of the batches.
    0 if all rewards are equal; infinite if they lie on a rising line exactly, minus infinite on a falling one.
    """
    fit = statistics.linear_regression(range(len(rewards)), rewards)
    squares = sum((reward - fit.intercept - fit.slope * k) ** 2 for k, reward in enumerate(rewards))
    # The sum of squares of the versions' numbers about their mean.
    spread = len(rewards) * (len(rewards) ** 2 - 1) / 12
    error = math.sqrt(squares / (len(rewards) - 2) / spread)
    if error == 0:
        return math.copysign(math.inf, fit.slope) if fit.slope else 0.0
    return fit.slope / error


def _delay(event: Published, actors: Sequence[DemoProcess]) -> float | None:
    """Seconds from publish to the last commit of that very version, among actors that ran an earlier one before."""
    there = [member for member in actors if event.version in member.commits and min(member.commits) < event.version]
    commits = [member.commits[event.version].at for member in there]
    return max(commits) - event.at if commits else None


def _quantile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` of the values do not pass; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))] if ordered else 0.0
