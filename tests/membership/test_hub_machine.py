"""The hub's core under random operations, against a model: exact revisions, no lease beyond its TTL, one live
claimant."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from membership_parts import LATER_RUN, RUN, announce, claim, fresh, make_core, manifest, node

from p2psync.errors import BaseMismatchError, FencedError, HubError, LeaseError, ReplayError, UsageError
from p2psync.membership.records import Join, Leave, Renew

TTL = 5
_EPOCHS = st.integers(0, 3)
_RUNS = st.sampled_from([RUN, LATER_RUN])
_MANIFESTS = {
    (run, epoch, version, base, created): manifest(version, base, run=run, epoch=epoch, created=created)
    for run in (RUN, LATER_RUN)
    for epoch in range(4)
    for version, base in [(0, None), (1, None), (1, 0), (2, 1)]
    for created in (0.0, 1.0)
}
_KEYS = st.sampled_from(sorted(_MANIFESTS, key=str))


class HubMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = make_core(ttl=TTL, max_members=3, max_manifests=4)
        self.now = 0
        self.leases: dict[str, tuple[int, int, int]] = {}  # lease → node, port, heard
        self.ended_leases: list[str] = []
        self.claimant: tuple[str, int, int] | None = None  # run, epoch, node
        self.claimed_at, self.left = 0, False
        self.tokens: list[str] = []
        self.lineage: list[tuple[str, int, int, int | None, float]] = []
        self.seen = self.visible()
        self.revision = 0

    def some_lease(self, data: st.DataObject) -> str:
        return [*self.ended_leases, "never"][data.draw(st.integers(0, len(self.ended_leases)))]

    def visible(self) -> object:
        view = self.core.view()
        return view.run, view.epoch, view.head, view.lineage, [m.info for m in view.members]

    @rule(number=st.integers(0, 3), port=st.sampled_from([1, 2]), version=st.sampled_from([None, 1]))
    def join(self, number: int, port: int, version: int | None) -> None:
        lease, request = fresh(), Join(info=node(number, port=port), version=version)
        earlier = [old for old, held in self.leases.items() if held[0] == number]
        if not earlier and len(self.leases) == 3:
            with pytest.raises(HubError):
                self.core.join(request, lease=lease, now=self.now)
            return
        self.core.join(request, lease=lease, now=self.now)
        assert [e.lease for e in self.core.expire(self.now)] == earlier
        for old in earlier:
            del self.leases[old]
        self.leases[lease] = (number, port, self.now)
        self.ended_leases.append(lease)

    @rule(data=st.data(), version=st.integers(0, 3))
    def renew(self, data: st.DataObject, version: int) -> None:
        lease = self.some_lease(data)
        if lease not in self.leases:
            with pytest.raises(LeaseError):
                self.core.renew(Renew(lease=lease), now=self.now)
            return
        self.core.renew(Renew(lease=lease, version=version), now=self.now)
        self.leases[lease] = (*self.leases[lease][:2], self.now)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        if lease not in self.leases:
            with pytest.raises(LeaseError):
                self.core.leave(Leave(lease=lease), now=self.now)
            return
        self.core.leave(Leave(lease=lease), now=self.now)
        assert [e.lease for e in self.core.expire(self.now)] == [lease]
        number, _, _ = self.leases.pop(lease)
        self.left |= self.claimant is not None and number == self.claimant[2]

    @rule(seconds=st.integers(1, 7))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        self.core.expire(self.now)
        self.leases = {lease: held for lease, held in self.leases.items() if self.now < held[2] + TTL}

    @rule(run=_RUNS, epoch=_EPOCHS, number=st.integers(0, 1), take_over=st.booleans())
    def claim(self, run: str, epoch: int, number: int, take_over: bool) -> None:
        wanted = (run, epoch, number)
        held = self.claimant
        if held is not None and not (self.may_claim(held, wanted) or (take_over and run != held[0])):
            with pytest.raises(FencedError):
                claim(self.core, self.now, run=run, epoch=epoch, claimant=number, take_over=take_over)
            return
        self.tokens.append(claim(self.core, self.now, run=run, epoch=epoch, claimant=number, take_over=take_over))
        if held is not None and held[0] != run:
            self.lineage = []
        self.claimant, self.claimed_at, self.left = wanted, self.now, False

    def may_claim(self, held: tuple[str, int, int], wanted: tuple[str, int, int]) -> bool:
        """Returns whether a claim needs no `take_over`."""
        if wanted[0] == held[0]:
            return wanted[:2] > held[:2] or wanted == held
        is_here = any(number == held[2] for number, _, _ in self.leases.values())
        is_here |= not self.left and self.now < self.claimed_at + TTL
        return wanted[0] > held[0] and (wanted[2] == held[2] or not is_here)

    @rule(key=_KEYS)
    def announce(self, key: tuple[str, int, int, int | None, float]) -> None:
        if self.claimant is None:
            return
        data, (run, epoch, version, base, _) = _MANIFESTS[key], key
        refusal: type[Exception] | None = None
        if run != self.claimant[0]:
            refusal = ReplayError
        elif epoch > self.claimant[1]:
            refusal = UsageError
        elif key in self.lineage:
            refusal = None
        elif any(other[1:4] == (epoch, version, base) for other in self.lineage):
            refusal = BaseMismatchError
        elif len(self.lineage) == 4:
            refusal = HubError
        if refusal is not None:
            with pytest.raises(refusal):
                announce(self.core, self.tokens[-1], data)
            return
        announce(self.core, self.tokens[-1], data)
        if key not in self.lineage:
            self.lineage.append(key)

    @rule(index=st.integers(0, 3))
    def retire(self, index: int) -> None:
        if index < len(self.lineage):
            announce(self.core, self.tokens[-1], retire=(self.core.view().lineage[index].id,))
            del self.lineage[index]

    @invariant()
    def the_revision_rises_exactly_on_visible_changes(self) -> None:
        seen, revision = self.visible(), self.core.revision
        assert (revision > self.revision) == (seen != self.seen)
        self.seen, self.revision = seen, revision

    @invariant()
    def members_and_lineage_are_those_of_the_model(self) -> None:
        view = self.core.view()
        held = sorted(self.leases.values())
        assert [(m.info.node, m.info.port) for m in view.members] == [(f"{n:032x}", port) for n, port, _ in held]
        assert [a.inline for a in view.lineage] == [_MANIFESTS[key] for key in self.lineage]
        announced = [(epoch, version) for _, epoch, version, _, _ in self.lineage]
        assert view.head == (max(announced)[1] if announced else None)

    @invariant()
    def no_lease_outlives_its_ttl(self) -> None:
        due = self.core.next_expiry()
        assert due is None or self.now < due <= self.now + TTL
        assert due == min((heard + TTL for _, _, heard in self.leases.values()), default=None)

    @invariant()
    def only_the_newest_claimant_lives(self) -> None:
        for token in self.tokens[:-1][-3:]:
            with pytest.raises(FencedError):
                announce(self.core, token)
        for token in self.tokens[-1:]:
            announce(self.core, token)


TestHubMachine = HubMachine.TestCase
TestHubMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
