"""What each mechanism of a node gives, on drawn networks in virtual time: runs, kept in a file, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from p2psync.errors import UsageError
from p2psync.topology.drawn_report import DrawnNetwork, Transfer, ratio_text, summarize_ratios
from p2psync.topology.virtual.policies import policy_named
from p2psync.topology.virtual.report import simulate_seed
from p2psync.topology.virtual.swarm import VirtualOptions

BASE = "default"
_HEADER = (
    "| switched off | networks | median | p90 | worst | × the whole | plan | meaning |",
    "|---|---|---|---|---|---|---|---|",
)


class AblationRun(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of one swarm, on the network of a seed under one policy."""

    policy: str
    network: DrawnNetwork
    versions: list[Transfer]


@dataclass(frozen=True)
class AblationRow:
    """All networks of one policy that were also run whole. median, p90, worst: ratios to the bound; inf: unfinished.

    to_whole: the geometric mean of each version's ratio to that of the whole node on the same network. plan: the median
    rate of plans, as a share of the bound.
    """

    policy: str
    networks: int
    median: float
    p90: float
    worst: float
    to_whole: float
    plan: float


class AblationFile:
    """JSON lines of runs. A run that is there is not made again, so that an interrupted ablation can be continued."""

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` for a file of something else."""
        self._path = path
        self.runs: list[AblationRun] = []
        if path.exists():
            try:
                self.runs = msgspec.json.Decoder(AblationRun).decode_lines(path.read_bytes())
            except (OSError, msgspec.MsgspecError) as error:
                raise UsageError(f"{path} has no lines of `p2psync sim ablation`: {error}") from None

    def add(self, run: AblationRun) -> None:
        """Keeps a run."""
        self.runs.append(run)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")

    def has(self, policy: str, seed: int) -> bool:
        """Returns whether a run was made."""
        return any(run.policy == policy and run.network.seed == seed for run in self.runs)


def ablate(
    kept: AblationFile,
    seeds: Iterable[int],
    policies: Sequence[str],
    options: VirtualOptions,
    *,
    hosts: int,
    simulate: Callable[..., AblationRun] | None = None,
) -> Iterator[AblationRun]:
    """Runs the whole node and each policy on the network of each seed, as far as the file lacks it; yields new runs.

    Raises `UsageError` where the file has runs of another payload or number of versions.
    """
    simulate = simulate or _simulate
    _check_equal(kept.runs, options)
    for seed in seeds:
        for policy in dict.fromkeys((BASE, *policies)):
            if not kept.has(policy, seed):
                run = simulate(seed, policy, options, hosts=hosts)
                kept.add(run)
                yield run


def _check_equal(runs: Iterable[AblationRun], options: VirtualOptions) -> None:
    wanted = (options.payload_bytes, options.versions)
    for run in runs:
        found = (run.network.payload_bytes, len(run.versions))
        if found != wanted:
            raise UsageError(
                f"the file has {found[1]} version(s) of {found[0]} bytes, these would be {wanted[1]} of {wanted[0]}: "
                "name another file"
            )


def _simulate(seed: int, policy: str, options: VirtualOptions, *, hosts: int) -> AblationRun:
    found = simulate_seed(seed, options, hosts=hosts, policies=[policy])
    return AblationRun(policy=policy, network=found.network, versions=found.results[policy])


def ablation_rows(runs: Iterable[AblationRun]) -> list[AblationRow]:
    """Returns a row for each policy, the whole node first, then those that cost most when they are switched off."""
    by_policy: dict[str, dict[int, AblationRun]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, {})[run.network.seed] = run
    whole = by_policy.get(BASE, {})
    rows = [_row(policy, found, whole) for policy, found in by_policy.items() if found.keys() & whole.keys()]
    return sorted(rows, key=lambda row: (row.policy != BASE, -row.to_whole, row.policy))


def _row(policy: str, found: dict[int, AblationRun], whole: dict[int, AblationRun]) -> AblationRow:
    pairs = [
        (one, beside)
        for seed in sorted(found.keys() & whole.keys())
        for one, beside in zip(found[seed].versions, whole[seed].versions, strict=True)
    ]
    median, p90, worst = summarize_ratios([one for one, _ in pairs])
    quotients = [math.log(one.ratio / beside.ratio) for one, beside in pairs if one.ratio and beside.ratio]
    plans = sorted(one.plan for one, _ in pairs if one.plan is not None)
    return AblationRow(
        policy,
        len(found.keys() & whole.keys()),
        median,
        p90,
        worst,
        math.exp(sum(quotients) / len(quotients)) if quotients else math.inf,
        plans[len(plans) // 2] if plans else 0.0,
    )


def ablation_table(rows: Iterable[AblationRow]) -> list[str]:
    """Returns the lines of a Markdown table."""
    return [*_HEADER, *map(_line, rows)]


def _line(row: AblationRow) -> str:
    ratios = " | ".join(ratio_text(value) for value in (row.median, row.p90, row.worst))
    meaning = _meaning(row.policy)
    return f"| {row.policy} | {row.networks} | {ratios} | {row.to_whole:.3f} | {100 * row.plan:.0f} % | {meaning} |"


def _meaning(policy: str) -> str:
    try:
        return policy_named(policy).meaning
    except KeyError:  # of another version of p2psync
        return ""
