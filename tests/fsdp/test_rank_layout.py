"""Unit ranges are sets of units; a rank layout gives every unit one owner, and owners hold their units."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.trainer.fsdp.rank_builder import _batches
from p2psync.trainer.fsdp.rank_layout import RankLayout
from p2psync.trainer.fsdp.unit_ranges import UnitRanges

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 40)), max_size=8)


def units_of(unit_ranges: UnitRanges) -> set[tuple[int, int]]:
    return {(row, unit) for row, start, stop in unit_ranges for unit in range(start, stop)}


@given(SPANS, SPANS, st.integers(0, 40), st.integers(0, 40))
def test_unit_ranges_are_sets_of_units(
    one: list[tuple[int, int, int]], two: list[tuple[int, int, int]], a: int, b: int
):
    left, right = UnitRanges.of(one), UnitRanges.of(two)
    assert units_of(left | right) == units_of(left) | units_of(right)
    assert units_of(left & right) == units_of(left) & units_of(right)
    assert units_of(left - right) == units_of(left) - units_of(right)
    assert left.units(0, a, b) == len({u for row, u in units_of(left) if row == 0 and a <= u < b})
    spans = left.row(0)
    assert all(before[1] < after[0] for before, after in pairwise(spans))


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[TensorSpec], list[UnitRanges]]:
    """Tables of some tensors, and shards as FSDP2 cuts them; large ones too, since no bits are read."""
    shapes = draw(
        st.lists(
            st.one_of(
                st.tuples(st.integers(0, 9)),
                st.tuples(st.integers(1, 9000), st.sampled_from([1, 3, 1024, 4097])),
            ),
            min_size=1,
            max_size=12,
        )
    )
    dtypes = draw(st.lists(st.sampled_from(["BF16", "F32", "U8"]), min_size=len(shapes), max_size=len(shapes)))
    specs = sorted(
        TensorSpec(int(TensorKind.TENSOR), f"t{i}", dtype, shape)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    )
    ranks = draw(st.integers(1, 9))
    held: list[list[tuple[int, int, int]]] = [[] for _ in range(ranks)]
    for row, spec in enumerate(specs):
        rows = spec.shape[0]
        each, inner = -(-rows // ranks), spec.count // rows if rows else 0
        for rank in range(ranks):
            held[rank].append((row, min(rows, rank * each) * inner, min(rows, (rank + 1) * each) * inner))
    return specs, [UnitRanges.of(places) for places in held]


@settings(max_examples=60, deadline=None)
@given(tables())
def test_every_unit_has_one_owner_that_keeps_it(table: tuple[list[TensorSpec], list[UnitRanges]]) -> None:
    specs, held = table
    layout = RankLayout(specs, held)
    for grid, owners in ((layout.delta, layout.delta_owners), (layout.anchor, layout.anchor_owners)):
        owned = [grid.unit_ranges(owners, rank) for rank in range(layout.ranks)]
        for row, spec in enumerate(specs):
            assert sum(mine.units(row, 0, spec.count) for mine in owned) == spec.count
            assert {u for mine in owned for span in mine.row(row) for u in span} <= set(
                range(0, spec.count + 1, grid.span(row))
            ) | {spec.count}
        for rank, mine in enumerate(owned):
            assert not list(mine - layout.kept(rank))
            assert not list(held[rank] - layout.kept_current[rank])
    assert [segment for segments in layout.rounds() for segment in segments] == list(range(len(layout.delta.parts)))


@settings(max_examples=60, deadline=None)
@given(tables())
def test_owners_have_equal_loads_to_within_a_segment(table: tuple[list[TensorSpec], list[UnitRanges]]) -> None:
    layout = RankLayout(*table)
    sizes = [layout.delta.size(segment) for segment in range(len(layout.delta.parts))]
    loads = [0] * layout.ranks
    for owner, size in zip(layout.delta_owners, sizes, strict=True):
        loads[owner] += size
    assert max(loads) <= sum(sizes) / layout.ranks + max(sizes, default=0)


def test_owners_hold_most_of_their_segments_where_shards_are_large() -> None:
    specs = [TensorSpec(int(TensorKind.TENSOR), f"t{i}", "BF16", (4 << 16, 1024)) for i in range(2)]
    units, quarter = specs[0].count, specs[0].count // 4
    held = [UnitRanges.of([(row, r * quarter, (r + 1) * quarter) for row in (0, 1)]) for r in range(4)]
    layout = RankLayout(specs, held)
    for rank in range(4):
        owned = layout.delta.unit_ranges(layout.delta_owners, rank)
        missing = sum(stop - start for _, start, stop in owned - held[rank])
        assert missing <= 0.1 * 2 * units / 4


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 99), st.integers(0, 99)), max_size=9))
def test_batches_of_fetched_ranges_cover_every_unit_once(places: list[tuple[int, int, int, int]]) -> None:
    specs = [TensorSpec(int(TensorKind.TENSOR), name, dtype, (100,)) for name, dtype in (("a", "U8"), ("b", "F32"))]
    rounds = list(_batches(places, specs, 64))
    sizes = [sum((stop - start) * specs[row].width for _, row, start, stop in few) for few in rounds]
    assert all(0 < size <= 64 for size in sizes)
    cut = [(to, row, unit) for few in rounds for to, row, start, stop in few for unit in range(start, stop)]
    assert cut == [(to, row, unit) for to, row, start, stop in places for unit in range(start, stop)]
    assert np.all(np.asarray(sizes) > 0)
