"""Profile `tight` with a history: exact, smaller on drifting changes, safe against inconsistent input."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import reference_tight
from delta_parts import GRID, apply_all, change, misaligned, random_units, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from p2psync.delta.block import Block
from p2psync.delta.container import ChunkEncoder, decode_chunk, iter_chunk
from p2psync.delta.extract import FoundChanges, extract_block
from p2psync.delta.history import ChangeHistory
from p2psync.delta.streams import pack_streams, unpack_streams, varint
from p2psync.delta.tensors import TableRow
from p2psync.delta.tight.history_reader import read_history_body
from p2psync.delta.tight.reader import PART_LIMITS, split_parts
from p2psync.errors import FormatError

Bits = NDArray[np.uint16]
SHARES = (0.0, 0.001, 0.05, 0.5, 0.95, 1.0)


def history_of(count: int, known: NDArray[np.bool_], down: NDArray[np.bool_]) -> ChangeHistory:
    """A history whose bits beyond the last unit are set: no loop may read them."""
    history = ChangeHistory(count)
    for words, bits in ((history.known, known), (history.down, down)):
        padded = np.ones(64 * words.size, np.bool_)
        padded[:count] = bits
        words[:] = np.packbits(padded, bitorder="little").view("<u8")
    return history


def weights(rng: np.random.Generator, count: int) -> Bits:
    return (
        (rng.standard_normal(count).astype(np.float32) * np.float32(0.03)).view(np.uint32).__rshift__(16).astype("<u2")
    )


class Case:
    """Tensors before and after, and the history of some."""

    def __init__(self) -> None:
        self.rows: list[TableRow] = []
        self.old: list[Bits | None] = []
        self.new: list[Bits | None] = []
        self.histories: list[ChangeHistory | None] = []

    def add(self, row: TableRow, old: Bits | None, new: Bits | None, history: ChangeHistory | None) -> None:
        self.rows.append(row)
        self.old.append(old)
        self.new.append(new)
        self.histories.append(history)

    def encode(self, *, history: bool = True, grid: int = GRID, size: int = 1 << 16) -> list[bytes]:
        history = self.histories.__getitem__ if history else None
        encoder = ChunkEncoder(self.rows, block_units=grid, chunk_bytes=size, profile="tight", history=history)
        chunks = [one for k in range(len(self.rows)) for one in encoder.add(k, self.old[k], self.new[k])]
        chunks += encoder.finish()
        self.counts = encoder.changed, encoder.total, encoder.digest_change
        return [one.data for one in chunks]

    def decode(self, data: bytes, grid: int = GRID) -> list[Block]:
        return decode_chunk(data, self.rows, grid, self.base, self.histories.__getitem__)

    def base(self, row: int) -> Bits:
        units = self.old[row]
        assert units is not None
        return units

    def assert_exact(self, chunks: Sequence[bytes], grid: int = GRID) -> None:
        blocks = [block for data in chunks for block in self.decode(data, grid)]
        places = [(block.row, block.start) for block in blocks]
        assert places == sorted(set(places))
        assert sum(block.changed for block in blocks) == self.counts[0]
        for block in blocks:
            assert block.positions is None or (np.diff(block.positions.astype(np.int64)) > 0).all()
        for row, live, wanted in zip(self.rows, apply_all(self.rows, self.old, blocks), self.new, strict=True):
            assert np.array_equal(live, np.zeros(row.spec.count, row.spec.unit) if wanted is None else wanted)


def random_case(seed: int, shares: Sequence[float], counts: Sequence[int], density: float, kind: str) -> Case:
    """Tensors of these lengths, with this share of known units; every third one has no history."""
    rng, case = np.random.default_rng(seed), Case()
    for k, (share, count) in enumerate(zip(shares, counts, strict=True)):
        old = weights(rng, count) if k % 2 else random_units(rng, np.dtype("<u2"), count)
        known, down = rng.random(count) < share, rng.random(count) < 0.5
        history = None if k % 3 == 2 else history_of(count, known, down)
        new = change(rng, old, density, kind)
        case.add(TableRow(spec("BF16", (count,), f"{k}"), True, True), misaligned(old), misaligned(new), history)
    return case


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shares=st.lists(st.sampled_from(SHARES), min_size=4, max_size=4),
    counts=st.lists(st.sampled_from([1, 63, 64, 65, 4097, GRID - 1, GRID, GRID + 77]), min_size=4, max_size=4),
    density=st.sampled_from([0.001, 0.02, 0.3, 0.9, 1.0]),
    kind=st.sampled_from(["one", "little", "any"]),
)
def test_history_chunks_round_trip_at_any_history(
    seed: int, shares: list[float], counts: list[int], density: float, kind: str
) -> None:
    case = random_case(seed, shares, counts, density, kind)
    case.assert_exact(case.encode())


def drifting(count: int = 1 << 17, *, turning: float = 0.1) -> Case:
    """Small weights, some of which change again and again, mostly in the same direction."""
    rng, case = np.random.default_rng(11), Case()
    old = weights(rng, count)
    small = ((old >> 7) & 255) < 120
    known = small & (rng.random(count) < 0.2)
    down = rng.random(count) < 0.5
    changed = known & (rng.random(count) < 0.5) | small & (rng.random(count) < 0.02)
    turns = np.where(known, rng.random(count) < turning, rng.random(count) < 0.5)
    steps = np.where(down ^ turns, 0xFFFF, 1).astype(np.uint16)
    new = np.where(changed, old + steps, old)
    case.add(TableRow(spec("BF16", (count,)), True, True), old, new, history_of(count, known, down))
    return case


def mixed() -> Case:
    """Tensors with and without a history, dense blocks, and added and removed tensors."""
    case, rng = drifting(3 * GRID + 500), np.random.default_rng(3)
    some = random_case(4, (0.3, 0.0, 0.5), (GRID + 9, 700, 2 * GRID), 0.02, "little")
    for row, old, new, history in zip(some.rows, some.old, some.new, some.histories, strict=True):
        case.add(row, old, new, history)
    dense = random_units(rng, np.dtype("<u2"), 5000)
    all_known = history_of(5000, np.ones(5000, np.bool_), np.ones(5000, np.bool_))
    case.add(TableRow(spec("BF16", (5000,), "dense"), True, True), dense, dense + np.uint16(1), all_known)
    wide = random_units(rng, np.dtype("<u4"), 600)
    case.add(TableRow(spec("F32", (600,), "wide"), True, True), wide, change(rng, wide, 0.1, "any"), None)
    case.add(TableRow(spec("BF16", (600,), "come"), False, True), None, weights(rng, 600), all_known)
    case.add(TableRow(spec("BF16", (600,), "gone"), True, False), weights(rng, 600), None, all_known)
    case.add(*(part[0] for part in (case.rows, case.old, case.new, case.histories)))
    return case


@pytest.mark.parametrize(("grid", "size"), [(1 << 15, 4096), (GRID, 1 << 14), (1 << 20, 1 << 20)])
def test_history_chunk_carries_rows_without_history_and_fast_blocks(grid: int, size: int) -> None:
    case = mixed()
    chunks = case.encode(grid=grid, size=size)
    assert 3 in {data[1] for data in chunks}
    case.assert_exact(chunks, grid)


def test_history_saves_a_fifth_on_drifting_changes() -> None:
    case = drifting()
    plain, chunks = case.encode(history=False), case.encode()
    assert {data[1] for data in chunks} == {3}
    assert sum(map(len, chunks)) < 0.8 * sum(map(len, plain))


def parts(data: bytes) -> list[bytes]:
    return [bytes(part) for part in split_parts(memoryview(data)[2:], 0, 6)]


def put_together(found: Sequence[bytes]) -> bytes:
    return b"\x70\x03" + b"".join([*(varint(len(part)) for part in found), *found])


def test_signs_are_residuals_only_if_that_saves_bytes() -> None:
    (going_on,) = drifting().encode()
    (turning,) = drifting(turning=0.5).encode()
    assert parts(going_on)[4] and not parts(turning)[4]


def test_history_saves_bytes_on_positions_alone() -> None:
    case = drifting(turning=0.5)
    assert sum(map(len, case.encode())) < 0.85 * sum(map(len, case.encode(history=False)))


def test_history_chunk_is_never_larger_than_fast() -> None:
    rng, case = np.random.default_rng(0), Case()
    old = random_units(rng, np.dtype("<u2"), 300)
    new = old.copy()
    new[:3] += 1
    case.add(TableRow(spec("BF16", (300,)), True, True), old, new, history_of(300, rng.random(300) < 0.5, old > 0))
    chunks = case.encode()
    assert [data[1] for data in chunks] == [1]
    case.assert_exact(chunks)


def test_add_found_with_history_gives_the_same_chunks() -> None:
    case = mixed()
    chunks, counts = case.encode(size=1 << 14), case.counts
    history = case.histories.__getitem__
    encoder = ChunkEncoder(case.rows, block_units=GRID, chunk_bytes=1 << 14, profile="tight", history=history)
    made = []
    for k, (row, old, new) in enumerate(zip(case.rows, case.old, case.new, strict=True)):
        if old is None or new is None:
            made += encoder.add(k, old, new)
            continue
        found = []
        for start in range(0, row.spec.count, GRID):
            block = extract_block(k, old, new, start, min(GRID, row.spec.count - start))
            if block is not None:
                where = slice(None) if block.positions is None else block.positions
                found.append(FoundChanges(block, old[start : start + block.count][where]))
        made += encoder.add_found(k, found, old)
    made += encoder.finish()
    assert [one.data for one in made] == chunks
    assert (encoder.changed, encoder.total, encoder.digest_change) == counts


def test_samples_do_not_change_history_chunks() -> None:
    case = drifting()
    encoder = ChunkEncoder(
        case.rows, block_units=GRID, chunk_bytes=1 << 16, profile="tight", history=case.histories.__getitem__
    )
    encoder.add_sample(0, case.old[0], case.new[0], range(4), 1)
    made = [*encoder.add(0, case.old[0], case.new[0]), *encoder.finish()]
    assert [one.data for one in made] == case.encode()


@pytest.mark.parametrize(
    ("make", "residuals"), [(mixed, True), (lambda: drifting(GRID), True), (lambda: drifting(turning=0.5), False)]
)
def test_reference_reads_tight_chunks(make: Callable[[], Case], residuals: bool) -> None:
    case = make()

    bits = [
        None
        if history is None
        else [np.unpackbits(w.view("u1"), bitorder="little").tolist() for w in (history.known, history.down)]
        for history in case.histories
    ]
    chunks = case.encode(size=1 << 14)
    assert {bool(parts(data)[4]) for data in chunks if data[1] == 3} == {residuals}
    for data in chunks:
        steps = reference_tight.read_chunk(data, case.rows, GRID, case.base, bits.__getitem__)
        for block, wanted in zip(case.decode(data), steps, strict=True):
            places = range(block.count) if block.positions is None else block.positions.tolist()
            found = {(block.row, block.start + p): int(s) for p, s in zip(places, block.steps, strict=True) if s}
            assert found == wanted


def test_block_may_be_applied_and_recorded_before_the_next() -> None:
    case = mixed()
    histories = [None if history is None else ChangeHistory(history.count) for history in case.histories]
    for mine, history in zip(histories, case.histories, strict=True):
        if mine is not None and history is not None:
            mine.known[:], mine.down[:] = history.known, history.down
    live = apply_all(case.rows, case.old, [])
    for data in case.encode(size=1 << 14):
        for block in iter_chunk(data, case.rows, GRID, live.__getitem__, histories.__getitem__):
            where = slice(None) if block.positions is None else block.positions
            live[block.row][block.start : block.start + block.count][where] += block.steps
            history = histories[block.row]
            if history is not None and history.count == case.rows[block.row].spec.count:
                history.record(block)
    for made, new in zip(live, case.new, strict=True):
        assert new is None or np.array_equal(made, new)


# ---- misfits


def test_history_chunk_is_refused_without_its_history() -> None:
    case = drifting()
    (data,) = case.encode()
    with pytest.raises(FormatError, match="history, which is missing"):
        decode_chunk(data, case.rows, GRID, case.base)
    with pytest.raises(FormatError, match="another tensor"):
        decode_chunk(data, case.rows, GRID, case.base, lambda row: ChangeHistory(64))
    with pytest.raises(FormatError, match="changes among 0 units"):
        decode_chunk(data, case.rows, GRID, case.base, lambda row: None)


def test_encoder_refuses_the_history_of_another_tensor() -> None:
    case = drifting()
    case.histories[0] = ChangeHistory(64)
    with pytest.raises(ValueError, match="another tensor"):
        case.encode()


def test_add_found_refuses_positions_outside_the_block() -> None:
    case = drifting(GRID)
    encoder = ChunkEncoder(
        case.rows, block_units=GRID, chunk_bytes=1 << 16, profile="tight", history=case.histories.__getitem__
    )
    block = Block(0, 0, GRID, np.array([1, 1 << 31], np.uint32), np.ones(2, np.uint16))
    with pytest.raises(ValueError, match="outside"):
        list(encoder.add_found(0, [FoundChanges(block, np.zeros(2, np.uint16))], case.old[0]))


def test_history_encoder_needs_old_weights() -> None:
    case = drifting()
    encoder = ChunkEncoder(case.rows, block_units=GRID, chunk_bytes=1 << 16, profile="tight", history={}.get)
    with pytest.raises(ValueError, match="missing"):
        list(encoder.add_found(0, [], None))
    with pytest.raises(ValueError, match="old weights"):
        list(encoder.add_block(Block(0, 0, GRID, np.array([1], np.uint32), np.array([1], np.uint16))))


@pytest.mark.parametrize("part", [0, 1])
def test_reader_refuses_more_changes_than_selected_units(part: int) -> None:
    case = drifting(GRID)
    (data,) = case.encode()
    found = parts(data)
    history = case.histories[0]
    assert history is not None
    known = int(np.bitwise_count(history.known).sum())
    units = (GRID - known, known)[part]
    tables = unpack_streams(memoryview(found[2 * part]), 2, 1 << 20)[0].tobytes()
    # Row 0, block 0, all changes of class 0: one step too many in zigzag coding.
    classes = max(reference_tight.read_tables(tables)[0][1:]) + 1
    tail = varint(len(found[2 * part + 1]))
    for more, match in ((units + 1, f"{units + 1} changes among {units} units"), (units, "symbols|another base")):
        forged = b"\0\0" + varint(2 * more) + bytes(classes - 1) + tail
        found[2 * part] = pack_streams([tables, forged])
        with pytest.raises(FormatError, match=match):
            case.decode(put_together(found))


def test_limits_hold_for_both_parts_together(monkeypatch: pytest.MonkeyPatch) -> None:
    case = drifting(4 * GRID)
    (data,) = case.encode(size=1 << 20)
    body, rows = memoryview(data)[2:], case.rows
    changed = case.counts[0]

    def read() -> list[Block]:
        return list(read_history_body(body, rows, GRID, 1 << 20, case.base, case.histories.__getitem__))

    for most, match in (((7, PART_LIMITS[1]), "more than 3 tight blocks"), ((8, changed - 1), "more or fewer changes")):
        monkeypatch.setattr("p2psync.delta.tight.history_reader.PART_LIMITS", most)
        with pytest.raises(FormatError, match=match):
            read()
    monkeypatch.setattr("p2psync.delta.tight.history_reader.PART_LIMITS", (8, changed))
    assert len(read()) == 4


def test_reader_refuses_inconsistent_parts() -> None:
    case = drifting()
    (data,) = case.encode()
    others, bits, known, more, signs, rest = parts(data)
    assert others and known and signs and not rest
    for wrong in (
        [b"", b"", b"", b"", b"", b""],
        [b"", b"", b"", b"", signs, b""],
        [others, bits, b"", b"", signs, b""],
        [others, b"", known, more, signs, b""],
        [others, bits, known, b"", signs, b""],
        [b"", bits, known, more, signs, b""],
        [others, bits, known, more, b"", b""],
        [others, bits, known, more, signs[:1], b""],
        [others, bits, known, more, signs, b"\0"],
    ):
        with pytest.raises(FormatError):
            case.decode(put_together(wrong))
    for alone in ([others, bits, b"", b"", b"", b""], [b"", b"", known, more, signs, b""]):
        assert len(case.decode(put_together(alone))) == 2


def test_reader_refuses_a_block_of_the_rest_that_is_in_a_part() -> None:
    case = drifting(GRID)
    (data,) = case.encode()
    encoder = ChunkEncoder(case.rows, block_units=GRID, chunk_bytes=1 << 20, profile="fast")
    (fast,) = [*encoder.add(0, case.old[0], case.new[0]), *encoder.finish()]
    with pytest.raises(FormatError, match="twice"):
        case.decode(put_together([*parts(data)[:5], fast.data[2:]]))


def test_mutated_history_chunk_is_refused_or_decodes_to_valid_blocks() -> None:
    case = mixed()
    (data,) = case.encode(size=1 << 20)
    rng, refused = np.random.default_rng(0), 0
    for _ in range(300):
        bad = bytearray(data)
        for at in rng.integers(2, len(bad) if rng.random() < 0.5 else 600, rng.integers(1, 4)):
            bad[at] = rng.integers(256)
        if rng.random() < 0.2:
            del bad[rng.integers(2, len(bad)) :]
        try:
            blocks = case.decode(bytes(bad))
        except FormatError:
            refused += 1
            continue
        for block in blocks:
            assert block.positions is None or bool((np.diff(block.positions.astype(np.int64)) > 0).all())
            assert block.positions is None or int(block.positions[-1]) < block.count
    assert refused > 100
