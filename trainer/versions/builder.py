"""Making versions: from a source's bits to a durable, signed pack, streaming.

extract → encode → hash → draft on disk, chunk by chunk, tensor by tensor; then the manifest, the signature, the seal;
then the same chunks are decoded into the trainer's own snapshot, whose digest must come out as signed. Only then may
anyone hear of the version.

Nothing is signed that rests on the snapshot alone. The scan that finds the changes sums up both copies on its way: the
old bits must have the sums that the source had at the publish before, and the steps found must make up the difference
(`p2psync.trainer.versions.bit_record`). A snapshot that is found damaged is made anew from the store, and the version
is made once more. What the store no longer leads to is dropped, and the next version is written out whole, from the
source.
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
from p2psync.delta.tensors import Row, TensorSpec
from p2psync.errors import DigestMismatchError, FormatError, StoreError
from p2psync.membership.lineage import to_announcement
from p2psync.membership.records import Announcement
from p2psync.protocol.keys import public_text
from p2psync.protocol.lineage import place_after, reachable, resolve
from p2psync.protocol.manifest import Manifest, SignedManifest, sign
from p2psync.protocol.messages import NO_VERSION
from p2psync.protocol.versions import Position
from p2psync.store.disk import disk_errors, write_durably
from p2psync.store.encoding import Encoding, rows_between
from p2psync.store.packs import Draft, Pack, Store
from p2psync.trainer.versions.bit_record import Scans
from p2psync.trainer.versions.pack_reading import UnreadableError, compare_whole, name_of, reader
from p2psync.trainer.versions.snapshot import Keeper, Snapshot
from p2psync.trainer.versions.source import FindingSource, Source
from p2psync.trainer.versions.steps import Steps

T = TypeVar("T")


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
    def write_whole(self) -> None: ...
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
        on_trouble: Callable[[str], None] = lambda message: None,
    ) -> None:
        """`root`: where the snapshot lives. epoch: of the versions to be made; may be set later. keeper: makes what
        keeps the published bits instead. on_trouble: told, in a line, of damage and of what became of it; called in the
        thread that calls here. Raises `StoreError`.

        A snapshot that is behind the store, or cannot be vouched for, is brought up from the store's packs. Packs that
        do not decode are dropped.
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
        self._tell = on_trouble
        self._doubtful = True
        #: How often the published bits were made anew.
        self.mended = 0
        # Number of the newest version that was ever seen here, -1: none. It is kept once versions were dropped.
        self._newest_file = root.parent / "newest-version"
        self._newest = _load_number(self._newest_file)
        #: Whether the next version is written out whole, since the store does not lead to the newest one.
        self._whole = False
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
        if not self._doubtful and not self.snapshot.sound():
            self._doubt("the published bits were changed or damaged here")

        def once() -> Made | None:
            return self._make(source, profile, rate, settled, given_up)

        return self._mending(once)

    def make_anchor(self, rate: float = 0.0) -> Made:
        """The newest version written out whole, for those who start from nothing. rate: see `make`.

        Raises `StoreError` if there is no version. A snapshot that turns out to be damaged is made anew from the store.
        """
        if not self._doubtful and not self.snapshot.whole():
            self._doubt("the published bits were cut or replaced here")
        return self._mending(lambda: self._make_anchor(rate))

    def write_whole(self) -> None:
        """Have the next version written out whole, whatever changed. Raises `StoreError`."""
        self.snapshot.verify()
        if self.snapshot.position is None:
            self._doubt("the published bits are damaged here")
            self._recover()
        self._whole = True

    def scrub(self) -> int:
        """Hold one more block of the snapshot against what was published; returns its bytes, 0 at the end of a round.

        A snapshot that is damaged is made anew from the store. Raises `StoreError`.
        """
        if self._doubtful:
            self._recover()
        try:
            return self.snapshot.scrub()
        except DigestMismatchError as error:
            self._doubt(str(error))
            self._recover()
            return 0

    def _mending(self, make: Callable[[], T]) -> T:
        """Make something; once more, if it turned out that the published bits are not to be trusted."""
        if self._doubtful:
            self._recover()
        try:
            return make()
        except DigestMismatchError as error:
            self._doubt(str(error))
            self._recover()
            try:
                return make()
            except DigestMismatchError as again:
                self._doubtful = True
                raise StoreError(f"{again}, and again after it was made anew: is its disk, or memory, sound?") from None

    def _doubt(self, message: str) -> None:
        self._tell(f"{message}: making the published bits anew from the store")
        self.snapshot.distrust()
        self._doubtful = True
        self.mended += 1

    def _make(
        self,
        source: Source,
        profile: str,
        rate: float,
        settled: Callable[[], bool],
        given_up: Callable[[], bool],
    ) -> Made | None:
        began = time.monotonic()
        live = None if self._whole else self.snapshot.position
        rows = rows_between(self.snapshot.specs if live is not None else [], source.specs)
        draft = self.store.draft()
        try:
            encode, scans = self._encode(draft, rows, source, given_up, rate, profile=None if live is None else profile)
            encoded = time.monotonic()
            if not self.snapshot.whole():
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
            self._doubtful = True
            self.store.remove(pack.signed.id)
            raise
        self._newest, self._whole = position.version, False
        with suppress(StoreError):
            self.steps.prune(self.store)
        return Made(pack, position, time.monotonic() - began, encoded - began, applying)

    def _make_anchor(self, rate: float) -> Made:
        began = time.monotonic()
        live = self.position
        if live is None:
            raise StoreError("there is no version to write out yet")
        rows = [Row(spec, False, True) for spec in self.snapshot.specs]
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
            compare_whole(pack, self.snapshot.units)
        except BaseException:
            self.store.remove(pack.signed.id)
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
    ) -> tuple[Encoding, Scans]:
        """profile: None makes an anchor. Also gives what was summed up of the rows that were scanned, which agrees with
        what was published. Raises `DigestMismatchError`."""
        finds = None
        scans: dict[TensorSpec, ScanSums] = {}
        anchor = profile is None
        with Encoding(draft, rows, anchor=anchor, rate=rate, profile=profile or "fast", summed=True) as encode:
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
        for index, row in enumerate(rows):
            if row.before and row.after:
                scan = encode.sums.get(index) or (finds.sums(index) if finds is not None else None)
                self.snapshot.check(row.spec, scan)
                if scan is not None:
                    scans[row.spec] = scan
        return encode, scans

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

    def _advance(self, pack: Pack, scans: Scans | None = None) -> float:
        """Take the snapshot along a pack; returns how long decoding and applying took (seconds)."""
        began = time.monotonic()
        keeping = self.steps.keep(pack)
        try:
            take = keeping.take if keeping is not None else None
            self.snapshot.advance(pack.manifest, reader(pack), position_of(pack.manifest), take, scans)
            if keeping is not None:
                keeping.finish()
        finally:
            if keeping is not None:
                keeping.abandon()
        if not self.snapshot.whole():
            raise StoreError(f"{self._root} was damaged while a version was made: not published; it is made anew")
        return time.monotonic() - began - (keeping.seconds if keeping is not None else 0.0)

    def _recover(self) -> None:
        """Bring the snapshot to the newest version that the store leads to: of this run, or, before its first one, of
        the run that it goes on from. Raises `StoreError`."""
        self.snapshot.reopen()
        live, failed = self.snapshot.position, set[bytes]()
        self._newest = max(self._newest, *(pack.manifest.version for pack in self._all_packs()), -1)
        if live is not None:
            self._newest = max(self._newest, live.version)
        while (bad := self._go_along(self._way(self._here()))) is not None:
            # A second failure is not the memory's: the pack itself is what nobody can decode.
            if bad.signed.id in failed and bad.sealed:
                self.store.remove(bad.signed.id)
            failed.add(bad.signed.id)
            self.snapshot.reopen()
        self._drop_unreachable()
        self._doubtful = False

    def _go_along(self, way: list[Pack]) -> Pack | None:
        """Take the snapshot along these packs; returns the first one that does not decode to what it says."""
        for pack in way:
            try:
                self._advance(pack)
            except (DigestMismatchError, FormatError, UnreadableError, ValueError) as error:
                self._tell(f"{name_of(pack)} cannot be decoded here: {error}")
                return pack
        if way:
            self.snapshot.verify()
            if self.snapshot.position is None:
                raise StoreError(f"{self._root} does not keep what is written to it: is its disk, or memory, sound?")
        return None

    def _here(self) -> Position | None:
        """What the snapshot holds, as a version of the run whose packs are gone along: of another's, the same bits."""
        live, packs = self.snapshot.position, self._packs()
        if live is None or not packs or live.run == packs[0].manifest.run:
            return live
        same = [p.manifest for p in packs if (p.manifest.version, p.manifest.digest) == (live.version, live.digest)]
        if same:
            return position_of(max(same, key=lambda manifest: manifest.epoch))
        return msgspec.structs.replace(live, epoch=-1)

    def _way(self, live: Position | None) -> list[Pack]:
        """The packs that lead from `live` to the newest version that can be reached."""
        packs = self._packs()
        by_id = {pack.signed.id.hex(): pack for pack in packs}
        lineage = [announcement_of(pack.signed, pack.manifest) for pack in packs]
        start = (live.version, live.digest.hex()) if live else None
        newest = reachable(lineage, start)
        if newest is None or (live is not None and (live.epoch, live.version) >= (newest.epoch, newest.version)):
            return []  # there already; or beyond, and the pack that led there was damaged since
        path = resolve(lineage, start, place_after(newest))
        assert path is not None
        return [by_id[announced.id] for announced in path]

    def _drop_unreachable(self) -> None:
        """Forget later versions than the snapshot's: nobody can decode them. The next one is written out whole."""
        live = self._here()
        reached = (live.epoch, live.version) if live is not None else (-1, -1)
        self._whole = self._newest > (live.version if live is not None else -1)
        if self._whole:
            with disk_errors(self._newest_file):
                write_durably(self._newest_file, str(self._newest).encode())
        lost = [pack for pack in self._packs() if (pack.manifest.epoch, pack.manifest.version) > reached]
        for pack in lost:
            self.store.remove(pack.signed.id)
        if live is not None and not self._all_packs():
            self._whole = True
            self._tell(f"{self.store.root} lost its versions: the next one is written out whole")
        elif self._whole:
            where = f"version {live.version}" if live is not None else "nothing"
            self._tell(
                f"{self.store.root} leads to {where}, not to version {self._newest}:"
                f" version {self._newest + 1} is written out whole"
            )

    def _packs(self) -> list[Pack]:
        """Those that are whole, see `_all_packs`."""
        return [pack for pack in self._all_packs() if pack.sealed]

    def _all_packs(self) -> list[Pack]:
        """Those of this run; before its first one, those of the newest run that the store has."""
        packs = self.store.packs()
        runs = {pack.manifest.run for pack in packs if pack.sealed}
        run = self._run if self._run in runs else max(runs, default=self._run)
        return [pack for pack in packs if pack.manifest.run == run]

    def _check_key(self) -> None:
        """Actors trust one key: versions that another one signed cannot be announced beside ours."""
        mine = self._key.public_key().public_bytes_raw()
        theirs = next((pack.signed.key for pack in self._packs() if pack.signed.key != mine), None)
        if theirs is not None:
            raise StoreError(
                f"{self.store.root}: its versions were signed with {public_text(theirs)}: give that --key, or an empty "
                "--store"
            )


def _load_number(path: Path) -> int:
    """The number that a file holds; -1 if there is none."""
    try:
        return int(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return -1


def announcement_of(signed: SignedManifest, manifest: Manifest) -> Announcement:
    """A manifest in short, as a hub would announce it."""
    return to_announcement(manifest, signed.id, len(signed.to_bytes()))


def position_of(manifest: Manifest) -> Position:
    """Where a manifest leads."""
    return Position(run=manifest.run, epoch=manifest.epoch, version=manifest.version, digest=manifest.digest)
