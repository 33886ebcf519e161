"""Builds a version at all ranks at once: each does its part, and all complete each step together or fail together.

delta:   find ─▶ exchange ─▶ encode owned blocks ─▶ describe ─▶ sign (rank 0) ─▶ seal ─▶ decode, check the digest
anchor:  fetch owned ranges that others hold ─▶ encode ─▶ describe ─▶ sign ─▶ seal ─▶ decode and compare

A step that fails at one rank fails at all (`ranks.run_collectively`), so a version is either durable and checked at
every rank, or, after a restart, at none (`orders.agree_on_version`). Only then does rank 0 announce it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.algebra import apply_block, apply_with_digest
from p2psync.delta.block import Block
from p2psync.delta.container import iter_chunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes
from p2psync.delta.tensors import TableRow, TensorSpec, Units
from p2psync.errors import DigestMismatchError
from p2psync.parallel import in_parallel
from p2psync.protocol.manifest import Manifest, SignedManifest, decode_body, sign
from p2psync.protocol.versions import Position
from p2psync.store.draft import Draft
from p2psync.store.encoding import EncodedPart, Encoding
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.fsdp.rank_layout import ROUND_BYTES, RankLayout
from p2psync.trainer.fsdp.rank_snapshot import RankSnapshot
from p2psync.trainer.fsdp.ranks import RankGroup, run_collectively
from p2psync.trainer.fsdp.shard_scanner import (
    NewUnits,
    RankChanges,
    ShardScanner,
    decode_partial_blocks,
    merge_partial_blocks,
)
from p2psync.trainer.fsdp.unit_ranges import UnitRanges
from p2psync.trainer.versions.decoding_checks import check_outcome, compare_anchor
from p2psync.trainer.versions.pack_reader import held_chunks


class _PartReport(msgspec.Struct, frozen=True, array_like=True):
    """A rank's report on its part of a version: the encoded part, and its shards' change of the digest (16 bytes)."""

    part: EncodedPart
    digest_change: bytes


class RankBuilder:
    """Builds one rank's part of the versions of a run. Blocking; all ranks make the same calls."""

    def __init__(
        self, ranks: RankGroup, layout: RankLayout, store: Store, snapshot: RankSnapshot, key: Ed25519PrivateKey | None
    ) -> None:
        """key: signs, at rank 0; None elsewhere."""
        self.ranks = ranks
        self.layout = layout
        self.store = store
        self.snapshot = snapshot
        #: Bytes that this rank sent to other ranks, and encoded, for the last version.
        self.moved_bytes = self.encoded_bytes = 0
        self._key = key
        self._change = 0
        self._specs = layout.specs

    def delta(
        self,
        new: NewUnits,
        base: Position,
        *,
        profile: str,
        epoch: int,
        check_stopped: Callable[[], None] = lambda: None,
    ) -> tuple[Pack, float] | None:
        """Build the delta from `base`, the version of the snapshots, to the shards as they are now.

        Returns its pack and how long encoding took (seconds); None if no bit differs. new: reads the shards.
        check_stopped: raises to give the version up. Raises `P2PSyncError`; then no rank has the version.
        """
        rows = [TableRow(spec, True, True) for spec in self._specs]
        owners, rank = self.layout.delta_owners, self.ranks.rank
        scanner = ShardScanner(self.layout, rank, rows, self._units)
        self.moved_bytes = 0
        sent: list[bytes] = []
        began, change = time.monotonic(), 0
        with self._drafted() as draft:
            with Encoding(draft, rows, profile=profile, segments=_owned_segments(owners, rank)) as encode:
                for segments in self.layout.rounds():
                    found = run_collectively(self.ranks, partial(_find, scanner, segments, new, check_stopped))
                    change += found.digest_change
                    sent += [chunk for chunks in found.chunks for chunk in chunks]
                    came = self._exchange(found.chunks)
                    run_collectively(self.ranks, partial(self._encode, encode, rows, found.mine, came))
                run_collectively(self.ranks, encode.finish)
                reports = self._gather_reports(encode.part(), change)
            held = sum(digest_from_bytes(one.digest_change) for one in reports)
            if not any(one.part.changed for one in reports):
                draft.abandon()
                return None
            encode.join([one.part for one in reports])
            if (held - encode.digest_change) % MODULUS:
                self.snapshot.invalidate()
                raise DigestMismatchError("ranks do not agree on the version before: the next one is written out whole")
            digest = digest_bytes((digest_from_bytes(base.digest) + held) % MODULUS)
            position = Position(run=base.run, epoch=epoch, version=base.version + 1, digest=digest)
            encoded = time.monotonic() - began
            pack = self._seal(draft, encode, position, base, _chunk_mask(reports, rank))
        self._apply(pack, position, lambda: self._advance(pack, sent))
        return pack, encoded

    def first(self, new: NewUnits, run: str, epoch: int, version: int) -> Pack:
        """Write a version out whole, from the shards as they are now, whatever the snapshots hold."""
        rank = self.ranks.rank

        def read() -> bytes:
            self.snapshot.begin_change(version)
            for row, start, stop in self.layout.held[rank]:
                spec = self._specs[row]
                step = max(1, (1 << 21) // spec.width)
                for at in range(start, stop, step):
                    end = min(stop, at + step)
                    self.snapshot.units(spec)[at:end] = new(row, at, end)
            return digest_bytes(self.snapshot.digest(self._specs, self.layout.held[rank]))

        digests = self.ranks.gather(run_collectively(self.ranks, read))
        self._fetch_ranges([kept - mine for kept, mine in zip(self.layout.kept_current, self.layout.held, strict=True)])
        digest = digest_bytes(sum(map(digest_from_bytes, digests)) % MODULUS)
        position = Position(run=run, epoch=epoch, version=version, digest=digest)
        pack = self._build_anchor(position)
        self._apply(pack, position, lambda: None)
        return pack

    def anchor(self, position: Position) -> Pack:
        """Write the version of the snapshots out whole, for actors that start from nothing."""
        return self._build_anchor(position)

    # ---- a delta ---------------------------------------------------------------------------------------------------

    def _units(self, row: int) -> Units:
        return self.snapshot.units(self._specs[row])

    def _exchange(self, chunks: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Send each rank its chunks; returns those that all ranks sent here."""
        packed = [msgspec.msgpack.encode(part) if part else b"" for part in chunks]
        self.moved_bytes += sum(map(len, packed))
        came = self.ranks.exchange(packed)
        return [chunk for part in came if part for chunk in msgspec.msgpack.decode(part, type=list[bytes])]

    def _encode(self, encode: Encoding, rows: Sequence[TableRow], mine: Sequence[Block], came: Sequence[bytes]) -> None:
        parts = [*mine, *decode_partial_blocks(came, self.layout, self.ranks.rank, rows)]
        for row, found in groupby(merge_partial_blocks(parts, self._units), key=lambda one: one.block.row):
            encode.take_found(row, found, partial(self._units, row))

    def _advance(self, pack: Pack, sent: Sequence[bytes]) -> None:
        """Apply the delta to the snapshot: owned blocks from the sealed chunks, others from the chunks that it sent."""
        manifest = pack.manifest
        rows = manifest.rows()

        def add(data: bytes) -> int:
            change = 0
            for block in iter_chunk(data, rows, manifest.block_units, self._units):
                change += apply_with_digest(rows[block.row].spec, self._units(block.row), block)
            return change

        self._change = sum(in_parallel(add, held_chunks(pack))) % MODULUS
        for block in decode_partial_blocks(sent, self.layout, -1, rows):
            apply_block(self._units(block.row), block)

    # ---- an anchor -------------------------------------------------------------------------------------------------

    def _build_anchor(self, position: Position) -> Pack:
        rows = [TableRow(spec, False, True) for spec in self._specs]
        rank = self.ranks.rank
        self._fetch_ranges(self.layout.lacking_for_anchor)
        with self._drafted() as draft:
            with Encoding(
                draft, rows, anchor=True, segments=_owned_segments(self.layout.anchor_owners, rank)
            ) as encode:
                run_collectively(self.ranks, lambda: self._encode_anchor(encode))
                reports = self._gather_reports(encode.part(), 0)
            encode.join([one.part for one in reports])
            if digest_bytes(encode.digest_change) != position.digest:
                self.snapshot.invalidate()
                raise DigestMismatchError("a rank's copy is damaged: the next version is written out whole")
            pack = self._seal(draft, encode, position, None, _chunk_mask(reports, rank))
        try:
            run_collectively(self.ranks, lambda: self._compare(pack))
        except BaseException:
            self.store.remove(pack.signed.id)
            raise
        return pack

    def _encode_anchor(self, encode: Encoding) -> None:
        for index in range(len(self._specs)):
            encode.take(index, None, self._units(index))
        encode.finish()

    def _fetch_ranges(self, wanted: Sequence[UnitRanges]) -> None:
        """Exchanges unit ranges: holders send each rank the bits that it wants, a round at a time."""
        rank = self.ranks.rank
        mine = self.layout.held[rank]
        wanted_ranges = [(to, *unit_range) for to, theirs in enumerate(wanted) for unit_range in theirs]
        for few in _batches(wanted_ranges, self._specs, ROUND_BYTES * self.ranks.size):
            data: list[list[Units]] = [[] for _ in wanted]
            for to, row, start, stop in few:
                data[to] += [self._units(row)[a:b] for a, b in mine.within(row, start, stop)]
            packed = [b"".join(part.tobytes() for part in parts) for parts in data]
            self.moved_bytes += sum(map(len, packed))
            came = [memoryview(part) for part in self.ranks.exchange(packed)]
            for to, row, start, stop in few:
                if to != rank:
                    continue
                spec = self._specs[row]
                for source, theirs in enumerate(self.layout.held):
                    for a, b in theirs.within(row, start, stop):
                        size = (b - a) * spec.width
                        self._units(row)[a:b] = np.frombuffer(came[source][:size], spec.unit)
                        came[source] = came[source][size:]

    def _compare(self, pack: Pack) -> None:
        """Decode the chunks that were encoded here, and compare them with the snapshot, bit for bit."""
        compare_anchor(pack.manifest, held_chunks(pack), self.snapshot.units, self._anchor_blocks())

    def _anchor_blocks(self) -> Iterator[tuple[int, int, int]]:
        """Yields (row, start, stop) of the blocks that this rank owns in an anchor."""
        grid = self.layout.anchor
        for segment, owner in enumerate(self.layout.anchor_owners):
            for part in grid.parts[segment] if owner == self.ranks.rank else ():
                for start in range(part.start, part.stop, grid.span(part.row)):
                    yield part.row, start, min(part.stop, start + grid.span(part.row))

    # ---- both ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _drafted(self) -> Iterator[Draft]:
        """Opens a draft at every rank, and abandons all of them if the body raises."""
        made: list[Draft] = []
        try:
            run_collectively(self.ranks, lambda: made.append(self.store.draft()))
            yield made[0]
        except BaseException:
            for draft in made:
                draft.abandon()
            raise

    def _gather_reports(self, part: EncodedPart, change: int) -> list[_PartReport]:
        """Returns the reports of all ranks on their parts."""
        self.encoded_bytes = sum(part.sizes)
        mine = msgspec.msgpack.encode(_PartReport(part, digest_bytes(change)))
        return [msgspec.msgpack.decode(reports, type=_PartReport) for reports in self.ranks.gather(mine)]

    def _seal(self, draft: Draft, encode: Encoding, position: Position, base: Position | None, part: bytes) -> Pack:
        """Seals the version: rank 0 signs the manifest, and every rank makes its chunks durable."""

        def signed() -> bytes:
            if self._key is None:
                return b""
            manifest = encode.manifest_between(base, position, created=time.time())
            return sign(manifest, self._key).to_bytes()

        data = self.ranks.broadcast(run_collectively(self.ranks, signed))
        opened = msgspec.msgpack.decode(data, type=SignedManifest)
        try:
            return run_collectively(self.ranks, lambda: draft.seal(opened, decode_body(opened.body), part))
        except BaseException:
            self.store.remove(opened.id)
            raise

    def _apply(self, pack: Pack, position: Position, advance: Callable[[], None]) -> None:
        """Advances the snapshots to a version that is durable at all ranks, and checks the resulting digest."""
        self._change = 0
        try:
            self.snapshot.begin_change(position.version)
            run_collectively(self.ranks, advance)
            if pack.manifest.base is not None:
                self._check(pack.manifest)
            run_collectively(self.ranks, lambda: self.snapshot.end_change(position))
        except BaseException:
            # It was never announced; the snapshots are of no version now.
            self.snapshot.invalidate()
            self.store.remove(pack.signed.id)
            raise

    def _check(self, manifest: Manifest) -> None:
        changes = map(digest_from_bytes, self.ranks.gather(digest_bytes(self._change)))
        check_outcome(manifest, digest_from_bytes(manifest.base_digest) + sum(changes))


def _find(scanner: ShardScanner, segments: range, new: NewUnits, check_stopped: Callable[[], None]) -> RankChanges:
    check_stopped()
    return scanner.find(segments, new)


def _owned_segments(owners: Sequence[int], rank: int) -> frozenset[int]:
    return frozenset(segment for segment, owner in enumerate(owners) if owner == rank)


def _chunk_mask(reports: Sequence[_PartReport], rank: int) -> bytes:
    """Returns which of a manifest's chunks a rank encoded: a byte of 0 or 1 for each chunk, as a pack keeps it."""
    owners_by_segment = sorted((segment, owner) for owner, one in enumerate(reports) for segment in one.part.segments)
    return bytes(owner == rank for _, owner in owners_by_segment)


def _batches(
    wanted_ranges: Iterable[tuple[int, int, int, int]], specs: Sequence[TensorSpec], size: int
) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yields lists of (rank, row, start, stop), cut so that each list covers at most `size` bytes."""
    batch: list[tuple[int, int, int, int]] = []
    left = size
    for to, row, start, stop in wanted_ranges:
        width = specs[row].width
        while start < stop:
            end = min(stop, start + left // width)
            if end > start:
                batch.append((to, row, start, end))
            left -= (end - start) * width
            start = end
            if left < width or start < stop:
                yield batch
                batch, left = [], size
    if batch:
        yield batch
