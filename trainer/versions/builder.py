"""Builds versions: from a source's bits to a durable, signed pack, streaming.

extract → encode → hash → draft on disk, chunk by chunk, tensor by tensor; then the manifest, the signature, the seal;
then the same chunks are decoded into the trainer's own snapshot, whose digest must come out as signed. Only then is the
version announced.

No signature rests on the snapshot alone. The scan that finds the changes sums up both copies on its way: the old bits
must have the sums that the source had at the publish before, and the steps found must make up the difference
(`p2psync.trainer.versions.bit_record`). The builder rebuilds a damaged snapshot from the store and makes the version
once more. Where the store does not lead to the newest version, later versions are dropped and the next one is written
out whole, from the source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes
from p2psync.delta.kernels.block_sums import ScanSums
from p2psync.delta.tensors import TableRow, TensorSpec
from p2psync.errors import DigestMismatchError, FormatError, StoreError
from p2psync.membership.lineage import to_announcement
from p2psync.membership.records import Announcement
from p2psync.protocol.keys import public_text
from p2psync.protocol.lineage import newest_reachable, resolve, target_key
from p2psync.protocol.manifest import Manifest, SignedManifest, sign
from p2psync.protocol.versions import Position
from p2psync.setting_names import named
from p2psync.store.disk import disk_errors, write_durably
from p2psync.store.draft import Draft
from p2psync.store.encoding import Encoding, rows_between
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.versions.bit_record import Scans
from p2psync.trainer.versions.decoding_checks import all_blocks, compare_anchor
from p2psync.trainer.versions.delta_records import DeltaRecords
from p2psync.trainer.versions.pack_reader import UnreadableError, chunk_reader, held_chunks, pack_name
from p2psync.trainer.versions.snapshot import PublishedState, Snapshot
from p2psync.trainer.versions.source import ChangeFindingSource, Source

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BuiltVersion:
    """A version that is durable and not yet announced.

    seconds: to make it, of which encoding took `encode_seconds`, decoding and applying `apply_seconds`.
    """

    pack: Pack
    position: Position
    seconds: float
    encode_seconds: float = 0.0
    apply_seconds: float = 0.0


class VersionBuilder(Protocol):
    """Builds the versions of a run, one at a time: `LocalVersionBuilder`, or the ranks of a sharded model together."""

    epoch: int

    @property
    def position(self) -> Position | None: ...
    def make(
        self,
        source: Source,
        *,
        profile: str = "fast",
        rate: float = 0.0,
        settled: Callable[[], bool] = lambda: True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> BuiltVersion | None: ...
    def make_anchor(self, rate: float = 0.0) -> BuiltVersion: ...
    def write_whole(self) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class LocalVersionBuilder:
    """Builds the versions of one run in this process, one at a time. Blocking: call it from a worker thread."""

    def __init__(
        self,
        store: Store,
        root: Path,
        key: Ed25519PrivateKey,
        run: str,
        epoch: int = 0,
        *,
        published_state: Callable[[], PublishedState] | None = None,
        on_trouble: Callable[[str], None] = lambda message: None,
    ) -> None:
        """root: directory of the snapshot. run: 32 hex digits. epoch: of the versions to be made; may be set later.

        published_state: makes the keeper of the published bits, in place of a `Snapshot`. on_trouble: takes a line
        about damage and its repair, in the thread that calls the builder. Raises `StoreError`.

        A snapshot that is behind the store, or whose bits are not those that were signed, is brought up from the
        store's packs. Packs that do not decode are dropped.
        """
        self.store = store
        self.epoch = epoch
        self._root = root
        self._key = key
        self._run = run
        self._stopped = threading.Event()
        self._check_key()
        self.delta_records = DeltaRecords(root.parent / "steps")
        self.snapshot: PublishedState = published_state() if published_state is not None else Snapshot(root)
        self._tell = on_trouble
        self._must_recover = True
        #: How often the published bits were rebuilt.
        self.rebuilds = 0
        # Number of the newest version that was ever in this store, -1: none. It stays when versions are dropped.
        self._newest_file = root.parent / "newest-version"
        self._newest = _load_number(self._newest_file)
        #: Whether the next version is written out whole: the store does not lead to the newest one.
        self._write_whole = False
        self._recover()

    @property
    def position(self) -> Position | None:
        """The newest version made; None before the first.

        Where the store's versions are those of another run, this one begins with the newest of them.
        """
        live = self.snapshot.position
        if live is None or live.run == self._run:
            return live
        return msgspec.structs.replace(live, run=self._run, epoch=self.epoch)

    @property
    def begins_from_another_run(self) -> bool:
        """Whether this run has no version of its own yet, and goes on from one of another run."""
        live = self.snapshot.position
        return live is not None and live.run != self._run and all(p.manifest.run != self._run for p in self._packs())

    def stop(self) -> None:
        """Make a version in progress fail soon, with `StoreError`. May be called from any thread."""
        self._stopped.set()

    def close(self) -> None:
        """Close the snapshot."""
        self.snapshot.close()

    def make(
        self,
        source: Source,
        *,
        profile: str = "fast",
        rate: float = 0.0,
        settled: Callable[[], bool] = lambda: True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> BuiltVersion | None:
        """Make the next version from `source`: an anchor if it is the first, else a delta in `profile`.

        Returns None if no bit differs. rate: bytes a second at which it will be spread, 0: not known; see
        `block_and_chunk`. settled: called after everything was read; False drops the version, since the source changed
        meanwhile. given_up: called now and then; True ends the call with `StoreError`, as `stop` does.

        Raises `P2PSyncError`; then no version was made.
        """
        if not self._must_recover and not self.snapshot.is_sound():
            self._distrust_snapshot("the published bits were changed or damaged here")

        def once() -> BuiltVersion | None:
            return self._make(source, profile, rate, settled, given_up)

        return self._with_recovery(once)

    def make_anchor(self, rate: float = 0.0) -> BuiltVersion:
        """Write the newest version out whole, for actors that start from nothing. rate: see `make`.

        Rebuilds a damaged snapshot from the store. Raises `StoreError` if there is no version.
        """
        if not self._must_recover and not self.snapshot.is_intact():
            self._distrust_snapshot("the published bits were cut or replaced here")
        return self._with_recovery(lambda: self._make_anchor(rate))

    def write_whole(self) -> None:
        """Write the next version out whole, whatever changes. Raises `StoreError`."""
        self.snapshot.verify()
        if self.snapshot.position is None:
            self._distrust_snapshot("the published bits are damaged here")
            self._recover()
        self._write_whole = True

    def scrub(self) -> int:
        """Compare one more block of the snapshot with its record; returns the block's bytes, 0 at the end of a round.

        Rebuilds a damaged snapshot from the store. Raises `StoreError`.
        """
        if self._must_recover:
            self._recover()
        try:
            return self.snapshot.scrub()
        except DigestMismatchError as error:
            self._distrust_snapshot(str(error))
            self._recover()
            return 0

    def _with_recovery(self, make: Callable[[], T]) -> T:
        """Call `make`; if it finds the published bits damaged, rebuild them from the store and call it once more."""
        if self._must_recover:
            self._recover()
        try:
            return make()
        except DigestMismatchError as error:
            self._distrust_snapshot(str(error))
            self._recover()
            try:
                return make()
            except DigestMismatchError as again:
                self._must_recover = True
                raise StoreError(f"{again}, and again after it was rebuilt: is its disk, or memory, sound?") from None

    def _distrust_snapshot(self, message: str) -> None:
        self._tell(f"{message}: rebuilding the published bits from the store")
        self.snapshot.distrust()
        self._must_recover = True
        self.rebuilds += 1

    def _make(
        self,
        source: Source,
        profile: str,
        rate: float,
        settled: Callable[[], bool],
        given_up: Callable[[], bool],
    ) -> BuiltVersion | None:
        began = time.monotonic()
        live = None if self._write_whole else self.snapshot.position
        rows = rows_between(self.snapshot.specs if live is not None else [], source.specs)
        draft = self.store.draft()
        try:
            encode, scans = self._encode(draft, rows, source, given_up, rate, profile=None if live is None else profile)
            encoded = time.monotonic()
            if not self.snapshot.is_intact():
                raise DigestMismatchError(f"{self._root} was cut or replaced while a version was made")
            if not settled():
                raise StoreError("the checkpoint changed while it was read: not published")
            unchanged = encode.changed == 0 and all(row.before == row.after for row in rows)
            if live is not None and unchanged:
                draft.abandon()
                return None
            base_digest = digest_from_bytes(live.digest) if live else 0
            position = Position(
                run=self._run,
                epoch=self.epoch,
                version=max(self._newest, live.version if live else -1) + 1,
                digest=digest_bytes((base_digest + encode.digest_change) % MODULUS),
            )
            pack = self._seal(draft, encode, position, live)
        except BaseException:
            draft.abandon()
            raise
        try:
            applying = self._advance(pack, scans)
        except BaseException:
            # The pack was never announced; without it the store leads to the version before.
            self._must_recover = True
            self.store.remove(pack.signed.id)
            raise
        self._newest, self._write_whole = position.version, False
        with suppress(StoreError):
            self.delta_records.prune(self.store)
        return BuiltVersion(pack, position, time.monotonic() - began, encoded - began, applying)

    def _make_anchor(self, rate: float) -> BuiltVersion:
        began = time.monotonic()
        live = self.position
        if live is None:
            raise StoreError("there is no version to write out yet")
        rows = [TableRow(spec, False, True) for spec in self.snapshot.specs]
        draft = self.store.draft()
        try:
            encode, _ = self._encode(draft, rows, self.snapshot, lambda: False, rate, profile=None)
            if digest_bytes(encode.digest_change % MODULUS) != live.digest:
                raise DigestMismatchError(f"{self._root} is damaged")
            pack = self._seal(draft, encode, live, None)
        except BaseException:
            draft.abandon()
            raise
        try:
            compare_anchor(pack.manifest, held_chunks(pack), self.snapshot.units, all_blocks(pack.manifest))
        except BaseException:
            self.store.remove(pack.signed.id)
            raise
        if self.snapshot.position != live:
            self._must_recover = True  # the bits are now of another run: some states learn that from the anchor alone
        return BuiltVersion(pack, live, time.monotonic() - began)

    def _encode(
        self,
        draft: Draft,
        rows: Sequence[TableRow],
        source: Source,
        given_up: Callable[[], bool],
        rate: float,
        *,
        profile: str | None,
    ) -> tuple[Encoding, Scans]:
        """Encode `rows`. profile: None makes an anchor.

        Also returns the sums of the rows that were scanned, which agree with what was published. Raises
        `DigestMismatchError`.
        """
        found_changes = None
        scans: dict[TensorSpec, ScanSums] = {}
        anchor = profile is None
        with Encoding(draft, rows, anchor=anchor, rate=rate, profile=profile or "fast", summed=True) as encode:
            if isinstance(source, ChangeFindingSource) and profile is not None:
                found_changes = source.find(rows, encode.block_units, self.snapshot)
            for index, row in enumerate(rows):
                if self._stopped.is_set() or given_up():
                    raise StoreError("stopped while a version was being made: not published")
                found = found_changes.of(index) if found_changes is not None else None
                if found is not None:
                    encode.take_found(index, found, partial(self.snapshot.units, row.spec))
                    continue
                old = self.snapshot.units(row.spec) if row.before else None
                encode.take(index, old, source.units(row.spec) if row.after else None)
            encode.finish()
        for index, row in enumerate(rows):
            if row.before and row.after:
                scan = encode.sums.get(index) or (found_changes.sums(index) if found_changes is not None else None)
                self.snapshot.check(row.spec, scan)
                if scan is not None:
                    scans[row.spec] = scan
        return encode, scans

    def _seal(self, draft: Draft, encode: Encoding, position: Position, base: Position | None) -> Pack:
        manifest = encode.manifest_between(base, position, created=time.time())
        return draft.seal(sign(manifest, self._key), manifest)

    def _advance(self, pack: Pack, scans: Scans | None = None) -> float:
        """Apply a pack to the snapshot; returns how long decoding and applying took (seconds)."""
        began = time.monotonic()
        record_writer = self.delta_records.start(pack)
        try:
            take = record_writer.take if record_writer is not None else None
            self.snapshot.advance(pack.manifest, chunk_reader(pack), position_of(pack.manifest), take, scans)
            if record_writer is not None:
                record_writer.finish()
        finally:
            if record_writer is not None:
                record_writer.abandon()
        if not self.snapshot.is_intact():
            raise StoreError(
                f"{self._root} was damaged while a version was made: not published; it is rebuilt from the store"
            )
        return time.monotonic() - began - (record_writer.seconds if record_writer is not None else 0.0)

    def _recover(self) -> None:
        """Advances the snapshot to the newest version that the store leads to. Raises `StoreError`.

        The version is one of this run, or, before its first one, of the run that this one goes on from.
        """
        self.snapshot.reopen()
        live, failed = self.snapshot.position, set[bytes]()
        self._newest = max(self._newest, *(pack.manifest.version for pack in self._all_packs()), -1)
        if live is not None:
            self._newest = max(self._newest, live.version)
        while (bad := self._apply_packs(self._path_from(self._snapshot_position()))) is not None:
            # A second failure is not the memory's: nobody can decode this pack.
            if bad.signed.id in failed and bad.sealed:
                self.store.remove(bad.signed.id)
            failed.add(bad.signed.id)
            self.snapshot.reopen()
        self._drop_unreachable()
        self._must_recover = False

    def _apply_packs(self, packs: list[Pack]) -> Pack | None:
        """Apply these packs to the snapshot; returns the first one that does not decode to its digest."""
        for pack in packs:
            try:
                self._advance(pack)
            except (DigestMismatchError, FormatError, UnreadableError, ValueError) as error:
                self._tell(f"{pack_name(pack)} cannot be decoded here: {error}")
                return pack
        if packs:
            self.snapshot.verify()
            if self.snapshot.position is None:
                raise StoreError(f"{self._root} does not keep what is written to it: is its disk, or memory, sound?")
        return None

    def _snapshot_position(self) -> Position | None:
        """Returns the snapshot's version, as one of the run whose packs are applied.

        Bits of another run count as the version of this run that has the same number and digest, if there is one.
        """
        live, packs = self.snapshot.position, self._packs()
        if live is None or not packs or live.run == packs[0].manifest.run:
            return live
        same = [p.manifest for p in packs if (p.manifest.version, p.manifest.digest) == (live.version, live.digest)]
        if same:
            return position_of(max(same, key=lambda manifest: manifest.epoch))
        return msgspec.structs.replace(live, epoch=-1)

    def _path_from(self, live: Position | None) -> list[Pack]:
        """Returns the packs that lead from `live` to the newest version that can be reached."""
        packs = self._packs()
        by_id = {pack.signed.id.hex(): pack for pack in packs}
        lineage = [announcement_of(pack.signed, pack.manifest) for pack in packs]
        start = (live.version, live.digest.hex()) if live else None
        newest = newest_reachable(lineage, start)
        if newest is None or (live is not None and (live.epoch, live.version) >= (newest.epoch, newest.version)):
            return []  # there already; or beyond, and the pack that led there was damaged since
        path = resolve(lineage, start, target_key(newest))
        assert path is not None
        return [by_id[announced.id] for announced in path]

    def _drop_unreachable(self) -> None:
        """Remove versions later than the snapshot's: nobody can decode them. The next one is written out whole."""
        live = self._snapshot_position()
        reached = (live.epoch, live.version) if live is not None else (-1, -1)
        self._write_whole = self._newest > (live.version if live is not None else -1)
        if self._write_whole:
            with disk_errors(self._newest_file):
                write_durably(self._newest_file, str(self._newest).encode())
        lost = [pack for pack in self._packs() if (pack.manifest.epoch, pack.manifest.version) > reached]
        for pack in lost:
            self.store.remove(pack.signed.id)
        if live is not None and not self._all_packs():
            self._write_whole = True
            self._tell(f"{self.store.root} lost its versions: the next one is written out whole")
        elif self._write_whole:
            where = f"version {live.version}" if live is not None else "nothing"
            self._tell(
                f"{self.store.root} leads to {where}, not to version {self._newest}:"
                f" version {self._newest + 1} is written out whole"
            )

    def _packs(self) -> list[Pack]:
        """Returns the packs of `_all_packs` that are whole."""
        return [pack for pack in self._all_packs() if pack.sealed]

    def _all_packs(self) -> list[Pack]:
        """Returns the packs of this run; before its first one, those of the newest run in the store."""
        packs = self.store.packs()
        runs = {pack.manifest.run for pack in packs if pack.sealed}
        run = self._run if self._run in runs else max(runs, default=self._run)
        return [pack for pack in packs if pack.manifest.run == run]

    def _check_key(self) -> None:
        """Raise `StoreError` if the store's versions were signed with another key: actors trust one key only."""
        mine = self._key.public_key().public_bytes_raw()
        theirs = next((pack.signed.key for pack in self._packs() if pack.signed.key != mine), None)
        if theirs is not None:
            raise StoreError(
                f"{self.store.root}: its versions were signed with {public_text(theirs)}: give that"
                f" {named('key')}, or an empty {named('store')}"
            )


def _load_number(path: Path) -> int:
    """Returns the number in a file; -1 if there is none."""
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return -1


def announcement_of(signed: SignedManifest, manifest: Manifest) -> Announcement:
    """Returns the announcement of a manifest, as a hub would make it."""
    return to_announcement(manifest, signed.id, len(signed.to_bytes()))


def position_of(manifest: Manifest) -> Position:
    """Returns the version that a manifest leads to."""
    return Position(run=manifest.run, epoch=manifest.epoch, version=manifest.version, digest=manifest.digest)
