"""Change histories: recording, selection of units, and sign residuals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.history import (
    ChangeHistory,
    add_to_selected,
    copy_selected,
    count_scales_by_history,
    count_selected,
    restore_positions,
    split_changes,
)
from p2psync.delta.kernels.unit_loops import GROUP, address
from p2psync.delta.streams import varint
from p2psync.delta.tight.sign_residuals import MAX_RICE, SignResidualReader, SignResidualWriter
from p2psync.errors import FormatError

UNITS = 5000
Change = tuple[NDArray[np.uint32], NDArray[np.uint16]]


def change(seed: int, share: float = 0.1) -> Change:
    """Positions, and steps of any size either way, none zero."""
    rng = np.random.default_rng(seed)
    where = np.flatnonzero(rng.random(UNITS) < share).astype(np.uint32)
    return where, rng.integers(1, 1 << 16, where.size).astype(np.uint16)


def history_of(*changes: Change) -> ChangeHistory:
    history = ChangeHistory(UNITS)
    for where, steps in changes:
        history.record(Block(0, 0, UNITS, where, steps))
    return history


def test_history_records_the_last_direction_and_ignores_zero_steps() -> None:
    where = np.arange(3, dtype=np.uint32)
    up, down, mixed = (np.array(s, np.int16).view(np.uint16) for s in ([1, 1, 1], [-1, -1, -1], [0, 5, -5]))
    history = history_of((where, up), (where, down), (where, mixed))
    assert history.known[0] == 0b111 and history.down[0] == 0b101
    assert not history_of((where, np.zeros(3, np.uint16))).known.any()


def test_history_refuses_a_block_of_another_tensor() -> None:
    history = ChangeHistory(100)
    for block in (
        Block(0, 64, 64, np.array([1], np.uint32), np.array([1], np.uint16)),
        Block(0, 0, 64, np.array([64], np.uint32), np.array([1], np.uint16)),
        Block(0, 0, 64, np.array([1], np.uint32), np.array([1], np.uint8)),
    ):
        with pytest.raises(ValueError):
            history.record(block)


# ---- units parted


def parted(
    seed: int, start: int, count: int, share: float
) -> tuple[NDArray[np.uint64], NDArray[np.uint16], np.ndarray]:
    """Words of bits, some of them beyond the last unit; units of a block; which of these have their bit set."""
    rng = np.random.default_rng(seed)
    bits = rng.random(-(-(start + count) // 64) * 64) < share
    words = np.packbits(bits, bitorder="little").view("<u8").copy()
    return words, rng.integers(0, 1 << 16, count).astype(np.uint16), bits[start : start + count]


@settings(deadline=None)
@given(
    seed=st.integers(0, 99),
    groups=st.integers(0, 3),
    count=st.sampled_from([1, 63, 64, 65, 127, 1000, 4096, 4097, 9999]),
    share=st.sampled_from([0.0, 0.01, 0.5, 0.97, 1.0]),
    offset=st.integers(0, 1),
)
def test_selected_positions_are_restored(seed: int, groups: int, count: int, share: float, offset: int) -> None:
    words, units, bits = parted(seed, 64 * groups, count, share)
    raw = np.frombuffer(b"\0" * offset + units.tobytes(), np.uint8)
    for wanted in (0, 1):
        where = np.flatnonzero(bits == wanted).astype(np.uint32)
        out = np.full(count + GROUP, 7, np.uint16)
        place = words, 64 * groups, count, wanted
        assert count_selected(*place) == where.size
        assert copy_selected(address(raw) + offset, *place, out) == where.size
        assert np.array_equal(out[: where.size], units[where])
        places = np.arange(where.size, dtype=np.uint32)
        assert restore_positions(*place, places) and np.array_equal(places, where)
        assert not restore_positions(*place, np.array([where.size], np.uint32))
        steps = np.arange(1, where.size + 1).astype(np.uint16)[::2].copy()
        add_to_selected(words, 64 * groups, wanted, where[::2].copy(), steps, out)
        changed = units[where].copy()
        changed[::2] += steps
        assert np.array_equal(out[: where.size], changed)


def test_copy_selected_writes_within_its_bounds() -> None:
    words, units, bits = parted(1, 0, 128, 1.0)
    out = np.full(128 + 2 * GROUP, 7, np.uint16)
    assert copy_selected(address(units), words, 0, 128, 1, out) == bits.sum() == 128
    assert (out[128 + GROUP :] == 7).all()


def test_split_changes_keeps_the_order() -> None:
    words, _, bits = parted(3, 64, UNITS, 0.4)
    where, steps = change(4)
    places, moves = np.zeros((2, where.size), np.uint32), np.zeros((2, where.size), np.uint16)
    known = split_changes(words, 64, where, steps, places, moves)
    for row, size in ((0, where.size - known), (1, known)):
        which = bits[where] == row
        assert np.array_equal(places[row, :size], where[which]) and np.array_equal(moves[row, :size], steps[which])


def test_scales_are_counted_by_history() -> None:
    count = 64 * 64 * 3 + 17
    words, _, bits = parted(5, 128, count, 0.3)
    units = np.where(bits, 0x3F80, 0x0080).astype(np.uint16)
    totals = np.zeros((2, 256), np.int64)
    count_scales_by_history(address(units), words, 128, count, totals)
    assert set(np.flatnonzero(totals[0])) == {1} and set(np.flatnonzero(totals[1])) == {127}
    assert totals.sum() == 64 * (3 * 64 + 17)


# ---- signs


def upward(steps: NDArray[np.uint16]) -> NDArray[np.uint16]:
    return np.minimum(steps, (65536 - steps.astype(np.uint32)).astype(np.uint16)).astype(np.uint16)


def write(blocks: list[tuple[ChangeHistory, Change]]) -> bytes:
    writer = SignResidualWriter()
    for history, (where, steps) in blocks:
        writer.add(history, 0, where, steps)
    return writer.finish()


def read(signs: bytes, blocks: list[tuple[ChangeHistory, Change]]) -> list[NDArray[np.uint16]]:
    reader = SignResidualReader(memoryview(signs), sum(where.size for _, (where, _) in blocks))
    made = []
    for history, (where, steps) in blocks:
        made.append(upward(steps))
        reader.apply(history, 0, where, made[-1])
    return made


@settings(deadline=None)
@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4), share=st.floats(0, 1))
def test_sign_residuals_restore_every_sign(seeds: list[int], share: float) -> None:
    histories = [history_of(change(1000, 0.3), change(1001 + k, 0.3)) for k in range(2)]
    blocks = [(histories[k % 2], change(seed, share)) for k, seed in enumerate(seeds)]
    for made, (_, (_, steps)) in zip(read(write(blocks), blocks), blocks, strict=True):
        # A step of half the range is its own negative.
        assert np.array_equal(made, np.where(steps == 0x8000, 0x8000, steps))


def test_sign_residuals_of_predictable_steps_take_less_than_a_bit() -> None:
    where, steps = change(1, 1.0)
    for later in (steps, np.negative(steps)):
        with_residuals = later.copy()
        with_residuals[::20] = np.negative(with_residuals[::20])
        blocks = [(history_of((where, steps)), (where, with_residuals))]
        assert 8 * len(write(blocks)) < 0.35 * where.size
        assert np.array_equal(read(write(blocks), blocks)[0], with_residuals)


@settings(deadline=None)
@given(seed=st.integers(0, 50), flip=st.integers(0, 10_000), cut=st.integers(0, 3))
def test_broken_sign_residuals_are_refused_or_read_as_others(seed: int, flip: int, cut: int) -> None:
    blocks = [(history_of(change(seed, 0.5)), change(seed + 1, 0.5))]
    broken = bytearray(write(blocks))
    broken[flip // 8 % len(broken)] ^= 1 << flip % 8
    try:
        made = read(bytes(broken[: len(broken) - cut]), blocks)
    except FormatError:
        pass
    else:
        assert np.array_equal(upward(made[0]), upward(blocks[0][1][1]))


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\1",
        bytes([2 * (MAX_RICE + 1)]) + b"\0",
        b"\1" + varint(10**9) + bytes(100),
        b"\1" + varint(9) + b"\0",
        b"\1\1",
        b"\1\0\0",
        b"\1\1\xff\xff",
        bytes([2 * MAX_RICE + 1]) + b"\1\xfe" + bytes(3),
    ],
)
def test_sign_residuals_that_do_not_fit_are_refused(wrong: bytes) -> None:
    with pytest.raises(FormatError):
        read(wrong, [(history_of(change(1, 0.5)), change(2, 0.01))])
