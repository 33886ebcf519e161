"""Incremental views: a node that merges changes has the same view as one that reads all of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membership_parts import LATER_RUN, RUN, announce, claim, fresh, make_core, manifest, node

from p2psync.errors import FormatError
from p2psync.membership.changes import ChangeLog, merge_views
from p2psync.membership.hub import HubCore
from p2psync.membership.records import Join, Leave, Renew, View


def bare(view: View) -> View:
    """A view without inlined manifests and members' versions, which changes leave out."""
    members = [msgspec.structs.replace(member, version=None, digest="") for member in view.members]
    lineage = [msgspec.structs.replace(a, inline=None) for a in view.lineage]
    return msgspec.structs.replace(view, members=members, lineage=lineage)


class Swarm:
    """A hub and its random operations."""

    def __init__(self) -> None:
        self.core: HubCore = make_core(ttl=10.0)
        self.now = 0.0
        self.token = claim(self.core)
        self.run, self.epoch, self.version = RUN, 1, -1
        self.leases: dict[int, str] = {}

    def happen(self, what: int, number: int) -> None:
        """Performs one random operation."""
        core = self.core
        if what == 0:
            self.leases[number] = core.join(Join(info=node(number)), lease=fresh(), now=self.now).lease
        elif what == 1 and number in self.leases:
            core.leave(Leave(lease=self.leases.pop(number)), now=self.now)
        elif what == 2:
            lease = core.join(Join(info=node(number, port=9000 + number)), lease=fresh(), now=self.now).lease
            self.leases[number] = lease
        elif what == 3:
            self.now += 6.0
            core.expire(self.now)
            there = {member.info.node for member in core.view().members}
            self.leases = {n: lease for n, lease in self.leases.items() if node(n).node in there}
        elif what == 4 and self.version < 200:
            base = self.version if self.version >= 0 and self.run == RUN else None
            self.version += 1
            announce(core, self.token, manifest(self.version, base, run=self.run, epoch=self.epoch))
        elif what == 5 and core.view().lineage:
            announce(core, self.token, retire=(core.view().lineage[0].id,))
        elif what == 6:
            self.run, self.epoch = LATER_RUN, self.epoch + 1
            self.token = claim(core, self.now, run=self.run, epoch=self.epoch)
        elif what == 7 and number in self.leases:
            core.renew(Renew(lease=self.leases[number], version=number, digest="ab" * 16), now=self.now)


events = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 6)), max_size=60)


@given(events=events)
@settings(max_examples=150)
def test_merged_changes_equal_the_whole_view(events: list[tuple[int, int]]) -> None:
    swarm = Swarm()
    known = swarm.core.view()
    for what, number in events:
        if what == 8:  # it asks, after as many changes as there were
            changes = swarm.core.changes(known.revision)
            known = merge_views(known, changes) if changes is not None else swarm.core.view(known.revision)
            assert bare(known) == bare(swarm.core.view())
        else:
            swarm.happen(what, number)
    changes = swarm.core.changes(known.revision)
    assert changes is None or bare(merge_views(known, changes)) == bare(swarm.core.view())


def test_changes_have_constant_size_in_a_large_swarm() -> None:
    core = make_core()
    token = claim(core)
    announce(core, token, *[manifest(version, version - 1 if version else None) for version in range(100)])
    for number in range(1000):
        core.join(Join(info=node(number)), lease=fresh(), now=0.0)
    known = core.revision
    announce(core, token, manifest(100, 99))
    core.join(Join(info=node(5000)), lease="one more", now=0.0)
    changes = core.changes(known)
    assert changes is not None and changes.since == known
    assert [a.version for a in changes.lineage] == [100] and changes.lineage[0].inline is not None
    assert [member.info for member in changes.members] == [node(5000)] and changes.gone == changes.retired == []
    assert len(msgspec.json.encode(changes)) < 2500


def test_a_reader_with_an_old_revision_or_none_gets_the_whole_view() -> None:
    core = make_core()
    assert core.changes(-1) is None and core.changes(1) is None
    token = claim(core)
    known = core.revision
    claim(core, run=LATER_RUN)
    assert core.changes(known) is None, "another run has another lineage"
    log = ChangeLog(most=2)
    for revision, name in enumerate("abc", 1):
        log.add(revision, name)
    assert [log.since(revision) for revision in range(4)] == [None, {"b", "c"}, {"c"}, set()]
    assert token


def test_changes_apply_to_one_base_view_only() -> None:
    changes = View(instance="hub", revision=5, since=4)
    for before in (None, View(instance="hub", revision=3), View(instance="other", revision=4)):
        with pytest.raises(FormatError, match="requests the whole view"):
            merge_views(before, changes)
    assert merge_views(View(instance="hub", revision=4), changes) == View(instance="hub", revision=5)
