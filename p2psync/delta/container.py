"""The chunk: consecutive blocks, decodable alone and in any order, given the manifest's table.

    1 byte   0x70
    1 byte   code of the profile (1: fast, 2: tight, 3: tight with a history)
    then     the profile's body

`docs/reference/formats.md` describes it byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from p2psync.delta.algebra import apply_block
from p2psync.delta.block import MAX_BLOCK_UNITS, Block, block_count, block_span, check_block_units
from p2psync.delta.digest import MODULUS
from p2psync.delta.extract import Extraction, FoundChanges
from p2psync.delta.fast.codec import FAST, FAST_CODE, FastWriter, read_fast_body
from p2psync.delta.history import HistoryLookup
from p2psync.delta.kernels.block_sums import ScanSums, address_of_block
from p2psync.delta.kernels.unit_loops import address
from p2psync.delta.streams import ByteParts
from p2psync.delta.tensors import TableRow, Units
from p2psync.delta.tight.history_reader import read_history_body
from p2psync.delta.tight.history_writer import HISTORY_CODE, HistoryWriter
from p2psync.delta.tight.reader import read_tight_body
from p2psync.delta.tight.sample import sample_blocks, sample_copies
from p2psync.delta.tight.writer import TIGHT, TIGHT_CODE, TightWriter
from p2psync.errors import FormatError

#: No chunk is larger than this, and none may be asked to be larger than `MAX_TARGET_BYTES` (bytes).
MAX_TARGET_BYTES = 4 << 20
MAX_CHUNK_BYTES = MAX_TARGET_BYTES + 65536
MIN_TARGET_BYTES = 4096
_MAGIC = 0x70
_HEADER_BYTES = 2


class _Writer(Protocol):
    """A profile's part of an encoder: prepares each block, then adds it to the current chunk or to the next one."""

    def prepare(self, block: Block, row: TableRow) -> Any: ...
    def fits(self, prepared: Any, /) -> bool: ...
    def add(self, prepared: Any, /) -> None: ...
    def close(self) -> tuple[int, ByteParts]: ...


