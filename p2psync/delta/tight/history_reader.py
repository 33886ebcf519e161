"""Reading profile `tight` with a history: a chunk's body (`tight_past` says what it is made of), back to blocks."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from p2psync.delta.algebra import compose
from p2psync.delta.block import Block
from p2psync.delta.history import Past
from p2psync.delta.tensors import Row
from p2psync.delta.tight.reader import MOST, Base, Part, Side, cut, place_of, with_rest
from p2psync.delta.tight.sign_residuals import SignReader
from p2psync.errors import FormatError


def read_body(
    data: memoryview, rows: Sequence[Row], block_units: int, limit: int, base: Base | None, history: Past
) -> Iterator[Block]:
    """As `tight_read.read_body`, against the history that the body was made with. Raises `FormatError`.

    What has come may be recorded in the history, too, before the next block is asked for.
    """
    meta, bits, known_meta, known_bits, signs, rest = cut(data, 0, 6)
    given, bounds = (rows, block_units, limit), MOST
    other = Part(meta, bits, *given, Side(history, 0)) if meta or bits else None
    if other is not None:
        bounds = MOST[0] - other.size[0], MOST[1] - other.size[1]
    known = Part(known_meta, known_bits, *given, Side(history, 1), bounds) if known_meta or known_bits else None
    if known is None and (other is None or signs):
        raise FormatError("a chunk's blocks are not what its symbols are for")
    blocks = iter(()) if other is None else other.blocks(base)
    if known is not None:
        more = known.blocks(base, signs=not signs)
        blocks = _joined(blocks, _turned(more, SignReader(signs, known.size[1]), history) if signs else more)
    return with_rest(blocks, rest, rows, block_units, limit)


def _turned(blocks: Iterator[Block], signs: SignReader, history: Past) -> Iterator[Block]:
    """Blocks of known units, with their signs."""
    for block in blocks:
        past = history(block.row)
        assert past is not None and block.positions is not None
        signs.apply(past, block.start, block.positions, block.steps)
        yield block


def _joined(others: Iterator[Block], known: Iterator[Block]) -> Iterator[Block]:
    """What changes among both sides, as one block where it is of one block; in rising order."""
    waiting: Block | None = None
    for block in heapq.merge(others, known, key=place_of):
        if waiting is not None and place_of(waiting) == place_of(block):
            block = compose(waiting, block) or block
        elif waiting is not None:
            yield waiting
        waiting = block
    if waiting is not None:
        yield waiting
