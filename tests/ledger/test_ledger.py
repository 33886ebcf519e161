"""The ledger: every item's result counts exactly once, and no work is lost with a node."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2psync.errors import UsageError
from p2psync.membership.work import MAX_GRANT_BYTES, MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES
from p2psync.trainer.ledger.core import Ledger, LedgerConfig


def digest(version: int) -> str:
    return f"{version:032x}"


def make(*items: str, version: int = 0, **config: object) -> Ledger:
    """A ledger at `version` with `items` in its pool, claims of 30 s held for at most 100 s."""
    ledger = Ledger(LedgerConfig(**{"claim_ttl": 30, "max_hold": 100, "allot": False} | config))
    ledger.admit(version, digest(version))
    ledger.put(version, [(item, item.encode()) for item in items])
    return ledger


def names(items: list) -> list[str]:
    return [work.item for work in items]


def complete(ledger: Ledger, lease: str, item: str, now: float = 0, version: int = 0, result: bytes = b"r") -> str:
    return ledger.complete(lease, item, result, version, digest(version), now)


def test_work_is_leased_in_order_and_its_results_are_taken() -> None:
    ledger = make("a", "b", "c")
    assert names(ledger.lease("n", "w1", 2, now=0)) == ["a", "b"]
    assert names(ledger.lease("m", "w2", 2, now=0)) == ["c"]
    assert ledger.lease("m", "w3", 2, now=0) == []
    assert complete(ledger, "w1", "b", result=b"B") == "accepted"
    assert complete(ledger, "w2", "c", result=b"C") == "accepted"
    assert (ledger.pooled, ledger.claimed, ledger.done) == (0, 1, 2)
    taken = ledger.take(10)
    assert [(d.item.item, d.item.payload, d.node, d.version, d.result) for d in taken] == [
        ("b", b"b", "n", 0, b"B"),
        ("c", b"c", "m", 0, b"C"),
    ]
    assert ledger.take(10) == []


def test_a_claim_ends_with_its_ttl_and_its_work_is_leased_again_first() -> None:
    ledger = make("a", "b", "c")
    ledger.lease("n", "w1", 2, now=0)
    assert ledger.next_expiry() == 30
    assert ledger.expire(29.9) == 0
    assert ledger.expire(30) == 2
    assert names(ledger.lease("m", "w2", 3, now=30)) == ["a", "b", "c"]
    assert (ledger.counts.leased, ledger.counts.re_leased, ledger.counts.returned) == (5, 2, 2)


def test_renewed_membership_renews_claims_up_to_a_limit() -> None:
    ledger = make("a")
    ledger.lease("n", "w", 1, now=0)
    for now in (20, 40, 60, 80, 99):
        ledger.renew_node("n", now)
        ledger.renew_node("another", now)
    assert ledger.next_expiry() == 100
    assert ledger.expire(100) == 1


def test_the_work_of_a_node_whose_membership_ends_returns_at_once() -> None:
    ledger = make("a", "b", "c")
    ledger.lease("n", "w1", 1, now=0)
    ledger.lease("n", "w2", 1, now=0)
    ledger.lease("m", "w3", 1, now=0)
    assert ledger.release_node("n") == 2
    assert ledger.release_node("n") == 0
    assert (ledger.pooled, ledger.claimed) == (2, 1)
    assert complete(ledger, "w1", "a") == "late"


def test_a_late_result_is_refused_even_if_no_node_has_the_item() -> None:
    ledger = make("a")
    ledger.lease("n", "w1", 1, now=0)
    assert complete(ledger, "w1", "a", now=30) == "late"
    ledger.lease("m", "w2", 1, now=30)
    assert complete(ledger, "w1", "a", now=31) == "late"
    assert complete(ledger, "w2", "a", now=31) == "accepted"
    assert complete(ledger, "w1", "a", now=31) == "duplicate"
    assert complete(ledger, "w2", "a", now=31) == "duplicate"
    assert complete(ledger, "w2", "never", now=31) == "late"
    assert ledger.counts.refused == {"late": 3, "duplicate": 2}
    assert ledger.counts.completed == 1


def test_another_nodes_claim_does_not_cover_an_item() -> None:
    ledger = make("a", "b")
    ledger.lease("n", "w1", 1, now=0)
    ledger.lease("m", "w2", 1, now=0)
    assert complete(ledger, "w2", "a") == "late"
    assert complete(ledger, "w1", "a") == "accepted"


def test_results_of_old_unknown_or_other_weights_are_refused_and_the_work_returns() -> None:
    ledger = make("a", "b", "c", "d", max_staleness=1)
    for version in (1, 2):
        ledger.admit(version, digest(version))
    ledger.lease("n", "w", 4, now=0)
    assert complete(ledger, "w", "a", version=0) == "stale"
    assert complete(ledger, "w", "b", version=3) == "unknown_version"
    assert ledger.complete("w", "c", b"", 2, digest(1), 0) == "wrong_digest"
    assert complete(ledger, "w", "d", version=1) == "accepted"
    assert names(ledger.lease("m", "w2", 4, now=0)) == ["a", "b", "c"]


def test_one_step_off_policy_unless_told_otherwise() -> None:
    ledger = Ledger()
    ledger.put(0, [("a", b""), ("b", b"")])
    ledger.lease("n", "w", 2, now=0)
    for version in (0, 1):
        ledger.admit(version, digest(version))
    assert complete(ledger, "w", "a", version=0) == "accepted"
    ledger.admit(2, digest(2))
    assert complete(ledger, "w", "b", version=0) == "stale"


def test_nothing_is_admitted_before_the_first_version() -> None:
    ledger = Ledger()
    ledger.put(0, [("a", b"")])
    ledger.lease("n", "w", 1, now=0)
    assert complete(ledger, "w", "a") == "unknown_version"


def test_versions_only_rise() -> None:
    ledger = make(version=3)
    ledger.admit(3, digest(3))
    for version, other in ((2, digest(2)), (3, digest(4))):
        with pytest.raises(UsageError, match="only rise"):
            ledger.admit(version, other)


def test_a_grant_whose_answer_was_lost_is_given_again() -> None:
    ledger = make("a", "b", "c")
    ledger.lease("n", "w", 2, now=0)
    complete(ledger, "w", "a")
    assert names(ledger.lease("n", "w", 2, now=1)) == ["b"]
    assert ledger.counts.leased == 2
    with pytest.raises(UsageError, match="in use"):
        ledger.lease("m", "w", 1, now=1)


def test_one_node_does_not_get_everything() -> None:
    ledger = make("a", "b", "c", max_per_node=2)
    assert len(ledger.lease("n", "w1", 99, now=0)) == 2
    assert ledger.lease("n", "w2", 99, now=0) == []
    complete(ledger, "w1", "a")
    assert names(ledger.lease("n", "w3", 99, now=0)) == ["c"]


def test_a_grant_is_bounded_in_bytes() -> None:
    ledger = Ledger(LedgerConfig(allot=False))
    ledger.put(0, [(str(i), bytes(MAX_PAYLOAD_BYTES)) for i in range(20)])
    assert len(ledger.lease("n", "w", 20, now=0)) == MAX_GRANT_BYTES // MAX_PAYLOAD_BYTES


def test_untaken_results_stop_the_leasing() -> None:
    ledger = make("a", "b", "c", max_done_bytes=10)
    ledger.lease("n", "w", 2, now=0)
    assert complete(ledger, "w", "a", result=bytes(10)) == "accepted"
    assert complete(ledger, "w", "b", result=bytes(1)) == "full"
    assert ledger.lease("m", "w2", 1, now=0) == []
    ledger.take(1)
    assert complete(ledger, "w", "b", result=bytes(1)) == "accepted"
    assert names(ledger.lease("m", "w2", 1, now=0)) == ["c"]


def test_work_of_old_versions_is_dropped_whether_claimed_or_not() -> None:
    ledger = make("a", "b", "c")
    ledger.lease("n", "w", 2, now=0)
    ledger.put(1, [("d", b"")])
    complete(ledger, "w", "a")
    assert ledger.drop_before(1) == 2
    assert (ledger.pooled, ledger.claimed, ledger.done, ledger.counts.dropped) == (1, 0, 1, 2)
    assert complete(ledger, "w", "b") == "late"
    assert ledger.next_expiry() is None


@pytest.mark.parametrize(
    "items",
    [
        [("new", b""), ("a", b"")],
        [("new", b""), ("done", b"")],
        [("new", b""), ("new", b"")],
        [("", b"")],
        [("x" * 129, b"")],
        [("new", bytes(MAX_PAYLOAD_BYTES + 1))],
        [(f"{i}", b"") for i in range(9)],
        [("new", bytes(60)), ("newer", bytes(60))],
    ],
)
def test_invalid_work_is_refused_as_a_whole(items: list[tuple[str, bytes]]) -> None:
    ledger = make("done", "a", max_items=10, max_payload_bytes=100)
    ledger.lease("n", "w", 1, now=0)
    complete(ledger, "w", "done")
    with pytest.raises(UsageError):
        ledger.put(1, items)
    assert (ledger.pooled, ledger.counts.put) == (1, 2)


def test_a_result_over_its_bound_is_refused() -> None:
    ledger = make("a")
    ledger.lease("n", "w", 1, now=0)
    with pytest.raises(UsageError, match="result"):
        complete(ledger, "w", "a", result=bytes(MAX_RESULT_BYTES + 1))
    assert ledger.claimed == 1


@pytest.mark.parametrize(
    "config",
    [
        {"claim_ttl": 0},
        {"claim_ttl": 5, "max_hold": 4},
        {"max_staleness": -1},
        {"remembered": 9, "max_items": 10},
        {"hedge_margin": 0.5},
        {"max_rate": 0},
    ],
)
def test_impossible_bounds_are_refused(config: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        LedgerConfig(**config)


class LedgerMachine(RuleBasedStateMachine):
    """Random use by three nodes: items are conserved, and each is accepted at most once."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = make(max_staleness=1, max_per_node=4)
        self.now = 0
        self.put: set[str] = set()
        self.grants: list[tuple[str, str, int]] = []  # lease, item, granted at
        self.holders: dict[str, str] = {}  # item → its live or last lease
        self.accepted: list[str] = []
        self.taken: list[str] = []

    @rule(count=st.integers(1, 4))
    def put_in(self, count: int) -> None:
        new = [f"item-{len(self.put) + i}" for i in range(count)]
        self.ledger.put(self.ledger.head or 0, [(item, b"p") for item in new])
        self.put.update(new)

    @rule(node=st.sampled_from("xyz"), count=st.integers(1, 5))
    def lease(self, node: str, count: int) -> None:
        lease = f"{node}-{len(self.grants)}-{self.now}-{len(self.accepted)}"
        for work in self.ledger.lease(node, lease, count, self.now):
            assert work.item not in self.accepted
            self.grants.append((lease, work.item, self.now))
            self.holders[work.item] = lease

    @rule(data=st.data(), behind=st.integers(-1, 2))
    def complete(self, data: st.DataObject, behind: int) -> None:
        if not self.grants:
            return
        lease, item, granted = self.grants[data.draw(st.integers(0, len(self.grants) - 1))]
        version = (self.ledger.head or 0) - behind
        verdict = complete(self.ledger, lease, item, self.now, max(version, 0))
        if verdict == "accepted":
            assert item not in self.accepted
            assert self.holders[item] == lease
            assert self.now < granted + 100
            self.accepted.append(item)
        if item in self.accepted[:-1]:
            assert verdict == "duplicate"

    @rule(node=st.sampled_from("xyz"))
    def renew(self, node: str) -> None:
        self.ledger.renew_node(node, self.now)

    @rule(node=st.sampled_from("xyz"))
    def node_ends(self, node: str) -> None:
        self.ledger.release_node(node)
        assert not any(claim.node == node for claim in self.ledger._claims.by_lease.values())

    @rule(seconds=st.integers(1, 40))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        self.ledger.expire(self.now)

    @rule()
    def publish(self) -> None:
        version = (self.ledger.head or 0) + 1
        self.ledger.admit(version, digest(version))

    @rule()
    def take(self) -> None:
        self.taken += [done.item.item for done in self.ledger.take(2)]

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        ledger = self.ledger
        assert ledger.pooled + ledger.claimed + len(self.accepted) == len(self.put)
        assert ledger.done == len(self.accepted) - len(self.taken)
        assert len(set(self.accepted)) == len(self.accepted)
        held = [work.item for claim in ledger._claims.by_lease.values() for work in claim.items.values()]
        assert sorted([*held, *names(list(ledger._pool)), *self.accepted]) == sorted(self.put)

    @invariant()
    def no_claim_outlives_its_limits(self) -> None:
        due = self.ledger.next_expiry()
        assert due is None or self.now < due <= self.now + 30


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
