"""Work goes to the node that finishes it first: shares by measured speed, none for late nodes, hedges at the tail."""

from __future__ import annotations

import pytest

from p2psync.bench.rollouts.steps import Case, RolloutSimulation, compare
from p2psync.membership.work import MAX_RESULT_BYTES
from p2psync.trainer.ledger.core import Ledger, LedgerConfig

TWO = [1000.0, 3000.0]
FOUR = [1000.0, 1000.0, 1000.0, 5000.0]


def digest(version: int) -> str:
    return f"{version:032x}"


def ledger(items: int, version: int = 0, **config: object) -> Ledger:
    made = Ledger(LedgerConfig(**({"claim_ttl": 1e6, "max_hold": 1e6} | config)))
    made.admit(version, digest(version))
    made.put(version, [(f"{version}/{index}", b"") for index in range(items)])
    return made


def work(
    ledger: Ledger, node: str, count: int, began: float, each: float, tokens: int = 100, version: int = 0
) -> float:
    """Makes a node do `items` items, one after another, `each` seconds long; returns when it finished."""
    now = began
    for index in range(count):
        lease = f"{node}-{began}-{index}"
        (item,) = ledger.lease(node, lease, 1, now, version)
        now += each
        assert ledger.complete(lease, item.item, b"", version, digest(version), now, tokens) == "accepted"
    return now


def names(items: list) -> list[str]:
    return [item.item for item in items]


@pytest.mark.parametrize("lengths", ["fixed", "exponential", "heavy"])
@pytest.mark.parametrize("speeds", [TWO, FOUR], ids=["1:3", "1:1:1:5"])
def test_steps_take_a_quarter_less_time_than_with_an_equal_split(speeds: list[float], lengths: str) -> None:
    equal, allotted = compare(
        Case(name="", speeds=speeds, lengths=lengths, items=128, steps=4), policies=("equal", "allotted")
    )
    assert allotted.total < 0.75 * equal.total
    assert allotted.wasted < 0.05


def test_steps_of_many_items_at_a_time_take_a_quarter_less_as_well() -> None:
    case = Case(name="", speeds=TWO, slots=16, items=256, steps=3)
    equal, first_come, allotted = compare(case)
    assert allotted.total < 0.75 * equal.total
    assert allotted.total < first_come.total


def test_the_same_case_goes_the_same_way() -> None:
    case = Case(name="", speeds=FOUR, items=64, steps=2)
    assert RolloutSimulation(case, "allotted").run() == RolloutSimulation(case, "allotted").run()


def test_shares_follow_measured_speed() -> None:
    made = ledger(300)
    end = work(made, "slow", 8, 0.0, 3.0)
    work(made, "fast", 24, 0.0, 1.0)
    shares = [len(made.lease(node, node, 256, end)) for node in ("fast", "slow")]
    assert sum(shares) == 300 - 32
    assert shares[0] == pytest.approx(3 * shares[1], rel=0.05)


def test_shares_are_measured_in_tokens_not_items() -> None:
    made = ledger(300)
    work(made, "long", 20, 0.0, 1.5, tokens=150)  # as fast as the other: its items were longer
    work(made, "short", 30, 0.0, 1.0, tokens=100)
    shares = [len(made.lease(node, node, 256, 30.0)) for node in ("long", "short")]
    assert shares[0] == pytest.approx(shares[1], rel=0.05)


@pytest.mark.parametrize("claimed", [10**4, 10**9])
def test_a_node_that_overstates_tokens_gains_twofold_at_most(claimed: int) -> None:
    made = ledger(400)
    for node in ("a", "b"):
        work(made, node, 20, 0.0, 1.0)
    work(made, "liar", 20, 0.0, 1.0, tokens=claimed)
    shares = {node: len(made.lease(node, node, 256, 20.0)) for node in ("a", "liar", "b")}
    assert shares["liar"] <= 2.1 * shares["a"]
    assert sum(shares.values()) == 340


