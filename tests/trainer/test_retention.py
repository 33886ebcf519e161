"""What a trainer keeps, and when it writes a version out whole."""

from __future__ import annotations

import pytest
from trainer_parts import announcement, member

from p2psync.membership.records import Announcement
from p2psync.protocol.lineage import resolve
from trainer.retention import anchor_due, to_retire


def chain(last: int, size: int = 10, anchor: int = 1000) -> list[Announcement]:
    """The anchor of version 0 and deltas up to `last`."""
    return [announcement(0, size=anchor)] + [announcement(v, v - 1, size) for v in range(1, last + 1)]


def names(lineage: list[Announcement]) -> list[tuple[int | None, int]]:
    return sorted(((a.base, a.version) for a in lineage), key=str)


def test_nothing_is_due_before_the_first_version() -> None:
    assert not anchor_due([], 1.0)
    assert to_retire([], [member(3)], 5) == []


@pytest.mark.parametrize(("deltas", "due"), [(10, False), (100, False), (101, True)])
def test_an_anchor_is_due_once_the_deltas_outweigh_the_last_one(deltas: int, due: bool) -> None:
    assert bool(anchor_due(chain(deltas), 1.0)) is due


def test_an_anchor_is_due_when_none_leads_to_the_head() -> None:
    assert anchor_due([announcement(5, 4)], 1.0)
    assert anchor_due([announcement(0, size=1000), announcement(2, 1)], 1.0)


def test_a_new_anchor_retires_the_old_one_and_what_leads_to_it() -> None:
    lineage = [*chain(100), announcement(100, size=1000), announcement(101, 100)]
    assert names(to_retire(lineage, [member(101)], 0)) == names(chain(100))


def test_deltas_stay_for_members_that_are_behind_and_for_those_who_were_away() -> None:
    lineage = [*chain(100), announcement(100, size=1000), announcement(101, 100)]
    left = [a for a in lineage if a not in to_retire(lineage, [member(90), member(101)], 0)]
    assert names(left) == names([announcement(v, v - 1) for v in range(91, 102)] + [announcement(100, size=1000)])
    left = [a for a in lineage if a not in to_retire(lineage, [member(101)], keep=64)]
    assert min(a.version for a in left) == 101 - 64 + 1


def test_a_member_that_stays_far_behind_does_not_hold_more_than_an_anchor_would_cost_it() -> None:
    lineage = [*chain(500), announcement(500, size=1000)]
    left = [a for a in lineage if a not in to_retire(lineage, [member(3), member(500)], keep=10_000)]
    assert sum(a.payload_bytes for a in left if a.base is not None) == 1000
    assert resolve(left, (3, "3"), (500, "500")) == [announcement(500, size=1000)]


def test_who_starts_from_nothing_may_finish_the_anchor_that_it_began() -> None:
    lineage = [*chain(5), announcement(5, size=1000), announcement(6, 5)]
    left = [a for a in lineage if a not in to_retire(lineage, [member(None), member(6)], 0)]
    assert names(left) == names(lineage)
    once_more = [*left, announcement(6, size=1000)]
    left = [a for a in once_more if a not in to_retire(once_more, [member(None)], 0)]
    assert names(left) == names([announcement(5, size=1000), announcement(6, size=1000), announcement(6, 5)])


def test_what_a_fork_left_behind_goes() -> None:
    lost = [announcement(3, 2, fork="x"), announcement(4, 3, fork="x", base_fork="x")]
    taken_over = [announcement(3, 2, epoch=2, fork="y")]
    lineage = [*chain(2), *lost, *taken_over]
    assert to_retire(lineage, [member(2)], 64) == lost


def test_whatever_is_retired_everyone_still_gets_there_as_cheaply() -> None:
    lineage = [*chain(40, size=7), announcement(20, size=1000), *[announcement(40, size=900)]]
    for keep in (0, 1, 5, 64):
        for versions in ([None], [0], [15, 39], [40], [None, 30]):
            left = [a for a in lineage if a not in to_retire(lineage, [member(v) for v in versions], keep)]
            for start in [*versions, *range(max(0, 40 - keep), 41)]:
                place = None if start is None else (start, str(start))
                before, after = (resolve(some, place, (40, "40")) for some in (lineage, left))
                assert before is not None and after is not None
                assert sum(a.payload_bytes for a in after) == sum(a.payload_bytes for a in before)


def test_a_delta_larger_than_the_anchor_after_it_stays_while_somebody_may_be_fetching_it() -> None:
    delta, anchor = announcement(1, 0, 1200), announcement(1, size=1000)
    lineage = [announcement(0, size=1000), delta, anchor]
    assert delta not in to_retire(lineage, [member(0), member(1)], 0)
    assert delta in to_retire(lineage, [member(1), member(1)], 0)
