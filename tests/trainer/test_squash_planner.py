"""The squash planner chooses worthwhile squashes and their base versions, and retires old ones."""

from __future__ import annotations

from collections.abc import Callable

from trainer_parts import announcement, member

from p2psync.membership.records import Announcement
from p2psync.protocol.manifest import Manifest
from p2psync.trainer.squash.planner import MAX_SQUASHES, SquashPlan, SquashPlanner
from p2psync.trainer.versions.retention import anchor_due, to_retire

SIZE, CHANGED, TOTAL = 1_250_000, 1_000_000, 100_000_000


def chain(last: int, anchor: int = 100_000_000) -> list[Announcement]:
    """Returns an anchor and deltas of 1 % up to `last`."""
    return [announcement(0, size=anchor)] + [announcement(v, v - 1, SIZE) for v in range(1, last + 1)]


def manifest(size: int = SIZE, changed: int = CHANGED) -> Manifest:
    """One delta's figures."""
    return Manifest(
        run="", epoch=1, version=1, base=0, digest=b"", base_digest=b"", profile="fast", block_units=1 << 19, table=b"",
        sizes=[size], hashes=b"", first_rows=[0], changed=changed, total=TOTAL, created=0.0,
    )  # fmt: skip


def plan(lineage: list[Announcement], *versions: int | None, planner: SquashPlanner | None = None) -> SquashPlan | None:
    known: Callable[[str], Manifest] = lambda id: manifest()  # noqa: E731
    return (planner or SquashPlanner()).plan(lineage, [member(v) for v in versions], known)


def steps(found: SquashPlan | None) -> tuple[int | None, int] | None:
    return None if found is None else (found.chain[0].base, found.chain[-1].version)


def test_no_squash_for_members_at_or_near_the_head() -> None:
    assert plan([], 3) is None
    assert plan(chain(10)) is None
    assert plan(chain(10), 10, 9, 8) is None


def test_a_member_behind_gets_a_squash_from_its_version() -> None:
    found = plan(chain(10), 10, 4)
    assert steps(found) == (4, 10)
    assert found is not None and found.chain_bytes == 6 * SIZE
    assert found.expected_bytes < 0.8 * found.chain_bytes


def test_members_behind_share_one_squash() -> None:
    assert steps(plan(chain(12), 12, *[5] * 20, 4)) == (5, 12)


def test_a_squash_for_a_joiner_begins_at_the_anchor() -> None:
    assert steps(plan(chain(9, anchor=5 * SIZE), None, 9)) == (0, 9)
    assert plan(chain(9, anchor=500 * SIZE), None) is None, "next to the anchor, deltas weigh little"


def test_no_squash_where_the_anchor_is_cheaper_anyway() -> None:
    lineage = [*chain(30, anchor=2 * SIZE), announcement(30, size=2 * SIZE)]
    assert plan(lineage, 3) is None


def test_no_second_squash_until_the_head_has_moved_on_far_enough() -> None:
    def then(head: int) -> tuple[int | None, int] | None:
        return steps(plan([*chain(head), announcement(10, 2, 4 * SIZE)], 2))

    assert [then(head) for head in range(10, 14)] == [None] * 4, "a squash of 8 steps stands"
    assert then(14) == (2, 14)


def test_the_number_of_squashes_is_bounded() -> None:
    lineage = [*chain(40), *[announcement(v, 1, 30 * SIZE) for v in range(20, 20 + MAX_SQUASHES)]]
    assert plan(lineage, 1) is None


def test_the_planner_learns_how_much_steps_overlap() -> None:
    apart, alike = SquashPlanner(), SquashPlanner()
    for _ in range(6):
        apart.made(8, 8 * CHANGED, 8 * CHANGED)
        alike.made(8, 8 * CHANGED, 2 * CHANGED)
    few = [manifest()] * 4
    assert alike.predict(few) < SquashPlanner().predict(few) < apart.predict(few) <= 4 * SIZE


def test_a_squash_that_came_out_large_is_not_announced() -> None:
    found = plan(chain(10), 4)
    assert found is not None
    assert SquashPlanner().is_worth(found, found.chain_bytes // 2)
    assert not SquashPlanner().is_worth(found, int(0.9 * found.chain_bytes))
    assert not SquashPlanner(min_saved_bytes=1 << 30).is_worth(found, 0)


# ---- their retirement ------------


def test_a_squash_is_retired_when_no_member_is_behind_it() -> None:
    squash = announcement(9, 2, 3 * SIZE)
    lineage = [*chain(9), squash]
    assert to_retire(lineage, [member(2), member(9)], 64) == []
    assert to_retire(lineage, [member(9)], 64) == [squash]


def test_a_squash_is_kept_while_a_member_may_fetch_it_though_a_better_one_exists() -> None:
    early, late = announcement(9, 2, 3 * SIZE), announcement(20, 2, 4 * SIZE)
    lineage = [*chain(20), early, late]
    assert to_retire(lineage, [member(2)], 64) == []
    assert to_retire(lineage, [member(10)], 64) == [early, late]
    assert to_retire([*lineage, announcement(20, size=1000)], [member(2)], 0)[-2:] == [early, late]


def test_squashes_do_not_count_towards_an_anchor_or_the_chain() -> None:
    lineage = [*chain(5, anchor=10 * SIZE), announcement(5, 0, 4 * SIZE), announcement(4, 0, 4 * SIZE)]
    assert not anchor_due(lineage, 1.0)
    assert all(
        a.base == a.version - 1 for a in lineage if a not in to_retire(lineage, [member(1)], 64) and a.base is not None
    )
