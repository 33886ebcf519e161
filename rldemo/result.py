"""What a demonstration came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from p2psync.observe.events import Published
from p2psync.rldemo.cast import Member
from p2psync.rldemo.lines import Learned

#: Batches that the first and the last reward are the mean of: one batch alone is noisy.
REWARD_WINDOW = 3


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run. Seconds, bytes, shares in 0..1.

    delta_bytes: mean payload of a delta. sync_seconds: for each delta, from its announcement to the last commit among
    the actors that were live then. re_leased: work items leased again because who held them was gone.
    """

    passed: bool
    verdict: str
    rewards: list[float]
    reward_first: float
    reward_last: float
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
    learned: Sequence[Learned], published: Sequence[Published], members: Sequence[Member], seconds: float
) -> Result:
    """Put the figures together, and judge: every live actor equal to the trainer, something re-leased, reward up."""
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
    if last <= first:
        problems.append("the reward did not rise")
    if learned[-1].re_leased == 0:
        problems.append("the killed actor's work was not leased again")
    return Result(
        passed=not problems,
        verdict="; ".join(problems) or f"{len(equal)} actors hold the trainer's bits, and the reward rose",
        rewards=rewards,
        reward_first=first,
        reward_last=last,
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


def _delay(event: Published, actors: Sequence[Member]) -> float | None:
    """Seconds from publish to the last commit of that very version, among actors that ran an earlier one before."""
    there = [member for member in actors if event.version in member.commits and min(member.commits) < event.version]
    commits = [member.commits[event.version].at for member in there]
    return max(commits) - event.at if commits else None


def _quantile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` of the values do not pass; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))] if ordered else 0.0
