"""The cost model: which profile is chosen, and when the choice changes."""

from __future__ import annotations

import pytest
from trainer_parts import member

from p2psync.errors import UsageError
from p2psync.membership.records import Member, NodeInfo
from p2psync.trainer.versions.profile_choice import APPLY, ENCODE, ProfileChooser, slowest_link

#: Units of an 8B model, and bytes a second of some links.
UNITS = 8_000_000_000
MBIT = 125_000


def chooser(share: float = 0.01, profile: str = "auto", cores: int = 1) -> ProfileChooser:
    """A chooser that has seen a delta of this share of changed units, coded at the calibrated speed."""
    made = ProfileChooser(profile, cores=cores)
    changed = int(share * UNITS)
    encode, apply = (costs["fast"].seconds(UNITS, changed) / cores for costs in (ENCODE, APPLY))
    made.made("fast", UNITS, changed, int(9.9 * changed / 8), encode, apply)
    return made


@pytest.mark.parametrize(("mbps", "profile"), [(5, "tight"), (30, "tight"), (300, "fast"), (100_000, "fast")])
def test_a_slow_link_chooses_tight_and_a_fast_link_chooses_fast(mbps: int, profile: str) -> None:
    assert chooser().choose(UNITS, mbps * MBIT).profile == profile


def test_without_a_measured_link_the_cheaper_coding_is_chosen() -> None:
    assert chooser().choose(UNITS, None).profile == "fast"


def test_slow_cores_choose_fast_at_a_link_where_fast_cores_choose_tight() -> None:
    link = 40 * MBIT
    quick, slow = chooser(), chooser()
    for _ in range(8):
        slow.made("fast", UNITS, UNITS // 100, UNITS // 100 * 10 // 8, 40.0, 20.0)
    assert quick.choose(UNITS, link).profile == "tight"
    assert slow.choose(UNITS, link).profile == "fast"


def test_more_cores_choose_tight() -> None:
    link = 2000 * MBIT
    assert ProfileChooser(cores=1).choose(UNITS, link).profile == "fast"
    assert ProfileChooser(cores=64).choose(UNITS, link).profile == "tight"


def test_the_choice_changes_once_as_the_link_gets_faster() -> None:
    chosen = [
        chooser().choose(UNITS, mbps * MBIT).profile for mbps in (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)
    ]
    assert chosen == sorted(chosen, reverse=True)  # tight, … tight, fast, … fast
    assert set(chosen) == {"tight", "fast"}


def test_the_forecast_rises_with_work_and_falls_with_the_link() -> None:
    one = chooser()
    for profile in ("fast", "tight"):
        seconds = [one.forecast(profile, UNITS, mbps * MBIT).seconds for mbps in (1, 10, 100, 1000)]
        assert seconds == sorted(seconds, reverse=True)
        assert one.forecast(profile, 2 * UNITS, 10 * MBIT).seconds > one.forecast(profile, UNITS, 10 * MBIT).seconds


def test_the_choice_does_not_flap_at_the_edge() -> None:
    one = chooser()
    low, high = 1 * MBIT, 100_000 * MBIT
    for _ in range(60):  # the link at which a fresh chooser changes its mind
        middle = (low * high) ** 0.5
        low, high = (middle, high) if chooser().choose(UNITS, middle).profile == "tight" else (low, middle)
    assert one.choose(UNITS, low / 2).profile == "tight"
    assert {one.choose(UNITS, low * factor).profile for factor in (0.97, 1.03) * 5} == {"tight"}
    assert one.choose(UNITS, low * 4).profile == "fast"
    assert {one.choose(UNITS, low * factor).profile for factor in (0.97, 1.03) * 5} == {"fast"}


def test_a_tie_goes_to_fewer_bytes() -> None:
    one = chooser()
    for profile, bits in (("fast", 10), ("tight", 7)):
        for _ in range(30):
            one.made(profile, UNITS, UNITS // 100, UNITS // 100 * bits // 8, 0.0, 0.0)
    # Work and transfer cost nothing.
    assert one.choose(UNITS, 1e30).profile == "tight"


def test_measurements_outweigh_the_calibration() -> None:
    one = chooser()
    assert one.choose(UNITS, 30 * MBIT).profile == "tight"
    for _ in range(8):  # tight turns out to save next to nothing on these weights
        one.made("tight", UNITS, UNITS // 100, int(UNITS // 100 * 9.8 / 8), 6.0, 6.0)
    assert one.choose(UNITS, 30 * MBIT).profile == "fast"


def test_a_forced_profile_is_taken_at_any_link() -> None:
    assert chooser(profile="tight").choose(UNITS, None).profile == "tight"
    assert chooser(profile="fast").choose(UNITS, MBIT).profile == "fast"
    with pytest.raises(UsageError, match="fast, tight or auto"):
        ProfileChooser("thin")


def test_the_choice_gives_its_reason() -> None:
    choice = chooser().choose(UNITS, 30 * MBIT)
    assert "30 Mbit/s" in choice.why and "in fast" in choice.why
    assert {f.profile for f in choice.forecasts} == {"fast", "tight"}


def test_the_slowest_link_is_that_of_the_actor_that_fetched_most_slowly() -> None:
    def at(rate: int, role: str = "actor") -> Member:
        return Member(info=NodeInfo(node="a", role=role), fetch_rate=rate)  # type: ignore[arg-type]

    assert slowest_link([]) is None
    assert slowest_link([member(3), at(0)]) is None
    assert slowest_link([at(5000), at(700), at(0), at(1, "trainer")]) == 700


def test_a_delta_of_an_earlier_life_predicts_the_share_that_changes() -> None:
    one, other = ProfileChooser(), ProfileChooser()
    one.seen("fast", UNITS, UNITS // 1000, UNITS // 1000 * 12 // 8)
    assert one.forecast("fast", UNITS, MBIT).nbytes == pytest.approx(UNITS / 1000 * 1.5)
    assert other.forecast("fast", UNITS, MBIT).nbytes == pytest.approx(UNITS * 0.04 * 9.9 / 8)
    one.seen("fast", UNITS, 0, 0)
    assert one.forecast("fast", UNITS, MBIT).nbytes == pytest.approx(UNITS / 1000 * 1.5)
