"""Decodes history-conditioned bodies of profile `tight` (`history_writer` describes them), back to blocks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from p2psync.delta.algebra import compose
from p2psync.delta.block import Block
from p2psync.delta.history import HistoryLookup
from p2psync.delta.tensors import TableRow
from p2psync.delta.tight.reader import (
    PART_LIMITS,
    BaseLookup,
    TightPart,
    UnitSelection,
    block_key,
    merge_rest,
    split_parts,
)
from p2psync.delta.tight.sign_residuals import SignResidualReader
from p2psync.errors import FormatError


def read_history_body(
    data: memoryview,
    rows: Sequence[TableRow],
    block_units: int,
    limit: int,
    base: BaseLookup | None,
    history: HistoryLookup,
) -> Iterator[Block]:
    """`reader.read_tight_body` against the history that the body was coded with. Raises `FormatError`.

    The caller may also record a block in the history before it asks for the next.
    """
    meta, bits, known_meta, known_bits, signs, rest = split_parts(data, 0, 6)
    given, bounds = (rows, block_units, limit), PART_LIMITS
    other = TightPart(meta, bits, *given, UnitSelection(history, 0)) if meta or bits else None
    if other is not None:
        bounds = PART_LIMITS[0] - other.size[0], PART_LIMITS[1] - other.size[1]
    known = (
        TightPart(known_meta, known_bits, *given, UnitSelection(history, 1), bounds)
        if known_meta or known_bits
        else None
    )
    if known is None and (other is None or signs):
        raise FormatError("a chunk's headers do not match its symbols")
    blocks = iter(()) if other is None else other.blocks(base)
    if known is not None:
        known_blocks = known.blocks(base, signs=not signs)
        if signs:
            known_blocks = _with_signs(known_blocks, SignResidualReader(signs, known.size[1]), history)
        blocks = _compose_both(blocks, known_blocks)
    return merge_rest(blocks, rest, rows, block_units, limit)


def _with_signs(blocks: Iterator[Block], signs: SignResidualReader, history: HistoryLookup) -> Iterator[Block]:
    """Apply the signs to the blocks of known units."""
    for block in blocks:
        row_history = history(block.row)
        assert row_history is not None and block.positions is not None
        signs.apply(row_history, block.start, block.positions, block.steps)
        yield block


def _compose_both(others: Iterator[Block], known: Iterator[Block]) -> Iterator[Block]:
    """Merge the changes of both sequences in rising order, composing those of one block into one."""
    waiting: Block | None = None
    for block in heapq.merge(others, known, key=block_key):
        if waiting is not None and block_key(waiting) == block_key(block):
            block = compose(waiting, block) or block
        elif waiting is not None:
            yield waiting
        waiting = block
    if waiting is not None:
        yield waiting
