"""Strided runs are found from the numbers that probes carry, and blocks are mapped through them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.engines.vllm.strided_runs import (
    StridedPiece,
    count_missing,
    find_runs,
    group_runs,
    intersect,
    probe_digits,
)

NOWHERE = -1


def numbers(rows: int, columns: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + rows * columns).reshape(rows, columns)


def found_in(live: np.ndarray, firsts: np.ndarray, unit: type = np.uint8) -> list[tuple[int, StridedPiece]]:
    """Returns the pieces of a live parameter that holds units of these numbers, found by probes."""
    bits = 8 * np.dtype(unit).itemsize
    rest = np.random.default_rng(1).integers(0, 256, live.size).astype(unit)

    def left(digit: int, *, inverted: bool) -> np.ndarray:
        whole = probe_digits(0, int(max(live.max(), 0)) + 1, digit, np.empty(0, unit), inverted=inverted)
        return np.where(live == NOWHERE, rest, whole[np.maximum(live, 0)])

    higher = np.array([left(d, inverted=False) for d in range(1, 64 // bits)]).reshape(-1, live.size)
    return group_runs(find_runs(left(0, inverted=False), left(0, inverted=True), higher.astype(unit)), firsts)


@pytest.mark.parametrize("unit", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_probes_of_every_width_encode_the_numbers(unit: type) -> None:
    live = np.concatenate([np.arange(70_000, 70_300), [NOWHERE, 65_535, 65_536], np.arange(255, 258)])
    found = found_in(live, np.array([0, 1 << 40]), unit)
    assert [(p.start, p.at, p.length) for _, p in found] == [(70_000, 0, 300), (65_535, 301, 2), (255, 303, 3)]


def test_a_computed_unit_is_detected() -> None:
    low, high = np.array([1, 2, 3], np.uint8), np.empty((0, 3), np.uint8)
    assert find_runs(low, ~low, high).length.tolist() == [3]
    with pytest.raises(ValueError, match="computed"):
        find_runs(low, ~low ^ np.uint8(4), high)


def test_whole_rows_are_one_run_and_columns_one_piece() -> None:
    q, k = numbers(8, 6), numbers(4, 6, 49)
    live = np.concatenate([q[4:].reshape(-1), k[2:].reshape(-1), np.full(5, NOWHERE)])
    found = found_in(live, np.array([0, 49, 74]))
    assert found == [(0, StridedPiece(24, 0, 24, 1, 24, 24)), (1, StridedPiece(12, 24, 12, 1, 12, 12))]
    columns = q[:, 3:].reshape(-1)
    assert found_in(columns, np.array([0, 49])) == [(0, StridedPiece(3, 0, 3, 8, 6, 3))]


def test_adjacent_tensors_are_separate_pieces() -> None:
    live = np.concatenate([numbers(2, 3).reshape(-1), numbers(2, 3, 7).reshape(-1), numbers(2, 3, 14).reshape(-1)])
    found = found_in(live, np.array([0, 7, 14, 21]))
    assert [(tensor, piece.start, piece.at) for tensor, piece in found] == [(0, 0, 0), (1, 0, 6), (2, 0, 12)]


def test_a_padded_row_ends_a_run() -> None:
    live = np.array([0, 1, 2, NOWHERE, 3, 4, 5, NOWHERE])
    assert found_in(live, np.array([0, 7])) == [(0, StridedPiece(0, 0, 3, 2, 3, 4))]
    assert found_in(np.full(4, NOWHERE), np.array([0, 7])) == []


def test_units_permuted_one_by_one_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2psync.engines.vllm.strided_runs.MAX_PIECES", 10)
    with pytest.raises(ValueError, match="one by one"):
        found_in(np.random.default_rng(1).permutation(400), np.array([0, 401]))


def test_units_outside_of_all_pieces_are_counted() -> None:
    assert count_missing([StridedPiece(3, 0, 3, 8, 6, 3)], 48) == 24
    assert count_missing([StridedPiece(0, 0, 3, 8, 6, 3), StridedPiece(3, 0, 3, 8, 6, 3)], 48) == 0
    assert count_missing([StridedPiece(0, 5, 48, 1, 48, 48)], 48) == 0
    assert count_missing([], 48) == 48


@st.composite
def layouts(draw: st.DrawFn) -> np.ndarray:
    """The numbers of a (rows, columns) tensor in the order in which a live parameter has some of them."""
    rows, columns = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    whole = numbers(rows, columns)
    row, column = draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))
    part = whole[
        row : row + draw(st.integers(1, 9)) : draw(st.integers(1, 3)), column : column + draw(st.integers(1, 9))
    ]
    if draw(st.booleans()):
        part = part.T
    gap = np.full(draw(st.integers(0, 3)), NOWHERE)
    pad = np.full((part.shape[0], draw(st.integers(0, 2))), NOWHERE)
    return np.concatenate([gap, np.concatenate([part, pad], 1).reshape(-1), gap])


@settings(deadline=None, max_examples=300)
@given(layouts(), st.integers(0, 80), st.integers(1, 80), st.randoms(use_true_random=False), st.booleans())
def test_a_block_is_mapped_to_the_units_of_its_numbers(
    live: np.ndarray, start: int, count: int, dice: np.random.Generator, dense: bool
) -> None:
    found = [piece for _, piece in found_in(live, np.array([0, 1 << 40]))]
    positions = None if dense else np.array(sorted(dice.sample(range(count), dice.randint(1, count))), np.uint32)
    values = np.arange(count if positions is None else positions.size) + 1000
    units = start + (np.arange(count) if positions is None else positions.astype(np.int64))
    expected = np.zeros(live.size, np.int64)
    for unit, value in zip(units, values, strict=True):
        expected[live == unit] = value
    written = np.zeros(live.size, np.int64)
    for piece in found:
        for part in intersect(piece, start, count, positions):
            window = written[part.start : part.start + part.count]
            assert window.size == part.count
            if part.positions is None:
                window[:] = values[part.entries]
            else:
                assert (np.diff(part.positions.astype(np.int64)) > 0).all()
                window[part.positions] = values[part.entries]
    assert np.array_equal(written, expected)
