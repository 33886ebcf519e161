"""The publisher's in-flight window: its size, the limits of paths, slow trees, stragglers, and plans that change."""

from __future__ import annotations

import numpy as np
import pytest

from p2psync.swarm.exchange.bitmap import Bits
from p2psync.swarm.exchange.config import ExchangeConfig
from p2psync.swarm.exchange.in_flight_window import InFlightWindow

CONFIG = ExchangeConfig()
FIRST = CONFIG.latency_first


def holding(*chunks: int) -> Bits:
    flags = np.zeros(2000, np.bool_)
    flags[list(chunks)] = True
    return flags


def held(*flags: Bits) -> dict[str, Bits]:
    """What receivers hold, by their names."""
    return {f"r{i}": theirs for i, theirs in enumerate(flags)}


def following(*rates: float) -> InFlightWindow:
    """A window over trees of these rates (chunks/s), each on a path of its own."""
    window = InFlightWindow(CONFIG)
    window.follow(rates, range(len(rates)))
    return window


def size(rate: float, latency: float, paths: int = 1) -> float:
    """The law: chunks, at so many chunks/s and seconds."""
    return CONFIG.window_gain * rate * latency + CONFIG.window_per_path * paths


def fill(window: InFlightWindow, tree: int, now: float, start: int = 0) -> int:
    """Sends chunks from `start` on until the tree has no room; returns the next one."""
    while window.has_room(tree):
        window.sent(start, tree, now)
        start += 1
    return start


def test_window_is_what_the_trees_carry_in_one_latency_times_a_gain() -> None:
    window = following(40.0, 40.0, 40.0, 40.0)
    assert window.size == pytest.approx(size(160, FIRST, paths=4))
    index = 0
    while (tree := next((tree for tree in range(4) if window.has_room(tree)), None)) is not None:
        window.sent(index, tree, 0.0)
        index += 1
    assert abs(index - window.size) <= 1
    assert window.is_full


def test_path_has_its_share_of_the_window_several_times_at_most() -> None:
    window = following(40.0, 40.0, 40.0, 40.0)
    count = fill(window, 0, 0.0)
    assert count == pytest.approx(CONFIG.path_gain * window.size / 4, abs=1)
    assert window.has_room(1)
    window.update(held(holding(0, 1), holding(1)), 0.3)
    assert window.has_room(0)


def test_trees_with_the_same_children_share_the_limit_of_their_path() -> None:
    window = InFlightWindow(CONFIG)
    window.follow([10.0, 10.0, 20.0, 20.0, 20.0], ["a", "a", "b", "c", "d"])
    fill(window, 0, 0.0)
    assert not window.has_room(1)
    assert window.has_room(2)


def test_chunk_counts_as_the_share_of_receivers_that_lack_it() -> None:
    window = following(40.0)
    chunks = range(fill(window, 0, 0.0))
    window.update(held(holding(*chunks), holding(*chunks), holding(*chunks), holding()), 0.1)
    assert fill(window, 0, 0.1, 100) - 100 == pytest.approx(0.75 * len(chunks), abs=1)


def test_latency_is_the_least_mean_time_until_a_receiver_holds_a_chunk() -> None:
    window = following(100.0)
    window.sent(0, 0, 0.0)
    window.update(held(holding(), holding()), 0.01)
    window.update(held(holding(0), holding()), 0.2)  # both lacked it until now, one for another 0.1 s
    window.update(held(holding(0), holding(0)), 0.3)
    assert window.size == pytest.approx(size(100, 0.25))
    window.sent(1, 0, 0.4)
    window.update(held(holding(0, 1), holding(0, 1)), 0.55)
    assert window.size == pytest.approx(size(100, 0.15))
    window.sent(2, 0, 0.6)
    window.update(held(holding(0, 1, 2), holding(0, 1, 2)), 1.0)
    assert window.size == pytest.approx(size(100, 0.15)), "this one queued"


