"""Getting what was published to the hub: claiming the run, announcing every version, retiring what nobody needs.

It goes on until the hub has every manifest that the trainer keeps, and starts again when the hub has forgotten (it was
restarted) or could not be reached. A later epoch, or a later run at the same hub, ends it: this trainer was replaced.
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
from p2psync.store.packs import Pack, Store
from p2psync.trainer.run_state import RunState
from p2psync.trainer.versions.builder import announcement_of
from p2psync.trainer.versions.retention import MOST_ANNOUNCED, to_retire

RETRY_FIRST, RETRY_LAST = 0.2, 5.0


class Announcer:
    """The announcements of one trainer at one epoch; on one loop."""

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
        #: Goes with the next announcement: see `Announce.note`.
        self.note = ""
        self._co_publishers: list[str] | None = None
        self._beside_told: list[str] | None = None
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
        # What may be announced at a time; less once the hub was full, which then holds nothing but ours.
        self._most = MOST_ANNOUNCED
        self._hub_was_full = False
        self._short: dict[bytes, Announcement] = {}
        # What the hub shows of this run and the store does not have: an earlier trainer's, a version that did not
        # decode and was dropped, or one of after the backup that this store is. Each is taken back once, since a view
        # may be older than that.
        self._foreign: set[str] = set()
        self._taken_back: set[str] = set()
        self._given_up: set[str] = set()
        self._token: str | None = None
        self._wake = asyncio.Event()
        self._told = asyncio.Event()

    def wake(self) -> None:
        """There is something new to announce."""
        self._wake.set()

    def give_up(self, id: bytes) -> None:
        """A manifest cannot be had from here any more: take it back, and remove what is left of it."""
        self._given_up.add(id.hex())
        self.wake()

    def publish_with(self, nodes: list[str]) -> None:
        """These nodes have some of every version's chunks, and this one the rest: see `Announce.co_publishers`."""
        self._co_publishers = nodes
        self.wake()

    def lineage(self, *, whole: bool = True) -> list[Announcement]:
        """What the store has of this run. whole: without packs of which chunks were found damaged."""
        packs = [p for p in self._store.packs() if p.manifest.run == self._state.run and (p.sealed or not whole)]
        return [self._in_short(pack) for pack in packs]

    def age(self, announced: Announcement | None) -> float:
        """How long ago this machine's clock says that a manifest of the store was made (seconds); 0 if it is none."""
        pack = None if announced is None else self._store.get(bytes.fromhex(announced.id))
        return 0.0 if pack is None else max(0.0, time.time() - pack.manifest.created)

    async def claim(self, *, take_over: bool = False) -> None:
        """Take the run over. take_over: see `Claim`. Raises `TrustError`, `FencedError`, `HubError`."""
        state = self._state
        claimed = await self._hub.claim(
            self._key,
            node=state.node,
            run=state.run,
            epoch=state.epoch,
            take_over=take_over,
            nonce=self._own_nonce(),
        )
        self._token = claimed.token
        self._known_at_hub.clear()
        self._beside_told = None

    async def announced(self) -> None:
        """Wait until the hub has everything that was published. Raises `FencedError`."""
        while self.fenced is None and self._unannounced():
            self._told.clear()
            await self._told.wait()
        if self.fenced is not None:
            raise self.fenced

    def viewed(self, view: View) -> None:
        """The hub's view changed: members come and go, the hub was restarted, or another trainer has come."""
        before, self._view = self._view, view
        same_run = view.run == self._state.run
        if same_run and view.epoch > self._state.epoch:
            self._fence(
                FencedError(f"another trainer took this run over: {printable_line(view.claim)}; this one stops")
            )
        elif before is not None and before.instance != view.instance:
            # Another hub process: it knows only what is told to it from now on, and refuses a claim that is behind.
            self._known_at_hub.clear()
            self._taken_back.clear()
            self._beside_told = self._token = None
        elif view.run and not same_run and self._token is not None:
            self._fence(FencedError(f"another run took the hub over: {printable_line(view.claim)}; this trainer stops"))
        if same_run and view.epoch <= self._state.epoch:
            self._foreign = {id for id in self._shown() if self._store.get(bytes.fromhex(id)) is None}
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
                    self._token = None  # the hub does not know the claim: claim again
                elif isinstance(error, LineageFullError):
                    self._make_room(error)
                else:
                    self._emit(Trouble(f"not announced yet: {error}"))
                await asyncio.sleep(pause)
                pause = min(RETRY_LAST, pause * 2)
        raise self.fenced

    async def _announce(self) -> None:
        if self._token is None:
            await self.claim()
        token = self._token
        assert token is not None
        retire = self._retirable()
        gone = {a.id for a in retire}
        new = [a for a in self._unannounced() if a.id not in gone]
        shown, foreign = self._shown(), self._foreign - self._taken_back
        known = sorted(gone & (self._known_at_hub | shown) | foreign)
        # What the hub never heard of goes at once: while it is away, the disk must not fill.
        await self._remove([a for a in retire if a.id not in known])
        if new or known or self._co_publishers != self._beside_told:
            # In rising order of versions: followers count as gone only what the head has passed.
            new.sort(key=lambda a: (a.epoch, a.version, -1 if a.base is None else a.base))
            packs = [self._store.get(bytes.fromhex(a.id)) for a in new]
            manifests = [pack.signed.to_bytes() for pack in packs if pack is not None]
            co_publishers = self._co_publishers
            await self._hub.announce(token, manifests, known, self.note, co_publishers)
            self._beside_told = co_publishers
            self._known_at_hub |= {a.id for a in new}
            self._known_at_hub -= gone | foreign
            self._taken_back |= foreign
            for id in foreign:
                self._withdraw(bytes.fromhex(id))
        await self._remove([a for a in retire if a.id in known])
        self._told.set()

    def _make_room(self, error: LineageFullError) -> None:
        """The hub is full: half of what it was to hold must do, until it takes that."""
        if self._hub_was_full:
            self._most = max(1, min(self._most, len(self.lineage(whole=False))) // 2)
        self._hub_was_full = True
        self._emit(Trouble(f"making room at the hub: {error}"))

    def _shown(self) -> set[str]:
        """What the hub showed last of this run."""
        view = self._view
        return {a.id for a in view.lineage} if view is not None and view.run == self._state.run else set()

    def _in_short(self, pack: Pack) -> Announcement:
        id = pack.signed.id
        found = self._short.get(id)
        if found is None:
            found = self._short[id] = announcement_of(pack.signed, pack.manifest)
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
            # Only now: as long as the store had it, the lineage was asked for with it.
            self._short.pop(bytes.fromhex(announced.id), None)

    def _unannounced(self) -> list[Announcement]:
        return [a for a in self.lineage() if a.id not in self._known_at_hub]

    def _retirable(self) -> list[Announcement]:
        # Before the first view nobody is known to need anything, which is not to be acted on.
        if self._view is None:
            return []
        members = [member for member in self._view.members if member.info.role != "trainer"]
        lineage = self.lineage(whole=False)
        damaged = [a for a in lineage if a.id in self._given_up]
        self._given_up &= {a.id for a in damaged}
        rest = [a for a in lineage if a.id not in self._given_up]
        return damaged + to_retire(rest, members, self._keep, most=self._most)

    def _fence(self, error: FencedError) -> None:
        if self.fenced is None:
            self.fenced = error
            self._wake.set()
            self._told.set()


def _name(announced: Announcement) -> str:
    if is_squash(announced):
        return f"squash {announced.base} → {announced.version}"
    return f"{'anchor' if announced.base is None else 'delta'} {announced.version}"
