"""Making versions: from a source's bits to a durable, signed pack, streaming.

extract → encode → hash → draft on disk, chunk by chunk, tensor by tensor; then the manifest, the signature, the seal;
then the same chunks are decoded into the trainer's own snapshot, whose digest must come out as signed. Only then may
anyone hear of the version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes
from p2psync.delta.tensors import Row
from p2psync.errors import DigestMismatchError, StoreError
from p2psync.membership.lineage import in_short
from p2psync.membership.records import Announcement
from p2psync.protocol.keys import public_text
from p2psync.protocol.lineage import resolve
from p2psync.protocol.manifest import Manifest, SignedManifest, sign
from p2psync.protocol.messages import NO_VERSION
from p2psync.protocol.versions import Position
from p2psync.store.encoding import Encoding, rows_between
from p2psync.store.packs import Draft, Pack, Store
from trainer.snapshot import Keeper, Snapshot
from trainer.source import FindingSource, Source
from trainer.steps import Steps


@dataclass(frozen=True, slots=True)
class Made:
    """A version that is durable and not yet announced. seconds: of making it; of them coding took `encode_seconds`,
    decoding and applying `apply_seconds`."""

    pack: Pack
    position: Position
    seconds: float
    encode_seconds: float = 0.0
    apply_seconds: float = 0.0


class Maker(Protocol):
    """What makes the versions of a run, one at a time: `VersionMaker`, or the ranks of a sharded model together."""

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
    ) -> Made | None: ...
    def make_anchor(self, rate: float = 0.0) -> Made: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class VersionMaker:
    """Makes the versions of one run, one at a time. Blocking: to be called from a worker thread."""

    def __init__(
        self,
        store: Store,
        root: Path,
        key: Ed25519PrivateKey,
        run: str,
        epoch: int = 0,
        *,
        keeper: Callable[[], Keeper] | None = None,
    ) -> None:
        """`root`: where the snapshot lives. epoch: of the versions to be made; may be set later. keeper: makes what
        keeps the published bits instead. Raises `StoreError`.

        A snapshot that is behind the store, or cannot be vouched for, is brought up from the store's packs.
        """
        self.store = store
        self.epoch = epoch
        self._root = root
        self._key = key
        self._run = run
        self._stopped = threading.Event()
        self._check_key()
        self.steps = Steps(root.parent / "steps")
        self.snapshot: Keeper = keeper() if keeper is not None else Snapshot(root)
        self._doubtful = True
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

    def stop(self) -> None:
        """Have what is being made given up soon, with `StoreError`; for any thread."""
        self._stopped.set()

    def close(self) -> None:
        """Let go of the snapshot."""
        self.snapshot.close()

    def make(
        self,
        source: Source,
        *,
        profile: str = "fast",
        rate: float = 0.0,
        settled: Callable[[], bool] = lambda: True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Made | None:
        """The next version, from `source`: an anchor if it is the first, else a delta in `profile`.

        None if no bit differs. rate: bytes a second at which it is to be spread, 0: not known; see `block_and_chunk`.

        `settled` is asked after everything was read: False drops the version, since the source changed meanwhile.
        `given_up` is asked now and then: True ends it with `StoreError`, as `stop` does. Whatever is raised, nothing
        was made.
        """
        began = time.monotonic()
        if not self._doubtful and not self.snapshot.sound():
            self._distrust()
        if self._doubtful:
            self._recover()
        live = self.snapshot.position
        rows = rows_between(self.snapshot.specs, source.specs)
        draft = self.store.draft()
        try:
            encode = self._encode(draft, rows, source, given_up, rate, profile=None if live is None else profile)
            encoded = time.monotonic()
            if not self.snapshot.whole():
                self._doubtful = True
                raise StoreError(f"{self._root} was damaged while a version was made: not published; it is made anew")
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
                version=live.version + 1 if live else 0,
                digest=digest_bytes((base_digest + encode.digest_change) % MODULUS),
            )
            pack = self._seal(draft, encode, position, live)
        except BaseException:
            draft.abandon()
            raise
        try:
            applying = self._advance(pack)
        except BaseException:
            # The pack was never announced; without it the store leads to the version before.
            self._doubtful = True
            self.store.remove(pack.signed.id)
            raise
        with suppress(StoreError):
            self.steps.prune(self.store)
        return Made(pack, position, time.monotonic() - began, encoded - began, applying)

    def make_anchor(self, rate: float = 0.0) -> Made:
        """The newest version written out whole, for those who start from nothing. rate: see `make`.

        Raises `StoreError` if there is no version, and `DigestMismatchError` if the snapshot turns out to be damaged;
        it is then made anew from the store before anything else is published.
        """
        began = time.monotonic()
        if not self._doubtful and not self.snapshot.whole():
            self._distrust()
        if self._doubtful:
            self._recover()
        live = self.position
        if live is None:
            raise StoreError("there is no version to write out yet")
        rows = [Row(spec, False, True) for spec in self.snapshot.specs]
        draft = self.store.draft()
        try:
            encode = self._encode(draft, rows, self.snapshot, lambda: False, rate, profile=None)
            if digest_bytes(encode.digest_change % MODULUS) != live.digest:
                self._distrust()
                raise DigestMismatchError(f"{self._root}: damaged on disk; it is made anew from the store")
            pack = self._seal(draft, encode, live, None)
        except BaseException:
            draft.abandon()
            raise
        if self.snapshot.position != live:
            self._doubtful = True  # whose position it is changed: some keepers learn that from the anchor alone
        return Made(pack, live, time.monotonic() - began)

    def _encode(
        self,
        draft: Draft,
        rows: Sequence[Row],
        source: Source,
        given_up: Callable[[], bool],
        rate: float,
        *,
        profile: str | None,
    ) -> Encoding:
        """profile: None makes an anchor."""
        finds = None
        with Encoding(draft, rows, anchor=profile is None, rate=rate, profile=profile or "fast") as encode:
            if isinstance(source, FindingSource) and profile is not None:
                finds = source.find(rows, encode.block_units, self.snapshot)
            for index, row in enumerate(rows):
                if self._stopped.is_set() or given_up():
                    raise StoreError("stopped while a version was being made: not published")
                found = finds.of(index) if finds is not None else None
                if found is not None:
                    encode.take_found(index, found, partial(self.snapshot.units, row.spec))
                    continue
                old = self.snapshot.units(row.spec) if row.before else None
                encode.take(index, old, source.units(row.spec) if row.after else None)
            encode.finish()
        return encode

    def _seal(self, draft: Draft, encode: Encoding, position: Position, base: Position | None) -> Pack:
        manifest = encode.manifest(
            run=position.run,
            epoch=position.epoch,
            version=position.version,
            base=base.version if base else None,
            digest=position.digest,
            base_digest=base.digest if base else NO_VERSION,
            created=time.time(),
        )
        return draft.seal(sign(manifest, self._key), manifest)

    def _advance(self, pack: Pack) -> float:
        """Take the snapshot along a pack; returns how long decoding and applying took (seconds)."""
        began = time.monotonic()
        keeping = self.steps.keep(pack)

        def chunk(index: int) -> bytes:
            data = pack.read(index)
            if data is None:
                raise StoreError(f"{pack.path}: chunk {index} cannot be read back: is the disk sound?")
            return data

        try:
            take = keeping.take if keeping is not None else None
            self.snapshot.advance(pack.manifest, chunk, position_of(pack.manifest), take)
            if keeping is not None:
                keeping.finish()
        finally:
            if keeping is not None:
                keeping.abandon()
        if not self.snapshot.whole():
            raise StoreError(f"{self._root} was damaged while a version was made: not published; it is made anew")
        return time.monotonic() - began - (keeping.seconds if keeping is not None else 0.0)

    def _distrust(self) -> None:
        self.snapshot.distrust()
        self._doubtful = True

    def _recover(self) -> None:
        """Bring the snapshot to the newest version that the store leads to: of this run, or, before its first one, of
        the run that it goes on from. Raises `StoreError`."""
        self.snapshot.reopen()
        live, packs = self.snapshot.position, self._packs()
        if live is not None and not packs:
            raise StoreError(f"{self.store.root} lost its versions: restore them, or start with an empty --store")
        for pack in self._way(live, packs):
            self._advance(pack)
        self._doubtful = False

    def _way(self, live: Position | None, packs: list[Pack]) -> list[Pack]:
        """The packs that lead from `live` to the newest version."""
        if not packs:
            return []
        newest = max(packs, key=lambda pack: (pack.manifest.epoch, pack.manifest.version)).manifest
        is_ours = live is not None and live.run == newest.run
        if live is not None and is_ours and (live.epoch, live.version) >= (newest.epoch, newest.version):
            return []  # there already; or beyond, and the pack that led there was damaged since
        start = (live.version, live.digest.hex()) if live else None
        by_id = {pack.signed.id.hex(): pack for pack in packs}
        lineage = [announcement_of(pack.signed, pack.manifest) for pack in packs]
        path = resolve(lineage, start, (newest.version, newest.digest.hex()))
        if path is None:
            raise StoreError(f"{self.store.root} holds no way to version {newest.version}: start with an empty --store")
        return [by_id[announced.id] for announced in path]

    def _packs(self) -> list[Pack]:
        """Those of this run; before its first one, those of the newest run that the store has."""
        sealed = [pack for pack in self.store.packs() if pack.sealed]
        runs = {pack.manifest.run for pack in sealed}
        run = self._run if self._run in runs else max(runs, default="")
        return [pack for pack in sealed if pack.manifest.run == run]

    def _check_key(self) -> None:
        """Actors trust one key: versions that another one signed cannot be announced beside ours."""
        mine = self._key.public_key().public_bytes_raw()
        theirs = next((pack.signed.key for pack in self._packs() if pack.signed.key != mine), None)
        if theirs is not None:
            raise StoreError(
                f"{self.store.root}: its versions were signed with {public_text(theirs)}: give that --key, or an empty "
                "--store"
            )


def announcement_of(signed: SignedManifest, manifest: Manifest) -> Announcement:
    """A manifest in short, as a hub would announce it."""
    return in_short(manifest, signed.id, len(signed.to_bytes()))


def position_of(manifest: Manifest) -> Position:
    """Where a manifest leads."""
    return Position(run=manifest.run, epoch=manifest.epoch, version=manifest.version, digest=manifest.digest)
