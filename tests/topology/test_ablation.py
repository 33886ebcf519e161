"""Ablation: every run is made once, kept in a file, and compared with the whole node on the same network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2psync.errors import UsageError
from p2psync.topology.drawn_report import DrawnNetwork, transfer
from p2psync.topology.virtual.ablation import AblationFile, AblationRun, ablate, ablation_rows, ablation_table
from p2psync.topology.virtual.policies import MECHANISMS
from p2psync.topology.virtual.swarm import VirtualOptions

OPTIONS = VirtualOptions(payload_bytes=1 << 20, versions=1)


def network(seed: int) -> DrawnNetwork:
    return DrawnNetwork(
        seed=seed,
        nodes=4,
        places=["home0"],
        longest_rtt=0.1,
        loss=0.0,
        slowest_down=100.0,
        bound_rate=50.0,
        bound=10.0,
        payload_bytes=1 << 20,
    )


def run(policy: str, seed: int, *seconds: float | None) -> AblationRun:
    """Versions that took so long; None: not every node got it."""
    facts = network(seed)
    versions = [transfer(facts, s, plan_rate=45.0, start=None, tail=None, copies=None) for s in seconds]
    return AblationRun(policy=policy, network=facts, versions=versions)


class Simulator:
    """Takes 11 s whole, and 12 s under each policy; notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    def __call__(self, seed: int, policy: str, options: VirtualOptions, *, hosts: int) -> AblationRun:
        self.asked.append((seed, policy))
        return run(policy, seed, 11.0 if policy == "default" else 12.0)


def test_ablation_runs_the_whole_node_and_each_policy_once_and_goes_on_from_its_file(tmp_path: Path) -> None:
    simulate, path = Simulator(), tmp_path / "runs.jsonl"
    list(ablate(AblationFile(path), range(1), ["no-window"], OPTIONS, hosts=12, simulate=simulate))
    assert simulate.asked == [(0, "default"), (0, "no-window")]
    list(ablate(AblationFile(path), range(2), ["no-window", "no-shares"], OPTIONS, hosts=12, simulate=simulate))
    assert simulate.asked[2:] == [(0, "no-shares"), (1, "default"), (1, "no-window"), (1, "no-shares")]
    assert len(AblationFile(path).runs) == 6


@pytest.mark.parametrize("other", [replace(OPTIONS, versions=2), replace(OPTIONS, payload_bytes=2 << 20)])
def test_ablation_refuses_a_file_of_other_payloads_or_versions(tmp_path: Path, other: VirtualOptions) -> None:
    simulate, path = Simulator(), tmp_path / "runs.jsonl"
    list(ablate(AblationFile(path), range(1), [], OPTIONS, hosts=12, simulate=simulate))
    with pytest.raises(UsageError, match="name another file"):
        list(ablate(AblationFile(path), range(1), [], other, hosts=12, simulate=simulate))


def test_ablation_rows_compare_each_policy_with_the_whole_node_on_the_same_networks() -> None:
    runs = [run("default", 0, 10.0, 20.0), run("default", 1, 40.0, 40.0), run("no-window", 0, 20.0, 20.0)]
    whole, without = ablation_rows(runs)
    assert (whole.policy, whole.networks, whole.to_whole) == ("default", 2, 1.0)
    assert (without.policy, without.networks, without.median) == ("no-window", 1, 2.0)
    assert without.to_whole == pytest.approx(2**0.5)
    assert without.plan == pytest.approx(0.9)


def test_ablation_rows_put_the_mechanism_that_is_worth_most_first() -> None:
    runs = [run(policy, 0, s) for policy, s in (("no-shares", 12.0), ("default", 10.0), ("no-window", 15.0))]
    assert [row.policy for row in ablation_rows(runs)] == ["default", "no-window", "no-shares"]


def test_a_version_that_did_not_end_counts_as_worst() -> None:
    rows = ablation_rows([run("default", 0, 10.0), run("no-window", 0, None)])
    assert "| no-window | 1 | unfinished | unfinished | unfinished |" in ablation_table(rows)[-1]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"kind": "network"}\n')
    with pytest.raises(UsageError, match="has no lines of"):
        AblationFile(path)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_that_is_switched_off_changes_settings_and_nothing_else(name: str) -> None:
    changed: Any = MECHANISMS[name].change(OPTIONS)
    assert changed.node != OPTIONS.node
    assert (changed.plan, changed.versions, changed.seed) == (OPTIONS.plan, OPTIONS.versions, OPTIONS.seed)