def test_latency_of_several_paths_is_halfway_from_the_least_to_their_mean() -> None:
    window = following(75.0, 25.0)
    window.sent(0, 0, 0.0)
    window.sent(1, 1, 0.0)
    window.update(held(holding(0)), 0.2)
    assert window.size == pytest.approx(size(100, 0.2, paths=2)), "the other path is not known yet"
    window.update(held(holding(0, 1)), 0.6)
    assert window.size == pytest.approx(size(100, (0.2 + 0.75 * 0.2 + 0.25 * 0.6) / 2, paths=2))


@pytest.mark.parametrize(("took", "counts"), [(0.06, CONFIG.have_delay_pushed), (5.0, CONFIG.latency_most)])
def test_latency_is_no_less_than_haves_are_held_back_and_no_more_than_a_limit(took: float, counts: float) -> None:
    window = following(20.0)
    window.sent(0, 0, 0.0)
    window.update(held(holding(0)), took)
    assert window.size == pytest.approx(size(20, counts))


def test_receiver_that_tells_now_and_then_gets_all_that_its_link_carries() -> None:
    rate, sent, here = 1000.0, 0, 0
    window = following(rate)
    for step in range(int(2 * rate)):
        now = step / rate
        if not window.is_full:
            window.sent(sent, 0, now)
            sent += 1
        if step % int(CONFIG.have_delay_pushed * rate) == 0:  # what was sent a millisecond ago is here, and told
            here = sent - 1
        window.update(held(holding(*range(here))), now)
    assert sent >= 0.98 * 2 * rate


def test_window_grows_with_the_rate_of_delivery_if_that_is_higher_than_planned() -> None:
    window = following(10.0)
    for index in range(120):  # 60 a second, each held by all after a tenth of a second
        window.update(held(holding(*range(index - 6))), index / 60)
        window.sent(index, 0, index / 60)
    assert window.size == pytest.approx(size(60, 0.1), rel=0.15)


def test_small_manifest_may_be_under_way_as_a_whole() -> None:
    window = InFlightWindow(CONFIG, unlimited=True)
    window.follow([1.0], [0])
    for index in range(100):
        assert window.has_room(0)
        window.sent(index, 0, 0.0)


def test_update_too_soon_after_the_last_changes_nothing() -> None:
    window = following(1.0)
    chunks = range(fill(window, 0, 0.0))
    window.update(held(holding()), 0.1)
    window.update(held(holding(*chunks)), 0.1 + CONFIG.poll_interval / 2)
    assert not window.has_room(0)
    window.update(held(holding(*chunks)), 0.1 + 2 * CONFIG.poll_interval)
    assert window.has_room(0)


# ---- receivers -----------------------------------------------------------------------------------------------------


def test_chunk_leaves_the_window_after_a_timeout_whoever_lacks_it() -> None:
    window = following(40.0)
    fill(window, 0, 0.0)
    window.update(held(holding(), holding()), CONFIG.chunk_timeout - 0.1)
    assert window.is_full
    window.update(held(holding(), holding()), CONFIG.chunk_timeout + 0.1)
    assert not window.is_full


def test_path_that_delivers_nothing_takes_nothing_while_the_others_go_on() -> None:
    window, sent = following(25.0, 25.0, 25.0, 25.0), [0, 0, 0, 0]
    arrives: list[tuple[float, int]] = []
    for step in range(500):
        now = step / 100
        for tree in range(4):
            if window.has_room(tree):
                index = sum(sent)
                window.sent(index, tree, now)
                sent[tree] += 1
                if tree:
                    arrives.append((now + 0.2, index))
        window.update(held(*[holding(*(index for at, index in arrives if at <= now))] * 5), now)
    assert sent[0] <= CONFIG.path_gain * size(100, FIRST, paths=4) / 4 + 1
    assert sum(sent) > 250


