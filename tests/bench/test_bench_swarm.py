"""The race: its figures, its faults, its torrents, and a short one of real processes."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from child_signals import heed_interrupts
from rich.console import Console

from p2psync.bench.swarm import faults, tracker
from p2psync.bench.swarm.contenders import P2PSYNC, TRIALS, missing
from p2psync.bench.swarm.metainfo import bencode, torrent_of
from p2psync.bench.swarm.plot import middle_runs
from p2psync.bench.swarm.publisher import RaceWeights, count_for, least_bytes
from p2psync.bench.swarm.race import Race, RaceOptions
from p2psync.bench.swarm.report import LinkSample, RaceRun, SwarmReport, lines, times_faster
from p2psync.bench.swarm.tables import comparisons, fault_ratios, print_swarm_report
from p2psync.bench.swarm.trial import write_random
from p2psync.errors import UsageError
from p2psync.topology.emulator import namespaces, runs, why_not
from p2psync.topology.model import Host, Link, Region, Topology, load

EXAMPLES = Path(__file__).parents[2] / "examples" / "topologies"
WAN = Topology(
    "a-0",
    {"a": Region(2, 100), "b": Region(2, 100), "c": Region(1, 100)},
    [Link(("a", "b"), 50, 1), Link(("a", "c"), 20, 1), Link(("b", "c"), 40, 1, rate_back=10)],
)
_reason = why_not()
needs_networks = pytest.mark.skipif(_reason is not None, reason=_reason or "")


def ran(contender: str, seconds: float | None, *, round: int = 0, cold: bool = False, fault: str = "") -> RaceRun:
    """A run over a floor of 2 s."""
    return RaceRun(
        contender=contender,
        round=round,
        cold=cold,
        fault=fault,
        payload_bytes=1000,
        floor=2.0,
        seconds=seconds,
        finished={"b-0": seconds} if seconds else {},
        trainer_copies=1.5,
        region_copies={"b": 1.25, "c": 2.0},
        cpu_seconds=3.0,
        progress=[LinkSample(0.0, [0]), LinkSample(1.0, [900])],
        trouble="" if seconds else "not within 9 s",
    )


def report(found: list[RaceRun]) -> SwarmReport:
    """A report of these runs."""
    return SwarmReport(
        topology="drawn",
        receivers=["b-0"],
        congestion="bbr",
        payload_bytes=1000,
        delta=False,
        floor=2.0,
        bound=50.0,
        because="the link a→b",
        limit=9.0,
        runs=found,
    )


def test_a_payload_may_be_larger_than_can_be_drawn_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "seed" / "payload"
    write_random(file, (256 << 20) + 1, 7)
    assert file.stat().st_size == (256 << 20) + 1


def test_a_line_is_the_median_of_its_runs() -> None:
    found = lines([ran(P2PSYNC, seconds) for seconds in (3.0, 9.0, 4.0)])
    assert [(line.seconds, line.ratio, line.least, line.most, line.region_copies) for line in found] == [
        (4.0, 2.0, 3.0, 9.0, 2.0)
    ]


def test_a_run_that_did_not_end_counts_as_endless() -> None:
    (most,) = lines([ran("aria2", None), ran("aria2", None), ran("aria2", 4.0)])
    assert (most.seconds, most.ratio, most.finished, most.runs) == (None, None, 1, 3)
    (few,) = lines([ran("aria2", None), ran("aria2", 6.0), ran("aria2", 4.0)])
    assert few.seconds == 6.0


def test_cold_runs_and_faults_have_lines_of_their_own_after_the_others() -> None:
    found = lines(
        [ran(P2PSYNC, 8.0, cold=True), ran(P2PSYNC, 5.0, fault=faults.KILL), ran(P2PSYNC, 4.0), ran("aria2", 6.0)]
    )
    assert [(line.contender, line.cold, line.fault) for line in found] == [
        (P2PSYNC, False, ""),
        ("aria2", False, ""),
        (P2PSYNC, True, ""),
        (P2PSYNC, False, faults.KILL),
    ]
    assert times_faster(found, P2PSYNC, "aria2") == 1.5
    assert times_faster(found, P2PSYNC, "rsync") is None
    assert fault_ratios(found) == {faults.KILL: 1.25}


def test_of_one_client_with_two_options_the_better_one_is_compared() -> None:
    runs = [ran(P2PSYNC, 4.0), ran("libtorrent", 9.0), ran("libtorrent-super", 6.0), ran("aria2", 8.0)]
    assert comparisons(lines(runs)) == [
        "libtorrent-super takes 1.50 times as long as p2psync",
        "aria2 takes 2.00 times as long as p2psync",
    ]


def test_cold_runs_are_compared_with_cold_runs() -> None:
    runs = [ran(P2PSYNC, 4.0), ran("aria2", 8.0), ran(P2PSYNC, 10.0, cold=True), ran("aria2", 5.0, cold=True)]
    assert comparisons(lines(runs)) == [
        "aria2 takes 2.00 times as long as p2psync",
        "aria2 takes 0.50 times as long as p2psync, cold",
    ]


def test_a_contender_over_the_limit_is_not_run_again_in_runs_of_that_kind() -> None:
    race = Race("drawn", WAN, RaceOptions(1000, [P2PSYNC, "aria2"]))
    race.runs = [msgspec.structs.replace(ran("aria2", None), over_limit=True)]
    assert race._is_hopeless("aria2", cold=False)
    assert not race._is_hopeless("aria2", cold=True)
    race.runs = [msgspec.structs.replace(ran(P2PSYNC, None), over_limit=True)]
    assert not race._is_hopeless(P2PSYNC, cold=False)


def test_the_run_that_is_drawn_is_the_middle_one() -> None:
    found = [ran(P2PSYNC, 9.0), ran(P2PSYNC, 3.0, round=1), ran(P2PSYNC, 4.0, round=2), ran("aria2", None)]
    assert middle_runs(found) == {P2PSYNC: found[2]}


def test_a_report_can_be_printed_drawn_and_read_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from p2psync.bench.swarm.plot import plot_swarm_report

    cut = msgspec.structs.replace(ran(P2PSYNC, 5.0, fault=faults.CUT), replanned=1.75)
    with_plan = msgspec.structs.replace(ran(P2PSYNC, 4.0), planned=55.9)
    made = report([with_plan, ran("aria2", 6.0), ran("rsync", None), cut])
    text = io.StringIO()
    print_swarm_report(made, Console(file=text, width=150))
    assert "aria2 takes 1.50 times as long" in text.getvalue()
    assert "rsync, round 1: not within 9 s" in text.getvalue()
    assert "plans, from measuring, had 55.9 to 55.9 Mbit/s" in text.getvalue()
    assert "link cut to a tenth: 1.25 times the run without, replanned 1.8 s after it" in text.getvalue()
    plot_swarm_report(made, tmp_path / "race.png")
    assert (tmp_path / "race.png").stat().st_size > 10_000
    assert msgspec.json.decode(msgspec.json.encode(made), type=SwarmReport) == made


def test_copies_are_counted_at_the_trainer_and_on_the_links_into_each_other_region() -> None:
    sent = {"a-0 up": 2500, "a>b": 1000, "c>b": 200, "a>c": 900, "b>c": 300, "b>a": 5000, "b-0 up": 777}
    trainer, regions = faults.copies(WAN, ["a-1", "b-0", "b-1", "c-0"], sent, 1000)
    assert (trainer, regions) == (2.5, {"b": 1.2, "c": 1.2})


def test_the_relay_that_is_killed_is_the_one_that_serves_most_outside_the_trainers_region() -> None:
    sent = {"a-0 up": 900, "a-1 up": 800, "b-0 up": 300, "b-1 up": 400, "c-0 up": 10}
    assert faults.busiest_relay(WAN, sent) == "b-1"
    alone = Topology("lan-0", {"lan": Region(3, 100)})
    assert faults.busiest_relay(alone, {"lan-0 up": 9, "lan-1 up": 5, "lan-2 up": 4}) == "lan-1"


def test_the_link_that_is_cut_is_the_busiest() -> None:
    assert faults.busiest_link(WAN, {"a>b": 5, "b>a": 6, "a>c": 10}) == ("a", "b")
    assert faults.busiest_link(Topology("lan-0", {"lan": Region(3, 100)}), {}) is None


def test_a_torrent_names_every_piece(tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(bytes(range(256)) * 10)
    made = torrent_of(file, 1024, "http://x/announce")
    parts = [file.read_bytes()[at : at + 1024] for at in (0, 1024, 2048)]
    hashes = b"".join(hashlib.sha1(part).digest() for part in parts)
    assert made == bencode(
        {
            b"announce": b"http://x/announce",
            b"info": {b"name": b"payload", b"length": 2560, b"piece length": 1024, b"pieces": hashes},
        }
    )
    assert bencode({b"b": [1, b"x"], b"a": -2}) == b"d1:ai-2e1:bli1e1:xee"


def test_the_tracker_answers_with_all_other_peers() -> None:
    told = tracker.answer("10.77.0.1", ["10.77.0.1:6881", "10.77.0.2:6881"])
    assert told == bencode({b"interval": 2, b"min interval": 2, b"peers": b"\x0a\x4d\x00\x02\x1a\xe1"})


def test_a_drawn_policy_changes_the_given_number_of_units() -> None:
    import numpy as np

    weights = RaceWeights(1 << 20, np.random.default_rng(0))
    (spec,) = weights.specs
    before = weights.units(spec).copy()
    moved = weights.change(5000)
    changed = before != weights.units(spec)
    assert moved == changed.sum()
    assert abs(moved - 5000) < 500
    assert set((weights.units(spec) - before)[changed].tolist()) == {1, 0xFFFF}


def test_count_for_inverts_least_bytes() -> None:
    for changed in (10, 1000, 400_000):
        assert abs(count_for(least_bytes(changed, 1_000_000), 1_000_000) - changed) <= 1
    assert count_for(1e9, 1000) <= 500


@pytest.mark.parametrize("name", ["lan-12.toml", "lan-12-one-slow.toml", "lan-12-three-slow.toml", "small-delta.toml"])
def test_the_races_have_a_trainer_and_twelve_actors(name: str) -> None:
    topology = load(EXAMPLES / name)
    assert len(topology.hosts) == 13


def test_three_hosts_of_the_uneven_lan_are_slow() -> None:
    slow = load(EXAMPLES / "lan-12-three-slow.toml").host
    assert sorted(host.up or 0 for host in slow.values()) == [10, 25, 50]
    assert Host(up=10, down=100) in slow.values()


@pytest.mark.parametrize(
    "arguments", [(), ("--quick", "x.toml"), ("--quick", "--baselines", "napster"), ("--quick", "--size", "much")]
)
def test_wrong_options_are_refused_in_one_line(
    arguments: tuple[str, ...], refused: Callable[..., tuple[int, str]]
) -> None:
    code, told = refused("swarm", *arguments)
    assert code == 2
    assert len(told.splitlines()) == 1


def test_a_region_without_a_link_to_the_trainers_cannot_race() -> None:
    chain = Topology("a-0", {name: Region(1, 10) for name in "abc"}, [Link(("a", "b"), 10, 5), Link(("b", "c"), 10, 5)])
    with pytest.raises(UsageError, match="no link joins c and a"):
        Race("chain", chain, RaceOptions(1 << 20, [P2PSYNC])).run()


def networks_of(process: int) -> list[runs.RunState]:
    """The networks that a process has up; others may have theirs."""
    return [state for state in runs.living() if parent_of(state.router) == process]


def parent_of(process: int) -> int:
    """The parent of a process, 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def is_gone(network: runs.RunState) -> bool:
    """Returns whether nothing is left of a network."""
    return not namespaces.existing(runs.prefix_of(network.run)) and not runs.folder_of(network.run).exists()


