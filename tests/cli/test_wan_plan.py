"""`p2psync wan plan` keeps its contract with scripts and people."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from p2psync.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "topologies"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command line; returns (exit status, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["p2psync", "wan", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        code = ended.value.code
        out, err = capfd.readouterr()
        return (code if isinstance(code, int) else 0), out, err

    return call


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_example_is_planned_near_its_bound(run: Run, file: Path) -> None:
    code, out, _ = run(file, "--json", "-")
    assert code == 0
    found = json.loads(out)
    assert found["ratio"] > 0.99
    assert found["least_makespan"] <= found["makespan"] < 1.1 * found["least_makespan"]
    assert found["unreachable"] == []


def test_the_figures_are_whole(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    code, out, _ = run(EXAMPLES / "wan-4x3.toml", "--size", "1GiB", "--json", target)
    assert code == 0
    found = json.loads(target.read_text())
    assert found["payload_bytes"] == 1 << 30
    assert found["bound"] == pytest.approx(60)
    assert sum(tree["share"] for tree in found["trees"]) == pytest.approx(1, abs=1e-4)
    assert all(len(tree["parents"]) == 11 for tree in found["trees"])
    assert {load["kind"] for load in found["loads"]} == {"up", "down", "link"}
    assert "60.0 Mbit/s" in out


def test_people_see_the_bound_the_trees_and_the_links(run: Run) -> None:
    code, out, err = run(EXAMPLES / "wan-4x3.toml", "--trees", 1)
    assert code == 0
    assert err == ""
    assert "the links r0→r3, r1→r3, r2→r3" in out
    assert "tree 1" in out
    assert "\n  r0-0" in out
    assert "link r0→r3" in out


def test_nodes_that_cannot_be_reached_are_named(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text('trainer = "a-0"\n[region.a]\nhosts = 3\nup = 10\n[region.b]\nhosts = 1\nup = 10\n')
    code, out, _ = run(file)
    assert code == 1
    assert "10.0 Mbit/s to 2 of 3 nodes" in out
    assert "unreachable  1 of 4: b-0" in out


def test_a_plan_that_reaches_no_node_has_no_rate_and_reports_that(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text('trainer = "a-0"\n[region.a]\nhosts = 1\nup = 10\n[region.b]\nhosts = 2\nup = 10\n')
    code, out, _ = run(file)
    assert code == 1
    assert "reaches nobody" in out and "b-0, b-1" in out and "Mbit/s" not in out
    code, out, _ = run(file, "--json", "-")
    found = json.loads(out)
    assert code == 1 and (found["bound"], found["rate"], found["makespan"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[region.b]\nhosts = '3'\nup = 10", "[region.b]: hosts: Expected `int`, got `str`"),
        ("[region.b]\nhosts = 3\nupp = 10", "[region.b]: Object contains unknown field `upp`; choose of hosts, up,"),
        (
            "[[event]]\nat = 1\nkind = 'explode'",
            "[[event]] number 1: kind: Invalid enum value 'explode'; choose of join,",
        ),
        ("[[event]]\nat = nan\nkind = 'kill'\nhost = 'a-0'", "Event.at: nan is no finite number"),
        ("[region.b]\nhosts = 1\nup = inf", "region b: it needs a host, and rates"),
    ],
)
def test_an_error_in_a_file_names_its_table(run: Run, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(f'trainer = "a-0"\n[region.a]\nhosts = 1\nup = 10\n{text}\n')
    code, _, err = run(file)
    assert code == 1 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.toml"], 1, "nowhere.toml"),
        (["{file}"], 1, "is no host"),
        (["{good}", "--size", "many"], 2, "--size"),
        (["{good}", "--png", "x.jpg"], 2, ".png"),
        (["{good}", "--svg", "/nowhere/x.svg"], 2, "/nowhere/x.svg"),
    ],
)
def test_errors_are_one_line(run: Run, tmp_path: Path, words: list[str], code: int, message: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text('trainer = "x-0"\n[region.a]\nhosts = 1\nup = 1\n')
    got, _, err = run(*[word.format(file=file, good=EXAMPLES / "lan-12.toml") for word in words])
    assert got == code
    assert len(err.splitlines()) == 1
    assert message in err


def test_pictures_are_drawn_and_the_same_plan_gives_the_same_one(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    once, again, png = tmp_path / "a.svg", tmp_path / "b.svg", tmp_path / "a.png"
    assert run(EXAMPLES / "wan-4x3.toml", "--svg", once, "--png", png)[0] == 0
    assert run(EXAMPLES / "wan-4x3.toml", "--svg", again)[0] == 0
    assert once.read_bytes() == again.read_bytes()
    assert b"<svg" in once.read_bytes()
    assert all(f"<!-- r{region} -->".encode() in once.read_bytes() for region in range(4))
    assert png.read_bytes().startswith(b"\x89PNG")