def test_receiver_that_is_heard_of_late_has_lacked_the_chunks_since_they_were_sent() -> None:
    window = following(100.0)
    window.sent(0, 0, 0.0)
    window.update(held(holding(0)), 0.1)
    assert window.size == pytest.approx(size(100, 0.1))
    window.sent(1, 0, 0.4)
    window.update(held(holding(0), holding()), 0.5)
    assert window.size == pytest.approx(size(100, (0.1 + 0.5) / 2))


@pytest.mark.parametrize("latency", [0.02, 0.2, 0.8])
@pytest.mark.parametrize("receivers", [2, 4, 12])
def test_straggler_that_gets_nothing_does_not_stop_the_others(latency: float, receivers: int) -> None:
    window, rate, sent_at = following(50.0), 50.0, [0.0] * 0
    for step in range(1000):
        now = step / 100
        if not window.is_full and len(sent_at) < now * rate:
            window.sent(len(sent_at), 0, now)
            sent_at.append(now)
        theirs = holding(*(index for index, at in enumerate(sent_at) if now - at > latency))
        window.update(held(holding(), *[theirs] * (receivers - 1)), now)
    assert len(sent_at) > 0.8 * 10 * rate


# ---- plans ---------------------------------------------------------------------------------------------------------


def test_new_plan_begins_with_the_latency_that_was_measured() -> None:
    window = following(100.0)
    window.sent(0, 0, 0.0)
    window.update(held(holding(0)), 0.15)
    window.follow([50.0, 50.0], ["a", "b"])
    assert window.size == pytest.approx(size(100, 0.15, paths=2))


def test_chunks_of_an_earlier_plan_count_in_the_window_and_on_no_path() -> None:
    window = following(40.0, 40.0)
    last = fill(window, 1, 0.0, fill(window, 0, 0.0))
    assert window.is_full
    window.follow([60.0, 20.0], range(2))
    assert window.is_full
    assert window.load(0) < 0.1
    window.update(held(holding(*range(last))), 0.1)
    assert window.has_room(0)


def test_chunk_that_is_sent_again_counts_once() -> None:
    window = following(1.0, 1.0)
    window.sent(0, 0, 0.0)
    once = window.load(0)
    window.sent(0, 1, 1.0)
    assert window.load(0) < once
    window.sent(0, 0, 1.0)
    assert window.load(0) == once


def test_chunk_that_is_sent_again_tells_no_latency() -> None:
    window = following(100.0)
    window.sent(0, 0, 0.0)
    window.update(held(holding(0)), 0.3)
    measured = window.size
    window.sent(0, 0, 0.4)
    window.update(held(holding(0)), 0.5)
    assert window.size == measured


# ---- slow trees ----------------------------------------------------------------------------------------------------


def completing(*seconds: float) -> InFlightWindow:
    """Trees of ten chunks/s each, in which one chunk took so long to reach all receivers."""
    window = following(*[10.0] * len(seconds))
    for tree in range(len(seconds)):
        window.sent(tree, tree, 0.0)
    for now in sorted(seconds):
        window.update(held(holding(*(tree for tree, took in enumerate(seconds) if took <= now))), now)
    return window


@pytest.mark.parametrize(("chunks", "slow"), [(60, set()), (4, {1}), (2, {1, 2}), (1, {1, 2})])
def test_tree_is_slow_if_the_others_would_complete_all_chunks_sooner(chunks: int, slow: set[int]) -> None:
    assert completing(0.2, 0.9, 0.5).slow_trees([0, 1, 2], chunks) == slow


def test_of_equally_slow_trees_none_is_left_out() -> None:
    assert completing(0.9, 0.9).slow_trees([0, 1], 1) == set()


def test_no_tree_is_slow_before_all_times_are_known() -> None:
    window = completing(0.2, 0.9)
    assert window.slow_trees([0, 1], 1) == {1}
    assert window.slow_trees([1], 1) == set(), "the fast tree is not to be had"
    window.follow([10.0, 10.0], range(2))
    assert window.slow_trees([0, 1], 1) == set()
    assert window.slow_trees([], 1) == set()
