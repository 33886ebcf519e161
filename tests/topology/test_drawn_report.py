"""Reports of swarms on drawn networks: why a transfer took as long as it did, summaries, comparisons, pictures."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from p2psync.errors import UsageError
from p2psync.topology.drawn_comparison import comparison_lines, read_runs
from p2psync.topology.drawn_report import (
    DrawnNetwork,
    DrawnRun,
    DrawnSummary,
    Transfer,
    network_line,
    summarize_runs,
    summary_lines,
    tail_seconds,
    transfer,
)

BOUND = 10.0
FACTS = DrawnNetwork(
    seed=0,
    nodes=4,
    places=["home0", "cloud1"],
    longest_rtt=0.12,
    loss=0.004,
    slowest_down=60.0,
    bound_rate=53.7,
    bound=BOUND,
    payload_bytes=64 << 20,
)


def sent(ratio: float | None, plan: float | None = 0.8) -> Transfer:
    seconds = None if ratio is None else BOUND * ratio
    rate = None if plan is None else 53.7 * plan
    return transfer(FACTS, seconds, plan_rate=rate, start=0.5, tail=None if ratio is None else 1.5, copies=1.25)


def run(seed: int, *, tcp: str = "real", bound: float = BOUND, **ratios: float | None) -> DrawnRun:
    network = msgspec.structs.replace(FACTS, seed=seed, bound=bound)
    results = {name: [sent(ratio)] for name, ratio in ratios.items()}
    return DrawnRun(tcp="virtual" if tcp == "virtual" else "real", network=network, settle=60.0, results=results)


def test_what_is_lost_is_what_the_plan_lacks_and_what_the_exchange_lacks() -> None:
    one = sent(1.6, plan=0.8)
    assert one.plan is not None and one.achieved is not None and one.ratio == 1.6
    assert one.plan * one.achieved == pytest.approx(1 / 1.6)
    assert sent(1.6, plan=None).achieved is None
    assert sent(None).achieved is None and sent(None).seconds is None


def test_a_plan_counts_as_far_as_the_slowest_downlink_takes_it() -> None:
    figures = transfer(FACTS, 12.0, plan_rate=100.0, start=None, tail=None, copies=None)
    assert figures.plan == pytest.approx(60.0 / 53.7)


def test_the_tail_begins_when_nine_tenths_are_delivered() -> None:
    delivered = [(float(t), 10.0 * t) for t in range(1, 10)] + [(12.0, 95.0), (20.0, 100.0)]
    assert tail_seconds(delivered, 100.0) == pytest.approx(20.0 - 9.0)
    # Between two moments bytes come evenly.
    assert tail_seconds([(0.0, 0.0), (10.0, 100.0)], 100.0) == pytest.approx(1.0)


def test_without_all_bytes_there_is_no_tail() -> None:
    assert tail_seconds([(0.0, 0.0), (10.0, 99.0)], 100.0) is None
    assert tail_seconds([], 100.0) is None


def test_a_networks_line_has_its_places_its_bound_and_all_ratios() -> None:
    label, text = network_line(run(3, p2psync=1.6, aria2=None))
    assert label == "seed 3"
    assert text == (
        "4 nodes: home0 cloud1; up to 120 ms, 0.4 % loss; bound 53.7 Mbit/s, 10.0 s; × the bound: p2psync 1.60, "
        "aria2 unfinished; plan 80 %, achieved 78 % of it; start 0.5 s, tail 1.5 s; 1.25 copies from the trainer"
    )


def test_a_summary_has_the_spread_of_each_and_the_worst_of_the_first() -> None:
    runs = [run(seed, p2psync=ratio, aria2=2.0) for seed, ratio in ((0, 1.1), (1, 1.3), (2, 1.2))]
    summary = summarize_runs(runs)
    spread = summary.results["p2psync"]
    assert (spread.median, spread.p90, spread.worst, spread.unfinished) == (1.2, 1.3, 1.3, 0)
    assert (summary.worst_seed, summary.worst) == (1, runs[1].results["p2psync"][0])
    assert summary.behind == {}
    lines = dict(summary_lines(summary))
    assert lines["behind"] == "p2psync on 0 of 3 networks"
    assert lines["worst"].startswith("p2psync on seed 1: 1.30 × the bound; plan 80 %, achieved 96 % of it; start 0.5 s")


def test_a_summary_names_the_networks_on_which_another_was_faster_and_which() -> None:
    runs = [
        run(4, p2psync=1.5, aria2=1.4, libtorrent=1.3),
        run(5, p2psync=1.5, aria2=1.5),
        run(6, p2psync=None, aria2=3.0),
    ]
    summary = summarize_runs(runs)
    assert summary.behind == {4: "libtorrent", 6: "aria2"}
    assert dict(summary_lines(summary))["behind"] == "p2psync on 2 of 3 networks: seed 4 (libtorrent), seed 6 (aria2)"


def test_a_transfer_that_did_not_end_is_the_worst() -> None:
    summary = summarize_runs([run(0, p2psync=4.0), run(1, p2psync=None), run(2, p2psync=1.0)])
    assert summary.worst_seed == 1
    spread = summary.results["p2psync"]
    assert (spread.median, spread.worst, spread.unfinished) == (4.0, None, 1)
    assert "worst unfinished × the bound; 1 of 3 did not end" in dict(summary_lines(summary))["p2psync"]


def test_a_summary_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no payload was sent"):
        summarize_runs([])
    with pytest.raises(UsageError, match="no payload was sent"):
        summarize_runs([msgspec.structs.replace(run(0), results={"default": []})])


def written(path: Path, *lines: DrawnRun | DrawnSummary) -> Path:
    path.write_bytes(msgspec.json.Encoder().encode_lines(lines))
    return path


def test_networks_are_read_back_from_json_lines_without_their_summary(tmp_path: Path) -> None:
    runs = [run(0, p2psync=1.1), run(1, p2psync=None)]
    assert read_runs(written(tmp_path / "drawn.jsonl", *runs, summarize_runs(runs))) == runs


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no json"])
def test_files_without_networks_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(UsageError, match="other"):
        read_runs(tmp_path / "other")
    with pytest.raises(UsageError, match="nowhere: No such file"):
        read_runs(tmp_path / "nowhere")


def test_real_ratios_are_divided_by_virtual_ones_of_equal_seeds_whichever_come_first() -> None:
    real = [run(0, p2psync=1.5), run(1, p2psync=1.2), run(7, p2psync=9.0), run(2, p2psync=None)]
    virtual = [run(seed, tcp="virtual", default=1.2) for seed in (0, 1, 2)]
    expected = [
        ("seed 0", "real 1.50, virtual 1.20: 1.25"),
        ("seed 1", "real 1.20, virtual 1.20: 1.00"),
        ("seed 2", "real unfinished, virtual 1.20"),
        ("real / virtual", "1.12 in the median, 1.00 to 1.25"),
    ]
    assert comparison_lines(real, virtual) == expected
    assert comparison_lines(virtual, real) == expected


def test_runs_of_one_kind_are_divided_by_those_of_the_file() -> None:
    lines = comparison_lines([run(0, p2psync=1.5)], [run(0, p2psync=3.0)])
    assert lines == [("seed 0", "here 1.50, there 3.00: 0.50"), ("here / there", "0.50 in the median, 0.50 to 0.50")]


def test_other_networks_or_payloads_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match=r"seed 0 has a bound of 10\.000 s in one and 5\.000 s in the other"):
        comparison_lines([run(0, p2psync=1.5)], [run(0, bound=5.0, p2psync=1.5)])
    assert comparison_lines([run(0, p2psync=1.5)], [run(1, p2psync=1.5)]) == [
        ("here / there", "no seed is in both, or none ended in both")
    ]


@pytest.mark.parametrize("name", ["drawn.svg", "drawn.png"])
def test_equal_runs_give_equal_pictures(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    from p2psync.topology.drawn_plot import plot_runs

    runs = [run(0, p2psync=1.1, aria2=2.0), run(1, p2psync=1.4, aria2=None)]
    beside = [run(0, tcp="virtual", default=1.05)]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        plot_runs(runs, tmp_path / folder / name, beside)
    one, two = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
    assert one == two and len(one) > 10_000
    if name.endswith(".svg"):
        assert all(word in one.decode() for word in ("p2psync", "aria2", "default, virtual TCP"))


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from p2psync.topology.drawn_plot import plot_runs

    with pytest.raises(UsageError, match="cannot write"):
        plot_runs([run(0, p2psync=1.1)], tmp_path / "nowhere" / "drawn.svg")
