"""Signs told by the last direction: exact, cheaper where weights drift, refused where broken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.container import ChunkEncoder, EncodedChunk, decode_chunk
from p2psync.delta.history import History, SignReader, Signs, SignWriter
from p2psync.delta.tensors import Kind, Row, TensorSpec
from p2psync.errors import FormatError

UNITS = 5000
Change = tuple[NDArray[np.uint32], NDArray[np.uint16]]


def change(seed: int, share: float = 0.1) -> Change:
    """Positions, and steps of any size either way, none zero."""
    rng = np.random.default_rng(seed)
    where = np.flatnonzero(rng.random(UNITS) < share).astype(np.uint32)
    return where, rng.integers(1, 1 << 16, where.size).astype(np.uint16)


def history_of(*changes: Change) -> History:
    history = History(UNITS)
    for where, steps in changes:
        history.record(Block(0, 0, UNITS, where, steps))
    return history


def upward(steps: NDArray[np.uint16]) -> NDArray[np.uint16]:
    return np.minimum(steps, (65536 - steps.astype(np.uint32)).astype(np.uint16)).astype(np.uint16)


def read(signs: Signs, blocks: list[tuple[History | None, Change]]) -> list[NDArray[np.uint16]]:
    reader = SignReader(signs, sum(where.size for _, (where, _) in blocks))
    made = []
    for history, (where, steps) in blocks:
        made.append(upward(steps))
        reader.apply(history, 0, where, made[-1])
    reader.finish()
    return made


def write(blocks: list[tuple[History | None, Change]]) -> Signs:
    writer = SignWriter()
    for history, (where, steps) in blocks:
        writer.add(history, 0, where, steps)
    return writer.finish()


def size(signs: Signs) -> int:
    return len(signs.raw) + len(signs.gaps)


@settings(deadline=None)
@given(seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4), shares=st.floats(0, 1), known=st.booleans())
def test_every_step_gets_its_sign_back(seeds: list[int], shares: float, known: bool) -> None:
    history = history_of(change(1000, 0.3), change(1001, 0.3)) if known else None
    blocks = [(history, change(seed, shares)) for seed in seeds] + [(None, change(7))]
    for made, (_, (_, steps)) in zip(read(write(blocks), blocks), blocks, strict=True):
        # A step of half the range is its own negative.
        assert np.array_equal(made, np.where(steps == 0x8000, 0x8000, steps))


def test_a_drift_costs_less_than_a_bit_and_so_does_what_always_turns_back() -> None:
    where, steps = change(1, 1.0)
    for later in (steps, np.negative(steps)):
        surprising = later.copy()
        surprising[::20] = np.negative(surprising[::20])
        blocks = [(history_of((where, steps)), (where, surprising))]
        assert 8 * size(write(blocks)) < 0.35 * where.size
        assert np.array_equal(read(write(blocks), blocks)[0], surprising)


def test_without_a_history_a_sign_is_one_bit() -> None:
    where, steps = change(3, 0.5)
    assert size(write([(None, (where, steps))])) == -(-where.size // 8)


def test_the_last_of_several_directions_counts_and_no_change_counts_for_nothing() -> None:
    where = np.arange(3, dtype=np.uint32)
    up, down, mixed = (np.array(s, np.int16).view(np.uint16) for s in ([1, 1, 1], [-1, -1, -1], [0, 5, -5]))
    history = history_of((where, up), (where, down), (where, mixed))
    assert history.known[0] == 0b111 and history.down[0] == 0b101
    assert not history_of((where, np.zeros(3, np.uint16))).known.any()


@settings(deadline=None)
@given(seed=st.integers(0, 50), flip=st.integers(0, 10_000), cut=st.integers(0, 3))
def test_broken_signs_are_refused_or_read_as_others(seed: int, flip: int, cut: int) -> None:
    history, later = history_of(change(seed, 0.5)), change(seed + 1, 0.5)
    signs = write([(history, later)])
    gaps = bytearray(signs.gaps)
    if gaps:
        gaps[flip // 8 % len(gaps)] ^= 1 << flip % 8
    broken = signs._replace(gaps=bytes(gaps[: len(gaps) - cut]))
    try:
        read(broken, [(history, later)])
    except FormatError:
        pass
    else:
        assert broken.surprises == signs.surprises


@pytest.mark.parametrize(
    "wrong",
    [
        {"raw": b""},
        {"gaps": b""},
        {"rice": 21},
        {"usual": 2},
        {"surprises": 10**9},
        {"surprises": 0},
        {"gaps": bytes(100)},
        {"raw": bytes(10_000)},
    ],
)
def test_signs_that_do_not_fit_are_refused(wrong: dict[str, bytes | int]) -> None:
    history, later = history_of(change(1, 0.5)), change(2, 0.5)
    signs = write([(history, later)])._replace(**wrong)  # type: ignore[arg-type]
    with pytest.raises(FormatError):
        read(signs, [(history, later)])


def test_a_block_of_another_tensor_is_not_recorded() -> None:
    history = History(100)
    for block in (
        Block(0, 64, 64, np.array([1], np.uint32), np.array([1], np.uint16)),
        Block(0, 0, 64, np.array([64], np.uint32), np.array([1], np.uint16)),
        Block(0, 0, 64, np.array([1], np.uint32), np.array([1], np.uint8)),
    ):
        with pytest.raises(ValueError):
            history.record(block)


# ---- whole chunks of profile tight


def past_and_step() -> tuple[list[Row], NDArray[np.uint16], NDArray[np.uint16], History]:
    """Weights whose step goes on, for the most part, in the direction of the step before it."""
    rng = np.random.default_rng(11)
    count = 1 << 18
    old = (rng.standard_normal(count) * 0.02).astype(np.float32).view(np.uint32) >> 16
    old = old.astype(np.uint16)
    small = np.flatnonzero(((old >> 7) & 255) < 120).astype(np.uint32)
    where = small[rng.random(small.size) < 0.2]
    before = rng.choice(np.array([1, 0xFFFF], np.uint16), where.size)
    history = History(count)
    history.record(Block(0, 0, count, where, before))
    later = np.sort(rng.permutation(where)[: where.size // 2])
    kept = np.isin(where, later)
    steps = np.where(rng.random(int(kept.sum())) < 0.9, before[kept], np.negative(before[kept])).astype(np.uint16)
    new = old.copy()
    new[where[kept]] += steps
    row = Row(TensorSpec(Kind.TENSOR, "w", "BF16", (count,)), True, True)
    return [row], old, new, history


def coded(
    rows: list[Row], old: NDArray[np.uint16], new: NDArray[np.uint16], history: History | None
) -> list[EncodedChunk]:
    past = None if history is None else [history].__getitem__
    encoder = ChunkEncoder(rows, block_units=1 << 17, chunk_bytes=1 << 16, profile="tight", history=past)
    return [*encoder.add(0, old, new), *encoder.finish()]


def test_a_chunk_made_with_a_history_is_smaller_and_read_exactly_with_it() -> None:
    rows, old, new, history = past_and_step()
    plain, chunks = coded(rows, old, new, None), coded(rows, old, new, history)
    assert sum(len(c.data) for c in chunks) < 0.95 * sum(len(c.data) for c in plain)
    made = old.copy()
    for chunk in chunks:
        assert chunk.data[1] == 3
        for block in decode_chunk(chunk.data, rows, 1 << 17, lambda row: old, lambda row: history):
            made[block.start : block.start + block.count][block.positions] += block.steps
    assert np.array_equal(made, new)


def test_a_chunk_made_with_a_history_is_refused_without_it() -> None:
    rows, old, new, history = past_and_step()
    chunk = coded(rows, old, new, history)[0].data
    with pytest.raises(FormatError, match="history, which is missing"):
        decode_chunk(chunk, rows, 1 << 17, lambda row: old)
    with pytest.raises(FormatError, match="another tensor"):
        decode_chunk(chunk, rows, 1 << 17, lambda row: old, lambda row: History(64))


def test_a_chunk_with_a_history_that_was_tampered_with_ends_in_one_error_or_in_sound_blocks() -> None:
    rows, old, new, history = past_and_step()
    chunk = coded(rows, old, new, history)[0].data
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        bad = bytearray(chunk)
        for at in rng.integers(2, len(bad), rng.integers(1, 4)):
            bad[at] = rng.integers(256)
        if rng.random() < 0.2:
            del bad[rng.integers(2, len(bad)) :]
        try:
            blocks = decode_chunk(bytes(bad), rows, 1 << 17, lambda row: old, lambda row: history)
        except FormatError:
            refused += 1
            continue
        for block in blocks:
            assert block.positions is None or bool((np.diff(block.positions.astype(np.int64)) > 0).all())
            assert block.positions is None or int(block.positions[-1]) < block.count
    assert refused > 100
