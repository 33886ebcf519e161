"""Streaming encoder of a manifest and its chunks from tensors or blocks, for stores and delta files."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import msgspec
from blake3 import blake3

from p2psync.delta.block import Block, block_span
from p2psync.delta.container import ChunkEncoder, EncodedChunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes
from p2psync.delta.extract import FoundChanges
from p2psync.delta.history import HistoryLookup
from p2psync.delta.kernels.block_sums import ScanSums
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.delta.tight.writer import TIGHT
from p2psync.parallel import InOrder
from p2psync.protocol.manifest import HASH_BYTES, Manifest, pack_table
from p2psync.protocol.messages import NO_VERSION
from p2psync.protocol.versions import Position
from p2psync.store.segments import Segments

#: Units of a block of a delta: the most possible, since each block costs Python's overhead, on one core at a time.
DELTA_BLOCK_UNITS = 1 << 20
#: Units of a block of an anchor, at most: a whole block must fit a chunk.
_MAX_ANCHOR_BLOCK_UNITS = 1 << 17
#: Bytes of a chunk before compression, at least and at most; in between, the model's bytes over the number of parts. A
#: relay passes on whole chunks, and an idle connection sends some 14 KB in its first round trip, so large chunks delay
#: the swarm's last node. Each chunk takes 32 bytes of the manifest, and time at every node.
MIN_DELTA_CHUNK_BYTES, MAX_DELTA_CHUNK_BYTES, _DELTA_PARTS = 128 << 10, 256 << 10, 1 << 13
MIN_ANCHOR_CHUNK_BYTES, MAX_ANCHOR_CHUNK_BYTES, _ANCHOR_PARTS = 64 << 10, 512 << 10, 1 << 10
#: Seconds that a chunk of an anchor takes at the rate at which the anchor is spread, as long as there are at least
#: `_MIN_CHUNKS`: on fast links small chunks mostly cost a relay's processor time.
_CHUNK_SECONDS, _MIN_CHUNKS = 0.0025, 256
#: About 2^this units of each segment are sampled before it is encoded.
_SAMPLE_BITS = 17


class ChunkSink(Protocol):
    """Takes chunks, in order: a draft of the store, or a delta file."""

    def append(self, data: bytes) -> None:
        """Keep the next chunk. Raises `StoreError`."""


def rows_between(old: Sequence[TensorSpec], new: Sequence[TensorSpec]) -> list[TableRow]:
    """The table of a delta from a version with tensors `old` to one with tensors `new`."""
    before, after = set(old), set(new)
    return [TableRow(spec, spec in before, spec in after) for spec in sorted(before | after)]


def block_and_chunk(rows: Sequence[TableRow], *, anchor: bool, rate: float = 0.0) -> tuple[int, int]:
    """Choose (units per block, bytes per chunk), powers of two, for a model of this table.

    A block of an anchor fits a chunk. rate: bytes a second at which an anchor will be spread; 0: not known.
    """
    total = sum(row.spec.nbytes for row in rows)
    if not anchor:
        return DELTA_BLOCK_UNITS, _between(MIN_DELTA_CHUNK_BYTES, total // _DELTA_PARTS, MAX_DELTA_CHUNK_BYTES)
    part = max(total // _ANCHOR_PARTS, int(min(total // _MIN_CHUNKS, rate * _CHUNK_SECONDS)))
    chunk = _between(MIN_ANCHOR_CHUNK_BYTES, part, MAX_ANCHOR_CHUNK_BYTES)
    return min(_MAX_ANCHOR_BLOCK_UNITS, chunk // 2), chunk


def _between(least: int, wanted: int, most: int) -> int:
    """The power of two at or above `wanted`, within the bounds."""
    return min(most, max(least, 1 << (max(1, wanted) - 1).bit_length()))


@dataclass(frozen=True, slots=True, eq=False)
class _SegmentRow:
    """The blocks of one row in one segment, from both copies or from changes that were found elsewhere."""

    row: int
    old: Units | None
    new: Units | None
    blocks: range
    found: list[FoundChanges] | None = None
    sums: ScanSums | None = None

    def add_sample(self, encoder: ChunkEncoder, every: int) -> None:
        """Sample these blocks for the encoder's choice of classes."""
        encoder.add_sample(self.row, self.old, self.new, self.blocks, every, self.found)

    def code(self, encoder: ChunkEncoder) -> Iterator[EncodedChunk]:
        """Encode these blocks."""
        if self.found is not None:
            return encoder.add_found(self.row, self.found, self.old)
        return encoder.add(self.row, self.old, self.new, self.blocks, self.sums)


@dataclass(slots=True, eq=False)
class _EncodedSegment:
    """An encoded segment: its chunks with their hashes, and the digest changes of its rows."""

    segment: int
    chunks: list[tuple[EncodedChunk, bytes]] = field(default_factory=list)
    digests: list[tuple[int, int]] = field(default_factory=list)
    changed: int = 0

    def add(self, chunks: Iterator[EncodedChunk]) -> None:
        """Hash and keep chunks."""
        self.chunks += [(chunk, blake3(chunk.data).digest()) for chunk in chunks]


