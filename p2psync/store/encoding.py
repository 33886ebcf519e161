"""From tensors, or blocks, to a manifest and its chunks, streaming: what a trainer's store and a delta file share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from blake3 import blake3

from p2psync.delta import tight
from p2psync.delta.block import Block
from p2psync.delta.container import ChunkEncoder, EncodedChunk
from p2psync.delta.digest import MODULUS, digest_bytes
from p2psync.delta.extract import Found
from p2psync.delta.tensors import Row, TensorSpec, Units
from p2psync.protocol.manifest import Manifest, pack_table

#: Units per block and bytes per chunk before compression: small chunks for deltas, which are latency; larger ones for
#: anchors. A delta's block costs Python's overhead once, so it is large; an anchor's must fit a chunk whole.
DELTA_BLOCK, ANCHOR_BLOCK = 1 << 19, 1 << 17
DELTA_CHUNK, ANCHOR_CHUNK = 256 << 10, 512 << 10


class Sink(Protocol):
    """Where chunks go, in order: a draft of the store, or a delta file."""

    def append(self, data: bytes) -> None:
        """Keep the next chunk. Raises `StoreError`."""


def rows_between(old: Sequence[TensorSpec], new: Sequence[TensorSpec]) -> list[Row]:
    """The table of a delta from a version with tensors `old` to one with tensors `new`."""
    before, after = set(old), set(new)
    return [Row(spec, spec in before, spec in after) for spec in sorted(before | after)]


class Encoding:
    """One manifest's chunks on their way into a sink: `take` every row, or `take_block` every block; then `finish`."""

    def __init__(self, sink: Sink, rows: Sequence[Row], *, anchor: bool = False, profile: str = "fast") -> None:
        """Raises `FormatError` for a profile that there is not."""
        self.rows = list(rows)
        self.block_units = ANCHOR_BLOCK if anchor else DELTA_BLOCK
        self._sink = sink
        self._anchor = anchor
        self._profile = profile
        self._sizes: list[int] = []
        self._hashes: list[bytes] = []
        self._first_rows: list[int] = []
        chunk = ANCHOR_CHUNK if anchor else DELTA_CHUNK
        self._encoder = ChunkEncoder(rows, block_units=self.block_units, chunk_bytes=chunk, profile=profile)

    @property
    def digest_change(self) -> int:
        """What the rows taken so far add to the digest; blocks do not tell it."""
        return self._encoder.digest_change

    @property
    def changed(self) -> int:
        """Units whose bits differ, so far."""
        return self._encoder.changed

    def take(self, index: int, old: Units | None, new: Units | None) -> None:
        """Encode one row. An anchor's rows get their own digests, which tell a joiner what it has already."""
        before = self._encoder.digest_change
        self._keep(self._encoder.add(index, old, new))
        if self._anchor:
            own = digest_bytes((self._encoder.digest_change - before) % MODULUS)
            row = self.rows[index]
            self.rows[index] = Row(row.spec, row.before, row.after, own)

    def take_found(self, index: int, found: Iterable[Found], old: Callable[[], Units]) -> None:
        """Encode one row whose changes were found elsewhere. old: gives its old bits, where the profile needs them."""
        self._keep(self._encoder.add_found(index, found, old() if self._profile == tight.NAME else None))

    def take_block(self, block: Block) -> None:
        """Encode a block that exists already, on the grid of `block_units`."""
        self._keep(self._encoder.add_block(block))

    def finish(self) -> None:
        """The last chunk."""
        self._keep(self._encoder.finish())

    def manifest(
        self, *, run: str, epoch: int, version: int, base: int | None, digest: bytes, base_digest: bytes, created: float
    ) -> Manifest:
        """The manifest of what was encoded; only after `finish`."""
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
            changed=self._encoder.changed,
            total=sum(row.spec.count for row in self.rows),
            created=created,
        )

    def _keep(self, chunks: Iterator[EncodedChunk]) -> None:
        for chunk in chunks:
            self._sink.append(chunk.data)
            self._sizes.append(len(chunk.data))
            self._hashes.append(blake3(chunk.data).digest())
            self._first_rows.append(chunk.first_row)