def test_a_liar_does_not_make_steps_longer() -> None:
    honest, lying = (
        RolloutSimulation(Case(name="", speeds=TWO, items=128, steps=4, claims=claims), "allotted").run()
        for claims in ([1.0, 1.0], [100.0, 1.0])
    )
    assert lying.total < 1.1 * honest.total


def test_the_last_item_waits_for_the_node_that_finishes_it_first() -> None:
    made = ledger(21)
    end = work(made, "slow", 2, 0.0, 10.0)
    work(made, "fast", 18, 0.0, 1.0)
    (held,) = made.lease("fast", "held", 1, end)
    made.put(0, [("last", b"")])
    assert made.lease("slow", "w", 1, end + 0.1) == []  # ten seconds; the busy one needs two
    assert made.complete("held", held.item, b"", 0, digest(0), end + 1, 100) == "accepted"
    assert names(made.lease("fast", "w2", 1, end + 1)) == ["last"]


def test_a_long_silent_node_is_not_waited_for() -> None:
    made = ledger(21, hedge_margin=0)
    end = work(made, "slow", 2, 0.0, 10.0)
    work(made, "fast", 18, 0.0, 1.0)
    made.lease("fast", "held", 1, end)
    made.put(0, [("last", b"")])
    assert made.lease("slow", "w", 1, end + 0.1) == []
    assert names(made.lease("slow", "w", 1, end + 30)) == ["last"]


def test_an_unmeasured_node_gets_half_of_an_equal_part() -> None:
    made = ledger(120)
    work(made, "known", 20, 0.0, 1.0)
    assert len(made.lease("new", "w", 256, 20.0)) == 100 // 4
    assert made.lease("new", "w2", 256, 20.0) == []
    small = ledger(8)
    assert len(small.lease("new", "w", 256, 0.0)) == 4  # but always so many that its speed can be seen


def test_a_node_with_a_stale_version_gets_no_items_until_it_has_a_newer_one() -> None:
    made = ledger(8, max_staleness=1)
    made.admit(1, digest(1), 10.0)
    made.admit(2, digest(2), 20.0)
    assert made.lease("late", "w", 1, 21.0, version=0) == []
    made.renew_node("late", 22.0, version=1)
    assert len(made.lease("late", "w", 1, 22.0)) == 1


def test_a_node_whose_result_would_be_stale_waits_for_the_newer_version() -> None:
    made = ledger(60, max_staleness=1)
    for version in range(1, 5):
        made.admit(version, digest(version), 10.0 * version)
    work(made, "node", 8, 10.0, 4.0, version=4)
    made.admit(5, digest(5), 50.0)
    # 6 is due at 60: an item of four seconds is through by then, one begun at 57 under version 4 is not.
    assert len(made.lease("node", "early", 1, 51.0, version=4)) == 1
    made.complete("early", "0/8", b"", 4, digest(4), 55.0, 100)
    assert made.lease("node", "w", 1, 57.0, version=4) == []
    assert len(made.lease("node", "w", 1, 57.0, version=5)) == 1
    # A version that does not come when it was due keeps nobody waiting.
    assert len(made.lease("node", "w2", 1, 61.0, version=4)) == 1


def test_a_node_that_gets_versions_late_gets_fewer_items() -> None:
    made = ledger(0, max_staleness=0)
    for version in range(1, 4):
        made.admit(version, digest(version), 100.0 * version)
        made.put(version, [(f"{version}/{index}", b"") for index in range(40)])
        for node, update_delay in (("late", 15.0), ("early", 0.0)):
            made.lease(node, f"{node}-{version}", 1, 100.0 * version, version - 1)
            made.renew_node(node, 100.0 * version + update_delay, version)
    made.drop_before(4)
    for node in ("late", "early"):
        made.put(3, [(f"{node}/{index}", b"") for index in range(20)])
        work(made, node, 20, 320.0, 1.0, version=3)
    made.admit(4, digest(4), 400.0)
    made.put(4, [(f"4/{index}", b"") for index in range(40)])
    assert made.lease("late", "l", 256, 400.0, 3) == []
    early = len(made.lease("early", "e", 256, 400.0, 4))
    made.renew_node("late", 415.0, 4)
    late = len(made.lease("late", "l", 256, 415.0, 4))
    assert early + late == 40
    assert early - late == pytest.approx(15, abs=2)


