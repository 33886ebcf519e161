"""Races on drawn networks: what samples of the links say of a run, and a short race of real processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from p2psync.bench.swarm.contenders import P2PSYNC, missing
from p2psync.bench.swarm.drawn_races import RacedRun, drawn_figures, race_drawn, raced_run
from p2psync.bench.swarm.race import RaceOptions
from p2psync.bench.swarm.report import LinkSample, RaceRun, SwarmReport
from p2psync.cli.bench_swarm import SwarmBenchOptions, _race_options
from p2psync.cli.drawn_networks import DrawOptions
from p2psync.cli.main import main
from p2psync.errors import UsageError
from p2psync.topology.drawn_comparison import comparison_lines, read_runs
from p2psync.topology.drawn_report import Transfer, drawn_network, summarize_runs
from p2psync.topology.emulator import why_not
from p2psync.topology.network import from_topology
from p2psync.topology.places import draw_places

#: An office and a cloud, four hosts together.
SEED, HOSTS = 6, 4
_reason = why_not()
needs_networks = pytest.mark.skipif(_reason is not None, reason=_reason or "")


def ran(contender: str = P2PSYNC, seconds: float | None = 4.0, *, round: int = 0, cold: bool = False) -> RaceRun:
    """A run over a floor of 2 s to two receivers, of which the second begins late."""
    received = [(0.0, [0, 0]), (1.0, [600, 0]), (2.0, [1100, 400]), (3.0, [1100, 900]), (4.0, [1200, 1100])]
    return RaceRun(
        contender=contender,
        round=round,
        cold=cold,
        payload_bytes=1000,
        floor=2.0,
        seconds=seconds,
        finished={"b-0": 2.0, "b-1": 4.0} if seconds else {"b-0": 2.0},
        trainer_copies=1.5,
        region_copies={},
        cpu_seconds=3.0,
        planned=40.0,
        piece_bytes=100,
        progress=[LinkSample(at, these) for at, these in received],
    )


def raced(*runs: RaceRun) -> RacedRun:
    report = SwarmReport(
        topology=f"seed {SEED}",
        receivers=["b-0", "b-1"],
        congestion="bbr",
        payload_bytes=1000,
        delta=False,
        floor=2.0,
        bound=50.0,
        because="the link",
        limit=9.0,
        runs=list(runs),
    )
    return raced_run(drawn_network(SEED, from_topology(draw_places(SEED, hosts=HOSTS)), 1000), report, 60.0)


def judged(run: RaceRun) -> Transfer:
    (one,) = raced(run).results[P2PSYNC]
    return one


def test_a_run_begins_when_the_last_receiver_has_a_piece() -> None:
    assert judged(ran()).start == pytest.approx(1.25)
    assert judged(msgspec.structs.replace(ran(), piece_bytes=1101)).start is None
    assert judged(msgspec.structs.replace(ran(), progress=[])).start is None


def test_the_tail_counts_what_came_until_each_receiver_had_everything() -> None:
    # After 2 s the first has all that it needed, 1,100 bytes; the second has 400 of 1,100 then, and 900 after 3 s.
    reached = 2.0 + (0.9 - (1 + 400 / 1100) / 2) / ((900 - 400) / 1100 / 2)
    assert judged(ran()).tail == pytest.approx(4.0 - reached)


def test_chunks_that_receivers_report_count_instead_of_bytes_on_their_links() -> None:
    held = {"b-0": [(0.5, 0.1), (1.5, 0.6), (2.0, 1.0)], "b-1": [(0.75, 0.2), (3.0, 0.8), (4.0, 1.0)]}
    one = judged(msgspec.structs.replace(ran(), chunk_progress=held))
    assert one.start == 0.75
    assert one.tail == pytest.approx(1.0)


def test_a_receiver_that_reports_nothing_has_its_first_chunk_with_the_last_at_the_latest() -> None:
    held = {"b-0": [(0.5, 0.1)]}
    assert judged(msgspec.structs.replace(ran(), chunk_progress=held)).start == 4.0
    assert judged(msgspec.structs.replace(ran(seconds=None), chunk_progress=held)).start is None


def test_a_transfer_has_the_runs_ratio_and_the_plans_share_of_the_bound() -> None:
    run = raced(msgspec.structs.replace(ran(), planned=14.5))
    (one,) = run.results[P2PSYNC]
    assert (one.seconds, one.ratio, one.copies) == (4.0, 2.0, 1.5)
    assert one.plan == pytest.approx(14.5 / run.network.bound_rate)
    assert one.plan is not None and one.achieved == pytest.approx(0.5 / one.plan)


def test_a_run_that_did_not_end_has_a_start_and_no_tail() -> None:
    (one,) = raced(ran(seconds=None)).results[P2PSYNC]
    assert (one.ratio, one.tail) == (None, None)
    assert one.start == pytest.approx(1.25)


def test_results_are_of_warm_runs_in_rounds_and_p2psync_is_judged() -> None:
    run = raced(ran("aria2", 3.0), ran(seconds=6.0, round=1), ran(seconds=4.0), ran(cold=True))
    assert [*run.results] == [P2PSYNC, "aria2"] and run.subject == P2PSYNC
    assert [one.seconds for one in run.results[P2PSYNC]] == [4.0, 6.0]
    assert len(run.report.runs) == 4
    assert summarize_runs([run]).behind == {SEED: "aria2"}


def test_figures_of_all_races_name_the_seed() -> None:
    subjects = [figure.subject for figure in drawn_figures([raced(ran())])]
    assert set(subjects) == {f"seed {SEED}, {P2PSYNC}"}


def test_races_without_p2psync_are_refused() -> None:
    with pytest.raises(UsageError, match="judge p2psync"):
        next(race_drawn(range(1), RaceOptions(1000, ["aria2"])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draw", "many"), "--draw 'many'"),
        (("--draw", "0:1", "--quick"), "name a topology file"),
        (("x.toml", "--draw", "0:1"), "name a topology file"),
        (("--draw", "0:1", "--no-p2psync"), "--no-p2psync"),
        (("--quick", "--beside", "x.jsonl"), "give --draw"),
        (("--draw", "0:1", "--beside", "/nowhere.jsonl"), "/nowhere.jsonl"),
    ],
)
def test_wrong_options_of_drawn_races_are_refused_in_one_line(
    arguments: tuple[str, ...], message: str, refused: Callable[..., tuple[int, str]]
) -> None:
    code, told = refused("swarm", *arguments)
    assert code == 2 and message in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "offered", "expected"),
    [
        ((), True, ("bbr", False)),
        ((), False, ("cubic", False)),
        (("--congestion", "reno", "--cold"), False, ("reno", True)),
    ],
)
def test_drawn_races_are_warm_and_use_bbr_where_the_kernel_has_it(
    words: tuple[str, ...], offered: bool, expected: tuple[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[RaceOptions] = []

    def race(seeds: range, options: RaceOptions, **more: object) -> Iterator[RacedRun]:
        given.append(options)
        return iter([raced(ran())])

    monkeypatch.setattr("p2psync.bench.swarm.drawn_races.race_drawn", race)
    monkeypatch.setattr("p2psync.cli.bench_swarm.check_can_emulate", lambda: None)
    monkeypatch.setattr("p2psync.cli.bench_swarm.end_as_interrupted", lambda: None)
    monkeypatch.setattr("p2psync.net.tcp.offers", lambda name: offered)
    monkeypatch.setattr("sys.argv", ["p2psync", "bench", "swarm", "--draw", "0:1", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert [(options.congestion, options.cold) for options in given] == [expected]


def test_races_on_named_networks_keep_their_cold_rounds_and_bbr() -> None:
    options = _race_options(SwarmBenchOptions(drawn=DrawOptions()), [])
    assert (options.congestion, options.cold, options.reports_chunks) == ("bbr", True, False)


@pytest.mark.root
@needs_networks
def test_a_drawn_network_is_raced_on_by_real_processes_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines, table = tmp_path / "drawn.jsonl", tmp_path / "drawn.csv"
    words = f"--draw {SEED} --hosts {HOSTS} --size 1MiB --baselines aria2 --rounds 1 --settle 0.5 --limit 60".split()
    words += ["--json", f"{lines}", "--csv", f"{table}"]
    monkeypatch.setattr("sys.argv", ["p2psync", "bench", "swarm", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    out = capfd.readouterr().out
    network, summary = map(json.loads, lines.read_text().splitlines())
    assert network["tcp"] == "real" and network["network"]["nodes"] == HOSTS
    (one,) = network["results"][P2PSYNC]
    assert one["ratio"] > 0.98
    assert 0 < one["start"] <= one["seconds"] and 0 <= one["tail"] <= one["seconds"]
    assert one["copies"] >= 1
    (first, *_) = network["report"]["runs"]
    assert first["chunk_progress"].keys() <= first["finished"].keys()
    for reported in first["chunk_progress"].values():
        shares = [share for _, share in reported]
        assert shares == sorted(shares) and 0 < shares[0] <= shares[-1] <= 1
    assert [run["cold"] for run in network["report"]["runs"]] == [False] * len(network["results"])
    assert ("aria2" in network["results"]) == (not missing("aria2"))
    assert summary["results"][P2PSYNC]["worst"] == one["ratio"]
    assert f"seed {SEED}" in out and "worst" in out
    assert f"seed {SEED}, {P2PSYNC}" in table.read_text()
    (read,) = read_runs(lines)
    assert comparison_lines([read], [read])[-1] == ("here / there", "1.00 in the median, 1.00 to 1.00")