@pytest.mark.root
@needs_networks
def test_no_contender_of_a_race_of_real_processes_beats_the_bound(tmp_path: Path) -> None:
    topology = Topology("lan-0", {"lan": Region(4, 100)})
    names = [name for name in TRIALS if not missing(name)]
    seen: list[runs.RunState] = []
    options = RaceOptions(1 << 20, names, rounds=1, limit=60, settle=0.2)
    made = Race("drawn", topology, options, lambda line: seen.extend(networks_of(os.getpid()))).run()
    assert [(run.contender, run.cold) for run in made.runs] == [
        (name, cold) for cold in (False, True) for name in names
    ]
    for run in made.runs:
        assert run.trouble == ""
        assert run.seconds is not None
        assert run.seconds > 0.98 * run.floor
        assert set(run.finished) == {"lan-1", "lan-2", "lan-3"}
        assert run.trainer_copies >= 1
        # aria2 sends a block before the start.
        assert run.progress[-1].received[0] >= run.payload_bytes - (16 << 10)
    assert seen
    assert all(is_gone(network) for network in seen)


@pytest.mark.root
@needs_networks
def test_a_delta_is_raced_on_its_base_and_survives_a_killed_relay() -> None:
    topology = Topology("lan-0", {"lan": Region(4, 20)})
    options = RaceOptions(1 << 20, [P2PSYNC], rounds=1, base=8 << 20, limit=20, settle=0.2, with_faults=True)
    made = Race("drawn", topology, options).run()
    plain, killed, cut = made.runs
    assert (plain.fault, killed.fault, cut.fault) == ("", faults.KILL, faults.CUT)
    assert plain.payload_bytes == pytest.approx(1 << 20, rel=0.2)
    assert len(plain.finished) == len(cut.finished) == 3
    assert len(killed.finished) == 2
    assert all(run.seconds is not None for run in made.runs)


@pytest.mark.root
@needs_networks
def test_an_interrupted_race_leaves_nothing_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "p2psync", "bench", "swarm", "--quick", "--baselines", "none"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    assert process.stderr
    line = process.stderr.readline()
    assert line.startswith("p2psync, round 1"), line
    (network,) = networks_of(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    process.stderr.close()
    assert is_gone(network)
    assert list(tmp_path.iterdir()) == []