def test_the_last_items_of_a_slow_node_are_offered_again_and_one_result_counts() -> None:
    made = ledger(40)
    end = work(made, "slow", 2, 0.0, 10.0)
    work(made, "fast", 18, 0.0, 1.0)
    held = [item.item for item in made._pool]
    for item in held[4:]:
        made._pool.remove(
            made._items.numbers[item]
        )  # only four are left, and the slow one got them all when nobody else was
    made.throughput.workers["fast"].seen = -100.0
    assert names(made.lease("slow", "s", 4, end)) == held[:4]
    assert names(made.lease("fast", "f", 4, end + 0.1)) == [held[3]]
    assert names(made.lease("fast", "f2", 4, end + 0.2)) == [held[2]]
    assert made.counts.hedged == 2
    assert made.complete("f", held[3], b"mine", 0, digest(0), end + 1, 100) == "accepted"
    assert made.complete("s", held[3], b"yours", 0, digest(0), end + 2, 100) == "duplicate"
    assert made.void("s") == [held[3]] and made.void("s") == []
    assert made.complete("s", held[2], b"yours", 0, digest(0), end + 2, 100) == "accepted"
    assert made.complete("f2", held[2], b"mine", 0, digest(0), end + 2, 100) == "duplicate"
    assert [done.result for done in made.take(99)[-2:]] == [b"mine", b"yours"]


def test_an_item_is_hedged_only_if_that_is_sooner() -> None:
    made = ledger(20)
    end = work(made, "slow", 2, 0.0, 10.0)
    work(made, "fast", 17, 0.0, 1.0)
    assert len(made.lease("fast", "f", 1, end)) == 1
    assert made.lease("slow", "s", 4, end + 0.2) == []
    assert made.counts.hedged == 0


def test_an_item_held_twice_returns_to_the_pool_once_both_claims_end() -> None:
    made = ledger(20)
    end = work(made, "slow", 2, 0.0, 10.0)
    work(made, "fast", 17, 0.0, 1.0)
    made.throughput.workers["fast"].seen = -100.0
    (item,) = made.lease("slow", "s", 1, end)
    assert made.lease("fast", "f", 1, end + 0.1) == [item]
    assert (made.pooled, made.claimed) == (0, 1)
    assert made.release_node("slow") == 0
    assert made.release_node("fast") == 1
    assert (made.pooled, made.claimed) == (1, 0)


def test_the_step_in_hand_is_hedged_before_the_next_one_is_begun() -> None:
    made = ledger(20)
    end = work(made, "slow", 2, 0.0, 10.0)
    work(made, "fast", 17, 0.0, 1.0)
    made.throughput.workers["fast"].seen = -100.0
    made.put(1, [(f"1/{index}", b"") for index in range(8)])
    slow = made.lease("slow", "s", 1, end)
    assert names(slow) == ["0/19"]
    assert made.lease("fast", "f", 1, end + 0.1) == slow
    assert [item.version for item in made.lease("fast", "f2", 4, end + 0.1)][:1] == [1]


def test_early_results_of_the_next_step_leave_space_for_this_one() -> None:
    made = ledger(2, allot=False, max_done_bytes=2 * MAX_RESULT_BYTES)
    made.put(1, [(f"1/{index}", b"") for index in range(4)])
    made.lease("node", "w", 6, 0.0)
    whole = bytes(MAX_RESULT_BYTES)
    assert made.complete("w", "1/0", whole, 0, digest(0), 1.0) == "accepted"
    assert made.complete("w", "1/1", whole, 0, digest(0), 1.0) == "full"
    assert made.complete("w", "0/0", whole, 0, digest(0), 1.0) == "accepted"
    assert made.complete("w", "0/1", whole, 0, digest(0), 1.0) == "full"
    assert [done.item.item for done in made.take(9, version=0)] == ["0/0"]
    assert made.complete("w", "0/1", whole, 0, digest(0), 1.0) == "accepted"