class EncodedPart(msgspec.Struct, frozen=True, array_like=True):
    """The chunks of one of several encoders of a manifest; see `Encoding.part`.

    segments, sizes (bytes), first_rows: of each chunk, in order. hashes: 32 bytes of each. changed: units.
    digest_change: 16 bytes. row_digests: of an anchor, this encoder's share of each row's digest, 16 bytes each.
    """

    segments: list[int]
    sizes: list[int]
    hashes: bytes
    first_rows: list[int]
    changed: int
    digest_change: bytes
    row_digests: list[bytes]


class Encoding:
    """Encodes one manifest's chunks into a sink: `take` every row, or `take_block` every block, then `finish`.

    Encodes segments of the table in parallel on all cores, but calls the sink only from the caller's thread. A context
    manager: after its end the arrays are no longer read.
    """

    def __init__(
        self,
        sink: ChunkSink,
        rows: Sequence[TableRow],
        *,
        anchor: bool = False,
        rate: float = 0.0,
        profile: str = "fast",
        history: HistoryLookup | None = None,
        segments: Container[int] | None = None,
        summed: bool = False,
    ) -> None:
        """rate: see `block_and_chunk`. history: see `ChunkEncoder`; called by all threads. segments: those to encode
        here; None: all. Blocks of other segments are ignored. summed: keep the block sums of a delta's rows. Raises
        `FormatError` for an unknown profile.
        """
        self.rows = list(rows)
        self.block_units, self._chunk_bytes = block_and_chunk(rows, anchor=anchor, rate=rate)
        #: The digest change of the rows encoded so far, mod 2^128; complete after `finish`. `take_block` does not
        #: update it.
        self.digest_change = 0
        #: Units whose bits differ, so far; complete after `finish`.
        self.changed = 0
        #: With `summed`, the block sums of each scanned row; complete after `finish`.
        self.sums: dict[int, ScanSums] = {}
        self._summed = summed and not anchor
        self._sink = sink
        self._profile = profile
        self._history = history
        self._only = segments
        self._chunk_segments: list[int] = []
        self._sizes: list[int] = []
        self._hashes: list[bytes] = []
        self._first_rows: list[int] = []
        self._row_digests = [0] * len(rows) if anchor else None
        self._segments = Segments(rows, self.block_units)
        self._parts: list[_SegmentRow] = []
        self._segment = 0
        self._calls = InOrder(self._keep)
        self._block_segment = _EncodedSegment(0)
        self._encoder = self._new_encoder()

    def __enter__(self) -> Encoding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.give_up()

    def take(self, index: int, old: Units | None, new: Units | None) -> None:
        """Encode one row; rows come in rising order. The arrays are read until `finish` returns, or the context ends.

        An anchor's rows get their own digests, by which a joining node finds the tensors that it has already.
        """
        sums = None
        if self._summed and old is not None and new is not None:
            sums = self.sums[index] = ScanSums(self.rows[index].spec)
        for segment, blocks in self._segments.parts(index):
            if not self._is_mine(segment):
                continue
            self._begin(segment)
            self._parts.append(_SegmentRow(index, old, new, blocks, sums=sums))

    def take_found(self, index: int, found: Iterable[FoundChanges], old: Callable[[], Units]) -> None:
        """Encode one row, whose changes were found elsewhere, to the same chunks as `take`.

        old: returns the old bits of the row; called only if the profile needs them.
        """
        units = old() if self._profile == TIGHT else None
        span = block_span(self.rows[index].spec.width, self.block_units)
        blocks_of, part = dict(self._segments.parts(index)), None
        for one in found:
            segment = self._segments.of(index, one.block.start // span)
            if not self._is_mine(segment):
                continue
            if part is None or segment != self._segment:
                self._begin(segment)
                part = _SegmentRow(index, units, None, blocks_of[segment], [])
                self._parts.append(part)
            assert part.found is not None
            part.found.append(one)

    def take_block(self, block: Block) -> None:
        """Encode an existing block on the grid of `block_units`."""
        span = block_span(self.rows[block.row].spec.width, self.block_units)
        segment = self._segments.of(block.row, block.start // span)
        if not self._is_mine(segment):
            return
        if segment != self._segment:
            self._flush_blocks()
            self._segment = segment
        self._block_segment.add(self._encoder.add_block(block))

    def finish(self) -> None:
        """Encodes the rest, and waits for the last chunk."""
        self._flush_blocks()
        self._begin(-1)
        self._calls.finish()
        self._set_row_digests()

    def part(self) -> EncodedPart:
        """The chunks that were encoded here, for `join`; only after `finish`."""
        return EncodedPart(
            self._chunk_segments,
            self._sizes,
            b"".join(self._hashes),
            self._first_rows,
            self.changed,
            digest_bytes(self.digest_change),
            [digest_bytes(digest) for digest in self._row_digests or ()],
        )

    def join(self, parts: Sequence[EncodedPart]) -> None:
        """Join the parts of all encoders of a manifest, this one's included, for `manifest`.

        The chunks get the order in which a single encoder makes them.
        """
        chunks = [
            (segment, part.sizes[k], part.hashes[k * HASH_BYTES : (k + 1) * HASH_BYTES], part.first_rows[k])
            for part in parts
            for k, segment in enumerate(part.segments)
        ]
        chunks.sort(key=lambda chunk: chunk[0])
        self._chunk_segments = [chunk[0] for chunk in chunks]
        self._sizes = [chunk[1] for chunk in chunks]
        self._hashes = [chunk[2] for chunk in chunks]
        self._first_rows = [chunk[3] for chunk in chunks]
        self.changed = sum(part.changed for part in parts)
        self.digest_change = sum(digest_from_bytes(part.digest_change) for part in parts) % MODULUS
        if self._row_digests is not None:
            theirs = [[digest_from_bytes(digest) for digest in part.row_digests] for part in parts]
            self._row_digests = [sum(digests) % MODULUS for digests in zip(*theirs, strict=True)]
        self._set_row_digests()

    def _set_row_digests(self) -> None:
        """Write an anchor's row digests to the table."""
        for index, digest in enumerate(self._row_digests or ()):
            row = self.rows[index]
            self.rows[index] = TableRow(row.spec, row.before, row.after, digest_bytes(digest))

    def _is_mine(self, segment: int) -> bool:
        return self._only is None or segment in self._only

    def manifest(
        self, *, run: str, epoch: int, version: int, base: int | None, digest: bytes, base_digest: bytes, created: float
    ) -> Manifest:
        """The manifest of the encoded chunks; only after `finish`."""
        return Manifest(
            run=run,
            epoch=epoch,
            version=version,
            base=base,
            digest=digest,
            base_digest=base_digest,
            profile=self._profile,
            block_units=self.block_units,
            table=pack_table(self.rows),
            sizes=self._sizes,
            hashes=b"".join(self._hashes),
            first_rows=self._first_rows,
            changed=self.changed,
            total=sum(row.spec.count for row in self.rows),
            created=created,
        )

    def manifest_between(self, base: Position | None, position: Position, *, created: float) -> Manifest:
        """The manifest of the encoded chunks, which lead from `base`, None: from nothing; only after `finish`."""
        return self.manifest(
            run=position.run,
            epoch=position.epoch,
            version=position.version,
            base=base.version if base is not None else None,
            digest=position.digest,
            base_digest=base.digest if base is not None else NO_VERSION,
            created=created,
        )

    def manifest_like(self, given: Manifest) -> Manifest:
        """The manifest of the encoded chunks, which lead to the same version as `given`; only after `finish`."""
        return self.manifest(
            run=given.run,
            epoch=given.epoch,
            version=given.version,
            base=given.base,
            digest=given.digest,
            base_digest=given.base_digest,
            created=given.created,
        )

    def _new_encoder(self) -> ChunkEncoder:
        return ChunkEncoder(
            self.rows,
            block_units=self.block_units,
            chunk_bytes=self._chunk_bytes,
            profile=self._profile,
            history=self._history,
        )

    def _begin(self, segment: int) -> None:
        """Begin another segment: the rows collected for the last one are encoded."""
        if segment != self._segment and self._parts:
            self._calls.ask(self._coding(self._segment, self._parts))
            self._parts = []
        self._segment = segment

    def _coding(self, segment: int, parts: list[_SegmentRow]) -> Callable[[], _EncodedSegment]:
        def code() -> _EncodedSegment:
            encoder, coded = self._new_encoder(), _EncodedSegment(segment)
            every = max(1, self._segments.sizes[segment] >> _SAMPLE_BITS)
            for part in parts:
                part.add_sample(encoder, every)
            for part in parts:
                before = encoder.digest_change
                coded.add(part.code(encoder))
                coded.digests.append((part.row, encoder.digest_change - before))
            coded.add(encoder.finish())
            coded.changed = encoder.changed
            return coded

        return code

    def _flush_blocks(self) -> None:
        """Pass the chunks encoded from blocks to the sink."""
        coded, encoder = self._block_segment, self._encoder
        self._block_segment, self._encoder = _EncodedSegment(0), self._new_encoder()
        coded.add(encoder.finish())
        coded.segment, coded.changed = self._segment, encoder.changed
        self._keep(coded)

    def _keep(self, coded: _EncodedSegment) -> None:
        for chunk, fingerprint in coded.chunks:
            self._sink.append(chunk.data)
            self._sizes.append(len(chunk.data))
            self._hashes.append(fingerprint)
            self._first_rows.append(chunk.first_row)
            self._chunk_segments.append(coded.segment)
        self.changed += coded.changed
        for row, change in coded.digests:
            self.digest_change = (self.digest_change + change) % MODULUS
            if self._row_digests is not None:
                self._row_digests[row] = (self._row_digests[row] + change) % MODULUS
