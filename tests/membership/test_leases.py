"""Leases: granted, renewed, replaced, ended."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from membership_parts import node

from p2psync.errors import HubError, LeaseError, UsageError
from p2psync.membership.leases import LeaseTable
from p2psync.membership.records import Member


def member(number: int, **fields: object) -> Member:
    return Member(info=node(number), **fields)


def test_a_lease_lives_for_its_ttl_and_not_longer() -> None:
    table = LeaseTable(ttl=10)
    table.join("a", member(1), now=0)
    assert table.expire(9.99) == []
    assert table.next_expiry() == 10
    assert [(e.lease, e.reason) for e in table.expire(10)] == [("a", "expired")]
    assert table.members() == []
    assert table.next_expiry() is None


def test_a_renewal_extends_the_lease_by_its_ttl() -> None:
    table = LeaseTable(ttl=10)
    table.join("a", member(1), now=0)
    table.renew("a", 3, "d" * 32, now=9)
    assert table.next_expiry() == 19
    assert table.members() == [member(1, version=3, digest="d" * 32)]
    assert table.expire(18.9) == []


def test_an_ended_lease_is_refused_even_before_it_is_swept() -> None:
    table = LeaseTable(ttl=10)
    table.join("a", member(1), now=0)
    with pytest.raises(LeaseError, match="join again"):
        table.renew("a", None, "", now=10)
    with pytest.raises(LeaseError, match="join again"):
        table.leave("a", now=10)
    with pytest.raises(LeaseError, match="join again"):
        table.renew("never", None, "", now=0)


def test_a_node_that_joins_again_replaces_its_lease() -> None:
    table = LeaseTable(ttl=10)
    table.join("a", member(1), now=0)
    ended = table.join("b", member(1, version=4), now=1)
    assert ended is not None and (ended.lease, ended.reason) == ("a", "replaced")
    with pytest.raises(LeaseError):
        table.renew("a", None, "", now=1)
    assert table.members() == [member(1, version=4)]
    assert table.next_expiry() == 11


def test_a_full_table_admits_only_its_members() -> None:
    table = LeaseTable(ttl=10, max_members=1)
    table.join("a", member(1), now=0)
    with pytest.raises(HubError, match="full"):
        table.join("b", member(2), now=0)
    table.join("c", member(1), now=0)
    table.leave("c", now=0)
    table.join("d", member(2), now=0)


def test_a_lease_id_is_used_once() -> None:
    table = LeaseTable(ttl=10)
    table.join("a", member(1), now=0)
    with pytest.raises(UsageError, match="in use"):
        table.join("a", member(2), now=0)


@pytest.mark.parametrize(("ttl", "size"), [(0, 1), (-1, 1), (float("inf"), 1), (float("nan"), 1), (1, 0)])
def test_impossible_tables_are_refused(ttl: float, size: int) -> None:
    with pytest.raises(UsageError, match="above 0"):
        LeaseTable(ttl, size)


def test_ten_thousand_members_join_renew_and_leave() -> None:
    table = LeaseTable(ttl=10)
    for number in range(10_000):
        table.join(str(number), member(number), now=number / 10_000)
    for step in range(1, 4):
        for number in range(0, 10_000, 2):
            table.renew(str(number), step, "", now=step * 3)
    assert len(table.expire(11.5)) == 5_000
    assert len(table.members()) == 5_000
    assert len(table.expire(19)) == 5_000


class LeaseMachine(RuleBasedStateMachine):
    """The table against a dictionary: lease → (node, time of last grant or renewal)."""

    TTL = 5

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(ttl=self.TTL, max_members=3)
        self.model: dict[str, tuple[int, int]] = {}
        self.granted: list[str] = []
        self.now = 0

    def live(self) -> dict[str, tuple[int, int]]:
        return {lease: held for lease, held in self.model.items() if self.now < held[1] + self.TTL}

    @rule(number=st.integers(0, 4))
    def join(self, number: int) -> None:
        self.sweep()
        lease = f"lease-{len(self.granted)}"
        held = [old for old, (n, _) in self.model.items() if n == number]
        if not held and len(self.model) == 3:
            with pytest.raises(HubError):
                self.table.join(lease, member(number), self.now)
            return
        ended = self.table.join(lease, member(number), self.now)
        assert ([] if ended is None else [ended.lease]) == held
        for old in held:
            del self.model[old]
        self.model[lease] = (number, self.now)
        self.granted.append(lease)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([*self.granted, "never"]))
        if lease in self.live():
            self.table.renew(lease, self.now, "", self.now)
            self.model[lease] = (self.model[lease][0], self.now)
        else:
            with pytest.raises(LeaseError):
                self.table.renew(lease, self.now, "", self.now)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from([*self.granted, "never"]))
        if lease in self.live():
            assert self.table.leave(lease, self.now).lease == lease
            del self.model[lease]
        else:
            with pytest.raises(LeaseError):
                self.table.leave(lease, self.now)

    @rule(seconds=st.integers(0, 7))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        ended = {e.lease for e in self.table.expire(self.now)}
        assert ended == set(self.model) - set(self.live())
        self.model = self.live()

    @invariant()
    def agrees(self) -> None:
        assert [m.info.node for m in self.table.members()] == sorted(f"{n:032x}" for n, _ in self.model.values())
        assert self.table.next_expiry() == min((t + self.TTL for _, t in self.model.values()), default=None)
        for lease in self.granted:
            if lease not in self.live():
                with pytest.raises(LeaseError):
                    self.table.holder(lease, self.now)
            else:
                assert self.table.holder(lease, self.now).heard + self.TTL > self.now


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
