"""Making versions: from a source's bits to a durable, signed pack, streaming.

extract → encode → hash → draft on disk, chunk by chunk, tensor by tensor; then the manifest, the signature, the seal;
then the same chunks are decoded into the trainer's own snapshot, whose digest must come out as signed. Only then may
anyone hear of the version.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.digest import MODULUS, digest_bytes, digest_from_bytes
from p2psync.delta.tensors import Row
from p2psync.errors import StoreError
from p2psync.membership.records import Announcement
from p2psync.protocol.lineage import resolve
from p2psync.protocol.manifest import Manifest, SignedManifest, sign
from p2psync.protocol.versions import Position
from p2psync.store.encoding import Encoding, rows_between
from p2psync.store.packs import Draft, Pack, Store
from trainer.snapshot import Snapshot
from trainer.source import Source


@dataclass(frozen=True, slots=True)
class Made:
    """A version that is durable and not yet announced. seconds: of making it."""

    pack: Pack
    position: Position
    seconds: float


class VersionMaker:
    """Makes the versions of one run, one at a time. Blocking: to be called from a worker thread."""

    def __init__(self, store: Store, root: Path, key: Ed25519PrivateKey, run: str, epoch: int) -> None:
        """`root`: where the snapshot lives. Raises `StoreError`.

        A snapshot that is behind the store, or cannot be vouched for, is brought up from the store's packs.
        """
        self.store = store
        self.snapshot = Snapshot(root)
        self._key = key
        self._run = run
        self._epoch = epoch
        self._recover()

    @property
    def position(self) -> Position | None:
        """The newest version made; None before the first."""
        return self.snapshot.position

    def make(self, source: Source, *, settled: Callable[[], bool] = lambda: True) -> Made | None:
        """The next version, from `source`: an anchor if it is the first, else a delta. None if no bit differs.

        `settled` is asked after everything was read: False drops the version, since the source changed meanwhile.
        """
        began = time.monotonic()
        live = self.snapshot.position
        rows = rows_between(self.snapshot.specs, source.specs)
        draft = self.store.draft()
        try:
            encode = Encoding(draft, rows, anchor=live is None)
            for index, row in enumerate(rows):
                old = self.snapshot.units(row.spec) if row.before else None
                encode.take(index, old, source.units(row.spec) if row.after else None)
            encode.finish()
            if not settled():
                raise StoreError("the checkpoint changed while it was read: not published")
            unchanged = encode.changed == 0 and all(row.before == row.after for row in rows)
            if live is not None and unchanged:
                draft.abandon()
                return None
            base_digest = digest_from_bytes(live.digest) if live else 0
            position = Position(
                run=self._run,
                epoch=self._epoch,
                version=live.version + 1 if live else 0,
                digest=digest_bytes((base_digest + encode.digest_change) % MODULUS),
            )
            pack = self._seal(draft, encode, position, live)
        except BaseException:
            draft.abandon()
            raise
        try:
            self._advance(pack)
        except BaseException:
            # The pack was never announced; without it the store leads to the version before.
            self.store.remove(pack.signed.id)
            self._recover()
            raise
        return Made(pack, position, time.monotonic() - began)

    def make_anchor(self) -> Made:
        """The newest version written out whole, for those who start from nothing. `StoreError` if there is none."""
        began = time.monotonic()
        live = self.snapshot.position
        if live is None:
            raise StoreError("there is no version to write out yet")
        rows = [Row(spec, False, True) for spec in self.snapshot.specs]
        draft = self.store.draft()
        try:
            encode = Encoding(draft, rows, anchor=True)
            for index, row in enumerate(rows):
                encode.take(index, None, self.snapshot.units(row.spec))
            encode.finish()
            pack = self._seal(draft, encode, live, None)
        except BaseException:
            draft.abandon()
            raise
        return Made(pack, live, time.monotonic() - began)

    def _seal(self, draft: Draft, encode: Encoding, position: Position, base: Position | None) -> Pack:
        manifest = encode.manifest(
            run=position.run,
            epoch=position.epoch,
            version=position.version,
            base=base.version if base else None,
            digest=position.digest,
            base_digest=base.digest if base else bytes(16),
            created=time.time(),
        )
        return draft.seal(sign(manifest, self._key), manifest)

    def _advance(self, pack: Pack) -> None:
        def chunk(index: int) -> bytes:
            data = pack.read(index)
            if data is None:
                raise StoreError(f"{pack.path}: chunk {index} cannot be read back: is the disk sound?")
            return data

        self.snapshot.advance(pack.manifest, chunk, position_of(pack.manifest))

    def _recover(self) -> None:
        """Bring the snapshot to the newest version of this run that the store leads to."""
        packs = [pack for pack in self.store.packs() if pack.manifest.run == self._run and pack.sealed]
        if not packs:
            return
        newest = max(packs, key=lambda pack: (pack.manifest.epoch, pack.manifest.version)).manifest
        live = self.snapshot.position
        start = (live.version, live.digest.hex()) if live else None
        target = (newest.version, newest.digest.hex())
        by_id = {pack.signed.id.hex(): pack for pack in packs}
        path = resolve([announcement_of(pack.signed, pack.manifest) for pack in packs], start, target)
        if path is None:
            raise StoreError(f"{self.store.root} holds no way to version {newest.version}: start with an empty --store")
        for announced in path:
            self._advance(by_id[announced.id])


def announcement_of(signed: SignedManifest, manifest: Manifest) -> Announcement:
    """A manifest in short, as a hub would announce it."""
    return Announcement(
        id=signed.id.hex(),
        version=manifest.version,
        base=manifest.base,
        epoch=manifest.epoch,
        digest=manifest.digest.hex(),
        base_digest=manifest.base_digest.hex(),
        payload_bytes=manifest.payload_bytes,
        manifest_bytes=len(signed.body),
    )


def position_of(manifest: Manifest) -> Position:
    """Where a manifest leads."""
    return Position(run=manifest.run, epoch=manifest.epoch, version=manifest.version, digest=manifest.digest)
