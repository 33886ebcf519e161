"""Strided views are compared as sets of bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from p2psync.engines.module.memory_maps import find_unwritable
from p2psync.engines.module.storage_views import Relation, StorageView, relation

VIEWS = st.builds(
    lambda start, width, dims: StorageView(
        start * 2, width, tuple(size for size, _ in dims), tuple(stride for _, stride in dims)
    ),
    st.integers(0, 12),
    st.sampled_from([2, 4]),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=3),
)


def elements(view: StorageView) -> list[int]:
    """The address of each element."""
    return [
        view.start + view.width * sum(i * stride for i, stride in zip(index, view.strides, strict=True))
        for index in itertools.product(*(range(size) for size in view.shape))
    ]


def addresses(view: StorageView) -> set[int]:
    """Every byte of a view."""
    return {first + byte for first in elements(view) for byte in range(view.width)}


@given(VIEWS)
def test_a_view_that_visits_an_address_twice_is_found(view: StorageView) -> None:
    assert view.repeats() or len(addresses(view)) == view.nbytes
    assert (min(addresses(view)), max(addresses(view)) + 1) == (view.start, view.stop)


@given(st.permutations([2, 3, 4]), st.permutations([0, 1, 2]))
def test_a_permuted_tensor_does_not_repeat_and_an_expanded_one_does(shape: list[int], order: list[int]) -> None:
    strides = [shape[1] * shape[2], shape[2], 1]
    permuted = StorageView(0, 2, tuple(shape[i] for i in order), tuple(strides[i] for i in order))
    assert not permuted.repeats() and permuted.is_dense
    assert StorageView(0, 2, (3, 4), (0, 1)).repeats()


@given(VIEWS.filter(lambda view: not view.repeats()), VIEWS.filter(lambda view: not view.repeats()))
def test_the_relation_of_two_views_equals_that_of_their_sets_of_bytes(one: StorageView, two: StorageView) -> None:
    a, b = addresses(one), addresses(two)
    expected = Relation.INSIDE if b <= a else Relation.OVERLAP if a & b else Relation.APART
    assert relation(one, two) is expected


def test_memory_that_is_mapped_for_reading_is_found_by_the_first_span_that_reaches_into_it() -> None:
    maps = "1000-2000 rw-p 0 0:0 0\n3000-4000 r--s 0 0:0 0 /file\n5000-6000 rwxp 0 0:0 0\n"
    assert find_unwritable(maps, [("a", 0x1000, 0x2000), ("b", 0x5000, 0x5001)]) is None
    assert find_unwritable(maps, [("a", 0x1000, 0x3000), ("b", 0x2FFF, 0x3001)]) == "b"
    assert find_unwritable(maps, [("c", 0x3FFF, 0x4000)]) == "c"
    assert find_unwritable(maps, [("d", 0x4000, 0x5000)]) is None
    assert find_unwritable(maps, [("e", 0x2000, 0x5000)]) == "e"