#: Profiles by name, in the order of their introduction.
PROFILES: tuple[str, ...] = (FAST, TIGHT)


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk: its bytes, the table rows of its first and last block, and its number of blocks."""

    data: bytes
    first_row: int
    last_row: int
    blocks: int


class ChunkEncoder:
    """Encodes tensors, or blocks, into chunks, streaming: each chunk is yielded as soon as it is full.

    A chunk holds blocks of at most `chunk_bytes` before compression, or a single larger block. The same input gives the
    same bytes (with the same version of the compressor). Memory held: one chunk and one block.

    Rows must come in rising order, and the blocks of a row too; one encoder either adds tensors or adds blocks.
    """

    def __init__(
        self,
        rows: Sequence[TableRow],
        *,
        block_units: int,
        chunk_bytes: int,
        profile: str = FAST,
        history: HistoryLookup | None = None,
    ) -> None:
        """history: looks up a row's change history, for profile `tight`; all receivers must have the same histories.
        With it, the encoder reads histories, old units and found blocks until `finish` has run to its end.

        Raises `FormatError` for an impossible block size or an unknown profile, `ValueError` for a `chunk_bytes`
        outside [MIN_TARGET_BYTES, MAX_TARGET_BYTES].
        """
        check_block_units(block_units)
        if profile not in PROFILES:
            raise FormatError(f"unknown profile {profile!r}; known: {', '.join(PROFILES)}")
        if not MIN_TARGET_BYTES <= chunk_bytes <= MAX_TARGET_BYTES:
            raise ValueError(f"chunks of {chunk_bytes} bytes; {MIN_TARGET_BYTES} to {MAX_TARGET_BYTES} are possible")
        self._rows = rows
        self._block_units = block_units
        self._end = (-1, -1)
        self._profile = profile
        self._writer = _writer(profile, block_units, chunk_bytes, history)
        self._first_row = self._last_row = -1
        self._blocks = 0
        #: The sum that all added rows add to the digest, mod 2^128. `add_block` does not update it.
        self.digest_change = 0
        #: Units whose bits differ; of an added or removed tensor, those that are not zero.
        self.changed = 0
        #: Units of the added rows, changed or not.
        self.total = 0

    def add_sample(
        self,
        row_index: int,
        old: Units | None,
        new: Units | None,
        blocks: range,
        every: int,
        found: Iterable[FoundChanges] | None = None,
    ) -> None:
        """Sample one piece of 256 units in `every` pieces of a row that will be added, to choose classes for all.

        The arrays are those of `add`; or `old` and `found` are those of `add_found`. All samples come before the first
        `add`. Both forms give the same chunks.
        """
        row, writer = self._rows[row_index], self._writer
        if not isinstance(writer, TightWriter) or not writer.codes_tightly(row) or old is None:
            return
        self._check_arrays(row, old, old if found is not None else new)
        span = block_span(row.spec.width, self._block_units)
        first, stop = blocks.start * span, min(row.spec.count, blocks.stop * span)
        if first >= stop:
            return
        if found is not None:
            found_blocks = (one.block for one in found)
            writer.add_sample(sample_blocks(address(old), row_index, first, stop, every, found_blocks))
            return
        addresses = Extraction(row_index, old, new).addresses
        writer.add_sample(sample_copies(*addresses, row_index, first, stop, every))

    def add(
        self,
        row_index: int,
        old: Units | None,
        new: Units | None,
        blocks: range | None = None,
        sums: ScanSums | None = None,
    ) -> Iterator[EncodedChunk]:
        """Extract and code one tensor: flat unit arrays of its spec, None for a version in which it does not exist.

        blocks: the blocks to code; None: all. sums: block sums to fill for these blocks; `block_units` must then be
        `MAX_BLOCK_UNITS`. Run the iterator to its end. Raises `ValueError` for arrays that do not fit the row, or rows
        or blocks out of order.
        """
        row = self._rows[row_index]
        if blocks is None:
            blocks = range(block_count(row.spec, self._block_units))
        self._check(row_index, row, old, new, blocks)
        extraction = Extraction(row_index, old, new)
        spec, span = row.spec, block_span(row.spec.width, self._block_units)
        first, stop = blocks.start * span, min(row.spec.count, blocks.stop * span)
        summed = 0
        if sums is not None and old is not None and new is not None:
            if self._block_units != MAX_BLOCK_UNITS:
                raise ValueError(f"sums are taken of blocks of {MAX_BLOCK_UNITS} units, not of {self._block_units}")
            summed = sums.address
        self.total += max(0, stop - first)
        if isinstance(self._writer, TightWriter) and self._writer.codes_tightly(row):
            yield from self._find_and_code(self._writer, row_index, extraction.addresses, first, stop, summed)
            return
        if isinstance(self._writer, HistoryWriter):
            self._writer.begin_row(row_index, row, old)
        for start in range(first, stop, span):
            mine = address_of_block(summed, spec.width, start // span)
            block, change = extraction.block_with_digest(spec, start, min(span, stop - start), mine)
            self.digest_change = (self.digest_change + change) % MODULUS
            if block is not None:
                yield from self._code(block)

    def add_found(self, row_index: int, found: Iterable[FoundChanges], old: Units | None) -> Iterator[EncodedChunk]:
        """Code one tensor of both versions from its changes, found elsewhere, in rising order.

        Gives the same bytes, digest and counts as `add`. old: the old bits of the whole tensor, which profile `tight`
        needs. Run the iterator to its end. Raises `ValueError` for blocks that do not fit the row, `old` missing, or
        rows out of order.
        """
        row = self._rows[row_index]
        if row_index <= self._end[0] or not (row.before and row.after):
            raise ValueError(f"{row.spec.name}: rows must come in rising order, and exist before and after")
        if old is None and self._profile == TIGHT:
            raise ValueError(f"{row.spec.name}: profile {TIGHT} codes against the old weights, which are missing")
        if old is not None:
            self._check(row_index, row, old, old, range(0))
        self._end = (row_index, 0)
        self.total += row.spec.count
        if isinstance(self._writer, HistoryWriter):
            self._writer.begin_row(row_index, row, old)
        for one in found:
            if one.block.row != row_index:
                raise ValueError(f"{row.spec.name}: a block of another row")
            self._check_block(one.block)
            change = (self.digest_change + one.digest_change(row.spec)) % MODULUS
            yield from self._code_found(one.block, row, old)
            self.digest_change = change
        self._end = (row_index, row.spec.count)

    def add_block(self, block: Block) -> Iterator[EncodedChunk]:
        """Code an existing block (for squashing or inverting), without updating the digest.

        Run the iterator to its end. Raises `ValueError` for a block off the grid, of a wrong unit, or out of order, and
        for profile `tight`, which needs old weights that a block does not hold.
        """
        if self._profile == TIGHT:
            raise ValueError(f"profile {TIGHT} codes against old weights: blocks alone take profile {FAST}")
        self._check_block(block)
        yield from self._code(block)

    def _find_and_code(
        self, writer: TightWriter, row_index: int, addresses: tuple[int, int], at: int, stop: int, sums: int = 0
    ) -> Iterator[EncodedChunk]:
        """Find and code the changes of units `at` to `stop` of a row of tight blocks.

        addresses: of the first units of the old and the new copy. sums: address of the tensor's block sums, or 0.
        """
        full = False
        while at < stop or full:
            step = writer.advance(row_index, self._rows[row_index], *addresses, at, stop, sums)
            at, full = step.at, step.full
            self.digest_change = (self.digest_change + step.digest_change) % MODULUS
            self.changed += step.changed
            if step.blocks:
                self._count(row_index, step.blocks)
            if full:
                yield self._close()
            if step.dense_block is not None:
                yield from self._code(step.dense_block)

    def _code_found(self, block: Block, row: TableRow, old: Units | None) -> Iterator[EncodedChunk]:
        """Code a block that was found elsewhere, to the same bytes as if this encoder had found it."""
        if old is None or not isinstance(self._writer, TightWriter) or not self._writer.codes_tightly(row):
            yield from self._code(block)
            return
        before = old[block.start : block.start + block.count]
        after = before.copy()
        apply_block(after, replace(block, start=0))
        offset = block.start * before.itemsize
        addresses = address(before) - offset, address(after) - offset
        yield from self._find_and_code(self._writer, block.row, addresses, block.start, block.start + block.count)

    def _check_block(self, block: Block) -> None:
        spec = self._rows[block.row].spec
        span = block_span(spec.width, self._block_units)
        if block.steps.dtype != spec.unit or block.start % span or not 0 <= block.start < spec.count:
            raise ValueError(f"a block of {spec.name} that is not on the grid of {span} units")
        if block.count != min(span, spec.count - block.start):
            raise ValueError(f"a block of {spec.name} of {block.count} units; reblock it first")
        if (block.row, block.start) < self._end:
            raise ValueError("blocks must come in rising order")
        self._end = (block.row, block.start + block.count)

    def finish(self) -> Iterator[EncodedChunk]:
        """Yield the last chunk, if one was begun."""
        if self._blocks:
            yield self._close()

    def _check(self, row_index: int, row: TableRow, old: Units | None, new: Units | None, blocks: range) -> None:
        span = block_span(row.spec.width, self._block_units)
        if (row_index, blocks.start * span) < self._end:
            raise ValueError("rows, and the blocks of a row, must be added in rising order")
        if blocks.step != 1 or blocks.stop > block_count(row.spec, self._block_units):
            raise ValueError(f"{row.spec.name}: blocks {blocks} are not all in the tensor")
        self._check_arrays(row, old, new)
        self._end = row_index, max(1, blocks.stop * span)

    def _check_arrays(self, row: TableRow, old: Units | None, new: Units | None) -> None:
        if (old is not None, new is not None) != (row.before, row.after):
            raise ValueError(f"{row.spec.name}: the arrays given are not those that the row says exist")
        for units in (old, new):
            if units is not None and (units.shape != (row.spec.count,) or units.dtype != row.spec.unit):
                raise ValueError(f"{row.spec.name}: {row.spec.count} units of {row.spec.unit} are wanted")

    def _code(self, block: Block) -> Iterator[EncodedChunk]:
        prepared = self._writer.prepare(block, self._rows[block.row])
        self.changed += prepared.changed
        if self._blocks and not self._writer.fits(prepared):
            yield self._close()
        self._writer.add(prepared)
        self._count(block.row, 1)

    def _count(self, row: int, blocks: int) -> None:
        """Count blocks of a row that were added to the current chunk."""
        if not self._blocks:
            self._first_row = row
        self._last_row = row
        self._blocks += blocks

    def _close(self) -> EncodedChunk:
        code, parts = self._writer.close()
        chunk = EncodedChunk(b"".join([bytes((_MAGIC, code)), *parts]), self._first_row, self._last_row, self._blocks)
        self._blocks = 0
        return chunk


def _writer(profile: str, block_units: int, limit: int, history: HistoryLookup | None) -> _Writer:
    if profile == FAST:
        return FastWriter(block_units, limit)
    if history is None:
        return TightWriter(block_units, limit)
    return HistoryWriter(block_units, limit, history)


def decode_chunk(
    data: bytes | bytearray | memoryview,
    rows: Sequence[TableRow],
    block_units: int,
    base: Callable[[int], Units] | None = None,
    history: HistoryLookup | None = None,
) -> list[Block]:
    """The blocks of a chunk, in rising order of (row, start).

    base: returns the old units of a row, for profile `tight`. history: returns a row's change history, for chunks that
    were coded with one. The arrays of the blocks may share memory with one another, not with `data`. Everything is
    checked: every failure is a `FormatError`, and decoding takes at most about 12 times `MAX_CHUNK_BYTES` of memory, 20
    times with a history.
    """
    return list(iter_chunk(data, rows, block_units, base, history))


def iter_chunk(
    data: bytes | bytearray | memoryview,
    rows: Sequence[TableRow],
    block_units: int,
    base: Callable[[int], Units] | None = None,
    history: HistoryLookup | None = None,
) -> Iterator[Block]:
    """`decode_chunk`, block by block; blocks that came before a `FormatError` must be undone by the caller.

    The caller may add a block to the old units before it asks for the next, while they are still in the cache.
    """
    check_block_units(block_units)
    view = memoryview(data).cast("B")
    if not _HEADER_BYTES < len(view) <= MAX_CHUNK_BYTES:
        raise FormatError(f"a chunk of {len(view)} bytes; at most {MAX_CHUNK_BYTES} are possible")
    if view[0] != _MAGIC:
        raise FormatError("not a chunk of p2psync")
    body, code = view[_HEADER_BYTES:], view[1]
    if code == FAST_CODE:
        yield from read_fast_body(body, rows, block_units, MAX_CHUNK_BYTES, base)
    elif code == TIGHT_CODE:
        yield from read_tight_body(body, rows, block_units, MAX_CHUNK_BYTES, base)
    elif code == HISTORY_CODE and history is not None:
        yield from read_history_body(body, rows, block_units, MAX_CHUNK_BYTES, base, history)
    elif code == HISTORY_CODE:
        raise FormatError("a chunk that was coded with a change history, which is missing here")
    else:
        raise FormatError(f"a chunk of unknown profile {code}; update p2psync")
