"""Announces a trainer's versions to the hub: it claims the run, announces every version, and retires unneeded ones.

It goes on until the hub has every manifest that the trainer keeps, and starts again when the hub was restarted or could
not be reached. A later epoch, or a later run at the same hub, ends it: this trainer was replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import FencedError, LeaseError, LineageFullError, P2PSyncError, StoreError
from p2psync.membership.checks import printable_line
from p2psync.membership.records import Announcement, View
from p2psync.net.hub_client import HubClient
from p2psync.observe.events import Event, Note, Trouble
from p2psync.protocol.lineage import is_squash
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.run_state import RunState
from p2psync.trainer.versions.builder import announcement_of
from p2psync.trainer.versions.retention import MAX_ANNOUNCED, to_retire

RETRY_FIRST, RETRY_LAST = 0.2, 5.0


class Announcer:
    """Announces the versions of one trainer at one epoch; on one loop."""

    def __init__(
        self,
        hub: HubClient,
        key: Ed25519PrivateKey,
        state: RunState,
        store: Store,
        *,
        keep: int,
        withdraw: Callable[[bytes], None],
        own_nonce: Callable[[], str] = lambda: "",
        on_event: Callable[[Event], None],
    ) -> None:
        """withdraw: stops serving a manifest (32 bytes) that is about to be removed. own_nonce: see
        `HubService.own_nonce`; "" where the hub is another process."""
        self.fenced: FencedError | None = None
        #: A line for people that goes with the next announcement: see `Announce.note`.
        self.note = ""
        self._co_publishers: list[str] | None = None
        self._announced_co_publishers: list[str] | None = None
        self._hub = hub
        self._key = key
        self._state = state
        self._store = store
        self._keep = keep
        self._withdraw = withdraw
        self._own_nonce = own_nonce
        self._emit = on_event
        self._view: View | None = None
        self._known_at_hub: set[str] = set()
        # Manifests announced at a time, at most; fewer once the hub was full, which then holds this trainer's alone.
        self._max_announced = MAX_ANNOUNCED
        self._hub_was_full = False
        self._summaries: dict[bytes, Announcement] = {}
        # Manifests of this run that the hub shows and the store does not have: an earlier trainer's, those of a version
        # that did not decode and was dropped, or those made after the backup that this store was restored from. Each is
        # retired once, since a view may be older than that.
        self._foreign: set[str] = set()
        self._taken_back: set[str] = set()
        self._given_up: set[str] = set()
        self._claim_token: str | None = None
        self._wake = asyncio.Event()
        self._announced_all = asyncio.Event()

    def wake(self) -> None:
        """Announce soon: the store, or a line for people, has changed."""
        self._wake.set()

    def give_up(self, id: bytes) -> None:
        """Retire a manifest (32 bytes) whose chunks are lost here, and remove the rest of it from the store."""
        self._given_up.add(id.hex())
        self.wake()

    def set_co_publishers(self, nodes: list[str]) -> None:
        """Announce co-publishers: nodes that seed some of every version's chunks, this one the rest. See `Announce`."""
        self._co_publishers = nodes
        self.wake()

    def lineage(self, *, whole: bool = True) -> list[Announcement]:
        """Returns the announcements of this run's packs in the store. whole: without packs that have damaged chunks."""
        packs = [p for p in self._store.packs() if p.manifest.run == self._state.run and (p.sealed or not whole)]
        return [self._summary(pack) for pack in packs]

    def age(self, announced: Announcement | None) -> float:
        """Returns the age of a manifest of the store, by this machine's clock (seconds); 0 if the store lacks it."""
        pack = None if announced is None else self._store.get(bytes.fromhex(announced.id))
        return 0.0 if pack is None else max(0.0, time.time() - pack.manifest.created)

    async def claim(self, *, take_over: bool = False) -> None:
        """Claim the run at the hub. take_over: see `RunClaim`. Raises `TrustError`, `FencedError`, `HubError`."""
        state = self._state
        claimed = await self._hub.claim(
            self._key,
            node=state.node,
            run=state.run,
            epoch=state.epoch,
            take_over=take_over,
            nonce=self._own_nonce(),
        )
        self._claim_token = claimed.token
        self._known_at_hub.clear()
        self._announced_co_publishers = None

    async def announced(self) -> None:
        """Wait until the hub has everything that was published. Raises `FencedError`."""
        while self.fenced is None and self._unannounced():
            self._announced_all.clear()
            await self._announced_all.wait()
        if self.fenced is not None:
            raise self.fenced

    def viewed(self, view: View) -> None:
        """Take in the hub's view: members come and go, the hub was restarted, or another trainer replaces this one."""
        before, self._view = self._view, view
        same_run = view.run == self._state.run
        if same_run and view.epoch > self._state.epoch:
            self._fence(
                FencedError(f"another trainer took this run over: {printable_line(view.claim)}; this one stops")
            )
        elif before is not None and before.instance != view.instance:
            # Another hub process: it has no manifests yet, and refuses a claim at an earlier epoch.
            self._known_at_hub.clear()
            self._taken_back.clear()
            self._announced_co_publishers = self._claim_token = None
        elif view.run and not same_run and self._claim_token is not None:
            self._fence(FencedError(f"another run took the hub over: {printable_line(view.claim)}; this trainer stops"))
        if same_run and view.epoch <= self._state.epoch:
            self._foreign = {id for id in self._shown_at_hub() if self._store.get(bytes.fromhex(id)) is None}
            self._taken_back &= self._foreign
        self._wake.set()

    async def run(self) -> None:
        """Announce for ever. Raises `FencedError` once another trainer has taken over."""
        pause = RETRY_FIRST
        while self.fenced is None:
            self._wake.clear()
            try:
                await self._announce()
                pause = RETRY_FIRST
                await self._wake.wait()
            except FencedError as error:
                self._fence(error)
            except P2PSyncError as error:
                if isinstance(error, LeaseError):
                    self._claim_token = None  # the hub does not know the claim: claim again
                elif isinstance(error, LineageFullError):
                    self._announce_less(error)
                else:
                    self._emit(Trouble(f"not announced yet: {error}"))
                await asyncio.sleep(pause)
                pause = min(RETRY_LAST, pause * 2)
        raise self.fenced

    async def _announce(self) -> None:
        if self._claim_token is None:
            await self.claim()
        token = self._claim_token
        assert token is not None
        retire = self._retirable()
        gone = {a.id for a in retire}
        new = [a for a in self._unannounced() if a.id not in gone]
        shown, foreign = self._shown_at_hub(), self._foreign - self._taken_back
        known = sorted(gone & (self._known_at_hub | shown) | foreign)
        # Manifests that were never announced are removed at once: the disk must not fill while the hub is away.
        await self._remove([a for a in retire if a.id not in known])
        if new or known or self._co_publishers != self._announced_co_publishers:
            # In rising order of versions: followers count only versions below the head as gone.
            new.sort(key=lambda a: (a.epoch, a.version, -1 if a.base is None else a.base))
            packs = [self._store.get(bytes.fromhex(a.id)) for a in new]
            manifests = [pack.signed.to_bytes() for pack in packs if pack is not None]
            co_publishers = self._co_publishers
            await self._hub.announce(token, manifests, known, self.note, co_publishers)
            self._announced_co_publishers = co_publishers
            self._known_at_hub |= {a.id for a in new}
            self._known_at_hub -= gone | foreign
            self._taken_back |= foreign
            for id in foreign:
                self._withdraw(bytes.fromhex(id))
        await self._remove([a for a in retire if a.id in known])
        self._announced_all.set()

    def _announce_less(self, error: LineageFullError) -> None:
        """Halve the number of manifests announced, each time the hub is full again."""
        if self._hub_was_full:
            self._max_announced = max(1, min(self._max_announced, len(self.lineage(whole=False))) // 2)
        self._hub_was_full = True
        self._emit(Trouble(f"making room at the hub: {error}"))

    def _shown_at_hub(self) -> set[str]:
        """Returns the ids of this run's manifests that the hub's last view shows."""
        view = self._view
        return {a.id for a in view.lineage} if view is not None and view.run == self._state.run else set()

    def _summary(self, pack: Pack) -> Announcement:
        id = pack.signed.id
        found = self._summaries.get(id)
        if found is None:
            found = self._summaries[id] = announcement_of(pack.signed, pack.manifest)
        return found

    async def _remove(self, retired: list[Announcement]) -> None:
        for announced in retired:
            self._withdraw(bytes.fromhex(announced.id))
            try:
                await asyncio.to_thread(self._store.remove, bytes.fromhex(announced.id))
            except StoreError as error:
                self._emit(Trouble(str(error)))
            else:
                self._emit(Note(f"retired {_name(announced)}"))
            # Only now: as long as the store has the pack, `lineage` includes it.
            self._summaries.pop(bytes.fromhex(announced.id), None)

    def _unannounced(self) -> list[Announcement]:
        return [a for a in self.lineage() if a.id not in self._known_at_hub]

    def _retirable(self) -> list[Announcement]:
        # Before the first view it is not known which manifests members need.
        if self._view is None:
            return []
        members = [member for member in self._view.members if member.info.role != "trainer"]
        lineage = self.lineage(whole=False)
        damaged = [a for a in lineage if a.id in self._given_up]
        self._given_up &= {a.id for a in damaged}
        rest = [a for a in lineage if a.id not in self._given_up]
        return damaged + to_retire(rest, members, self._keep, most=self._max_announced)

    def _fence(self, error: FencedError) -> None:
        if self.fenced is None:
            self.fenced = error
            self._wake.set()
            self._announced_all.set()


def _name(announced: Announcement) -> str:
    if is_squash(announced):
        return f"squash {announced.base} → {announced.version}"
    return f"{'anchor' if announced.base is None else 'delta'} {announced.version}"
