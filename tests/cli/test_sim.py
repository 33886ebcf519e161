"""`p2psync sim` keeps its contract with scripts and people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from p2psync.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "topologies"
QUICK = ("--payload", "4MiB", "--chunk", "128KiB")
DRAWN = (*QUICK, "--hosts", "4", "--versions", "1", "--settle", "3")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; returns (exit status, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["p2psync", "sim", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        code = ended.value.code
        out, err = capfd.readouterr()
        return (code if isinstance(code, int) else 0), out, err

    return call


def test_a_drawn_swarm_is_simulated_and_reported(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("swarm", "--actors", 20, "--regions", 3, *QUICK, "--json", tmp_path / "sim.json")
    assert code == 0
    found = json.loads((tmp_path / "sim.json").read_text())
    assert (found["actors"], found["regions"], found["unfinished"]) == (20, 3, 0)
    (version,) = found["versions"]
    assert version["p50"] <= version["p99"] <= version["last"] == pytest.approx(version["ratio"] * found["bound"])
    for word in ("bound", "plan", "version 1", "converged", "all live nodes", "copies", "cost", found["trace"]):
        assert word in out


def test_a_topology_file_is_simulated(run: Run) -> None:
    code, out, _ = run("swarm", "--topology", EXAMPLES / "wan-4x3.toml", *QUICK, "--json", "-")
    assert code == 0
    assert json.loads(out)["actors"] == 11


def test_events_of_a_topology_file_are_said_not_to_happen(run: Run, tmp_path: Path) -> None:
    eventful = tmp_path / "eventful.toml"
    event = '\n[[event]]\nat = 0.1\nkind = "kill"\nhost = "r1-0"\n'
    eventful.write_text((EXAMPLES / "wan-4x3.toml").read_text() + event)
    code, out, err = run("swarm", "--topology", eventful, *QUICK, "--json", "-")
    assert code == 0
    assert json.loads(out)["unfinished"] == 0
    assert err == f"{eventful}: its events do not happen in virtual time; `p2psync wan run` has them\n"


def test_churn_without_a_plan_converges(run: Run) -> None:
    words = ("--actors", 20, "--regions", 2, *QUICK, "--versions", 2, "--every", 3, "--churn", 1, "--no-plan")
    code, out, _ = run("swarm", *words, "--json", "-")
    assert code == 0
    found = json.loads(out)
    assert found["plan"] is None and found["churned"]["left"] > 0 and found["unfinished"] == 0


def test_a_picture_and_a_trace_are_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture, trace = tmp_path / "sim.png", tmp_path / "trace.csv"
    code, _, _ = run("swarm", "--actors", 10, "--regions", 2, *QUICK, "--plot", picture, "--trace", trace)
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert trace.read_text().startswith("seconds,node,version,bytes\n")


def test_without_matplotlib_a_picture_is_refused_before_the_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = run("swarm", "--plot", "sim.png")
    assert (code, out) == (2, "")
    assert err == "p2psync: pictures need matplotlib: pip install 'p2psync[plot]'\n"


def test_a_swarm_that_does_not_converge_in_time_ends_with_1(run: Run) -> None:
    code, out, _ = run("swarm", "--actors", 5, "--regions", 1, "--limit", 1)
    assert code == 1
    assert "all but 5 live nodes" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("swarm", "--regions", 30, "--actors", 3), "4 hosts in 30 regions"),
        (("swarm", "--payload", "much"), "--payload 'much'"),
        (("swarm", "--chunk", "1KiB"), "chunks of at least"),
        (("swarm", "--topology", "/nowhere.toml"), "/nowhere.toml: No such file"),
        (("swarm", "--draw", "many"), "--draw 'many'"),
        (("swarm", "--draw", "0:1", "--policy", "luck"), "--policy 'luck': choose all"),
        (("swarm", "--draw", "0:1", "--policy", "none"), "--policy 'none': choose all"),
        (("swarm", "--draw", "0:1", "--beside", "/nowhere.jsonl"), "/nowhere.jsonl: No such file"),
        (("swarm", "--draw", "0:1", "--json", "/nowhere/drawn.jsonl"), "--json /nowhere/drawn.jsonl: No such file"),
        (("swarm", "--policy", "no-plan"), "give --draw"),
        (("swarm", "--beside", "drawn.jsonl"), "give --draw"),
        (("faults", "--seeds", "a"), "--seeds 'a'"),
        (("faults", "--seeds", "5:3"), "--seeds '5:3'"),
        (("faults", "--seeds", "5:5"), "--seeds '5:5'"),
        (("faults", "--seeds", "-3:2"), "--seeds '-3:2'"),
        (("ledger", "--seeds", "5:3"), "--seeds '5:3'"),
        (("faults", "--fault", "meteor"), "--fault meteor: choose of"),
    ],
)
def test_impossible_options_are_refused_in_one_line(run: Run, words: tuple[object, ...], message: str) -> None:
    code, out, err = run(*words)
    assert code in (1, 2) and out == ""
    assert message in err and err.count("\n") == 1


def test_faults_are_simulated_by_seed(run: Run) -> None:
    code, out, _ = run("faults", "--seeds", "3:5")
    assert code == 0
    assert "2 seeds" in out and "0 failed" in out


def test_steps_of_rollouts_are_compared(run: Run) -> None:
    code, out, _ = run("rollouts", "--speeds", "1000,3000", "--items", 64, "--steps", 2, "--json", "-")
    assert code == 0
    (found,) = json.loads(out)
    assert [outcome["policy"] for outcome in found["outcomes"]] == ["equal", "first-come", "allotted"]
    code, out, _ = run("rollouts", "--speeds", "1000,3000", "--items", 64, "--steps", 2)
    assert code == 0 and "less than equal" in out


@pytest.mark.parametrize("words", [("--speeds", "fast"), ("--speeds", "0,1"), ("--lengths", "long")])
def test_rollouts_that_cannot_be_are_refused(run: Run, words: tuple[str, ...]) -> None:
    assert run("rollouts", *words)[0] == 2


def test_faults_of_rollouts_are_drawn_and_reported(run: Run) -> None:
    code, out, _ = run("ledger", "--seeds", "0:5", "--json", "-")
    assert code == 0
    found = json.loads(out)
    assert (found["seeds"], found["failed"]) == (5, 0) and found["verdicts"]["accepted"] >= found["prompts"] > 0


def test_whole_nodes_on_drawn_networks_are_reported_as_json_lines(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("swarm", "--draw", "11:12", *DRAWN, "--json", tmp_path / "drawn.jsonl")
    assert code == 0
    network, summary = map(json.loads, (tmp_path / "drawn.jsonl").read_text().splitlines())
    assert (network["kind"], network["tcp"], summary["kind"]) == ("network", "virtual", "summary")
    (version,) = network["results"]["default"]
    assert summary["results"]["default"]["worst"] == version["ratio"] > 1.0
    assert version["start"] > 0 and version["tail"] > 0
    for word in ("seed 11", "median", "plan", "achieved", "start", "tail", "probed", "worst"):
        assert word in out


def test_policies_are_shown_side_by_side_and_beside_an_earlier_file(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    earlier, picture = tmp_path / "earlier.jsonl", tmp_path / "drawn.svg"
    assert run("swarm", "--draw", "11", *DRAWN, "--json", earlier)[0] == 0
    more = ("--policy", "default,no-plan", "--beside", earlier, "--plot", picture, "--json", "-")
    code, out, err = run("swarm", "--draw", "11", *DRAWN, *more)
    assert code == 0
    assert [*json.loads(out.splitlines()[0])["results"]] == ["default", "no-plan"]
    assert "no-plan  median" in err and "behind" in err
    assert "here / there  1.00 in the median" in err
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize("command", [("swarm", "--draw", "0:1"), ("ablation", "runs.jsonl")])
def test_an_unknown_policy_is_refused_with_the_name_of_every_policy(run: Run, command: tuple[str, ...]) -> None:
    from p2psync.topology.virtual.policies import POLICIES

    code, _, err = run(*command, "--policy", "unheard-of")
    words = "".join(err.split())  # a name may be broken at a hyphen
    assert code == 2
    assert all(name in words for name in POLICIES)


def test_an_ablation_is_run_and_printed_as_a_table(run: Run, tmp_path: Path) -> None:
    results = tmp_path / "runs.jsonl"
    quick = ("--draw", "0:1", "--hosts", "3", "--payload", "1MiB", "--versions", "1", "--policy", "no-window")
    code, out, err = run("ablation", results, *quick)
    assert code == 0
    assert [line.split(" | ")[0] for line in out.splitlines()[2:]] == ["| default", "| no-window"]
    assert "no-window: " in err
    again = run("ablation", results, "--table")
    assert again == (0, out, "")
