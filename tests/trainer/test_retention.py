"""Retention keeps the manifests that members need, and decides when an anchor is due."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_parts import announcement, member

from p2psync.membership.records import Announcement
from p2psync.protocol.lineage import newest_announcement, resolve, target_key
from p2psync.trainer.versions.retention import ANCHOR_DELTAS, MAX_ANNOUNCED, anchor_due, to_retire


def chain(last: int, size: int = 10, anchor: int = 1000) -> list[Announcement]:
    """Returns the anchor of version 0 and deltas up to `last`."""
    return [announcement(0, size=anchor)] + [announcement(v, v - 1, size) for v in range(1, last + 1)]


def names(lineage: list[Announcement]) -> list[tuple[int | None, int]]:
    return sorted(((a.base, a.version) for a in lineage), key=str)


def kept(lineage: list[Announcement], retired: list[Announcement]) -> list[Announcement]:
    gone = {a.id for a in retired}
    return [a for a in lineage if a.id not in gone]


def test_no_anchor_is_due_before_the_first_version() -> None:
    assert not anchor_due([], 1.0)
    assert to_retire([], [member(3)], 5) == []


@pytest.mark.parametrize(("deltas", "due"), [(10, False), (100, False), (101, True)])
def test_an_anchor_is_due_once_the_deltas_outweigh_the_last_one(deltas: int, due: bool) -> None:
    assert bool(anchor_due(chain(deltas), 1.0)) is due


def test_an_anchor_is_due_when_none_leads_to_the_head() -> None:
    assert anchor_due([announcement(5, 4)], 1.0)
    assert anchor_due([announcement(0, size=1000), announcement(2, 1)], 1.0)


def test_a_new_anchor_retires_the_old_one_and_its_deltas() -> None:
    lineage = [*chain(100), announcement(100, size=1000), announcement(101, 100)]
    assert names(to_retire(lineage, [member(101)], 0)) == names(chain(100))


def test_deltas_are_kept_for_members_behind_and_for_absent_members() -> None:
    lineage = [*chain(100), announcement(100, size=1000), announcement(101, 100)]
    left = [a for a in lineage if a not in to_retire(lineage, [member(90), member(101)], 0)]
    assert names(left) == names([announcement(v, v - 1) for v in range(91, 102)] + [announcement(100, size=1000)])
    left = [a for a in lineage if a not in to_retire(lineage, [member(101)], keep=64)]
    assert min(a.version for a in left) == 101 - 64 + 1


def test_a_member_far_behind_holds_no_more_bytes_than_an_anchor() -> None:
    lineage = [*chain(500), announcement(500, size=1000)]
    left = [a for a in lineage if a not in to_retire(lineage, [member(3), member(500)], keep=10_000)]
    assert sum(a.payload_bytes for a in left if a.base is not None) == 1000
    assert resolve(left, (3, "3"), (500, "500")) == [announcement(500, size=1000)]


def test_the_previous_anchor_is_kept_while_a_joiner_may_fetch_it() -> None:
    lineage = [*chain(5), announcement(5, size=1000), announcement(6, 5)]
    left = [a for a in lineage if a not in to_retire(lineage, [member(None), member(6)], 0)]
    assert names(left) == names(lineage)
    once_more = [*left, announcement(6, size=1000)]
    left = [a for a in once_more if a not in to_retire(once_more, [member(None)], 0)]
    assert names(left) == names([announcement(5, size=1000), announcement(6, size=1000), announcement(6, 5)])


def test_manifests_of_an_abandoned_fork_are_retired() -> None:
    lost = [announcement(3, 2, fork="x"), announcement(4, 3, fork="x", base_fork="x")]
    taken_over = [announcement(3, 2, epoch=2, fork="y")]
    lineage = [*chain(2), *lost, *taken_over]
    assert to_retire(lineage, [member(2)], 64) == lost


def test_retiring_never_makes_a_members_path_dearer() -> None:
    lineage = [*chain(40, size=7), announcement(20, size=1000), *[announcement(40, size=900)]]
    for keep in (0, 1, 5, 64):
        for versions in ([None], [0], [15, 39], [40], [None, 30]):
            left = [a for a in lineage if a not in to_retire(lineage, [member(v) for v in versions], keep)]
            for start in [*versions, *range(max(0, 40 - keep), 41)]:
                place = None if start is None else (start, str(start))
                before, after = (resolve(some, place, (40, "40")) for some in (lineage, left))
                assert before is not None and after is not None
                assert sum(a.payload_bytes for a in after) == sum(a.payload_bytes for a in before)


def test_a_delta_larger_than_the_next_anchor_is_kept_while_a_member_may_fetch_it() -> None:
    delta, anchor = announcement(1, 0, 1200), announcement(1, size=1000)
    lineage = [announcement(0, size=1000), delta, anchor]
    assert delta not in to_retire(lineage, [member(0), member(1)], 0)
    assert delta in to_retire(lineage, [member(1), member(1)], 0)


@pytest.mark.parametrize(("deltas", "due"), [(256, False), (257, True), (5000, True)])
def test_an_anchor_is_due_after_too_many_small_deltas(deltas: int, due: bool) -> None:
    assert bool(anchor_due(chain(deltas, size=1, anchor=1 << 30), 1.0)) is due


def test_an_anchor_is_due_once_the_last_one_is_old_and_versions_followed() -> None:
    assert not anchor_due(chain(1), 1.0, seconds=3600, age=3600)
    assert "2 hours old" in anchor_due(chain(1), 1.0, seconds=3600, age=7200)
    assert not anchor_due(chain(0), 1.0, seconds=3600, age=7200)


@pytest.mark.parametrize(
    ("lineage", "settings", "why"),
    [
        (chain(101), {}, "outweigh"),
        (chain(20), {"deltas": 10}, "20 deltas since"),
        (chain(1), {"age": 90_000.0}, "25 hours old"),
        ([announcement(5, 4)], {}, "no anchor yet"),
        ([announcement(0, size=1000), announcement(2, 1)], {}, "no anchor leads"),
    ],
)
def test_anchor_due_gives_the_reason(lineage: list[Announcement], settings: dict[str, float], why: str) -> None:
    assert why in anchor_due(lineage, 1.0, **settings)


def test_a_member_far_behind_holds_a_bounded_number_of_small_deltas() -> None:
    lineage = [*chain(5000, size=1, anchor=1 << 30), announcement(5000, size=1 << 30)]
    left = kept(lineage, to_retire(lineage, [member(0), member(5000)], keep=64))
    assert len(left) == 1 + ANCHOR_DELTAS
    assert resolve(left, (5000 - ANCHOR_DELTAS, str(5000 - ANCHOR_DELTAS)), (5000, "5000")) is not None


def test_retiring_always_leaves_space_for_a_new_version() -> None:
    lineage = chain(5000, size=1, anchor=1 << 30)  # an anchor is long due, and cannot be made
    left = kept(lineage, to_retire(lineage, [member(None), member(0), member(4999)], keep=10_000))
    assert len(left) == MAX_ANNOUNCED
    assert lineage[0] in left and left[1:] == lineage[-(MAX_ANNOUNCED - 1) :], "the oldest deltas go"
    assert "no anchor leads" in anchor_due(left, 1.0)


@given(
    deltas=st.lists(st.integers(1, 2000), max_size=40),
    anchors=st.sets(st.integers(0, 40)),
    members=st.lists(st.none() | st.integers(0, 40), max_size=4),
    keep=st.integers(0, 50),
    most=st.integers(1, 50),
    manifest_bytes=st.integers(1, 100),
)
def test_kept_manifests_stay_within_bounds_and_include_the_newest_version(
    deltas: list[int], anchors: set[int], members: list[int | None], keep: int, most: int, manifest_bytes: int
) -> None:
    lineage = [announcement(v, v - 1, size) for v, size in enumerate(deltas, 1)]
    lineage += [announcement(v, size=1000) for v in anchors if v <= len(deltas)]
    lineage = [msgspec.structs.replace(a, manifest_bytes=manifest_bytes) for a in lineage]
    gone = to_retire(lineage, map(member, members), keep, most=most, max_bytes=1000)
    left = kept(lineage, gone)
    newest = newest_announcement(lineage)
    assert newest is None or any(target_key(a) == target_key(newest) for a in left)
    # The newest anchor, and the delta and anchor that lead to the newest version, stay in any case.
    assert len(left) <= max(most, 3)
    assert sum(a.manifest_bytes for a in left) <= max(1000, 3 * manifest_bytes)
