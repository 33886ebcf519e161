"""The trainer in the swarm: the hub beside it, the store, the versions, and the announcements that must get through.

A version is durable before anyone hears of it. Announcing is a loop of its own: it goes on until the hub has every
manifest that the trainer keeps, and starts again when the hub has forgotten (it was restarted) or could not be
reached. A later epoch ends it: this trainer was replaced, and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import FencedError, LeaseError, P2PSyncError, StoreError
from p2psync.membership.hub import HubConfig
from p2psync.membership.records import HUB_HOST, Announcement, NodeInfo, View, new_run
from p2psync.net.hub import HubService
from p2psync.net.hub_client import HubClient
from p2psync.net.runner import NodeRunner
from p2psync.observe.events import Event, Note, Published, Trouble
from p2psync.protocol.versions import Position
from p2psync.store.disk import disk_errors, write_durably
from p2psync.store.packs import Store
from p2psync.swarm.node import NodeConfig, NodeCore
from trainer.retention import anchor_due, to_retire
from trainer.source import Source
from trainer.versions import Made, VersionMaker, announcement_of

RETRY_FIRST, RETRY_LAST = 0.2, 5.0


class RunState(msgspec.Struct, frozen=True):
    """What a trainer must remember: its run, its epoch, its name in the swarm."""

    run: str
    epoch: int
    node: str


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Settings of a trainer.

    store: directory of versions and snapshot. hub_url: an external hub; None: one is embedded at (host, hub_port).
    host, port: where peers connect (0: any port). advertise: address told to peers, "" lets the hub see it.
    anchor_ratio, keep: see `trainer.retention`. ttl: seconds of a lease at the embedded hub.
    """

    store: Path
    key: Ed25519PrivateKey
    hub_url: str | None = None
    host: str = "0.0.0.0"
    hub_port: int = 7070
    port: int = 7071
    advertise: str = ""
    region: str = ""
    token: str | None = None
    streams: int = 2
    anchor_ratio: float = 1.0
    keep: int = 64
    ttl: float = 10.0


class TrainerNode:
    """One trainer. `start`, any number of `publish`, `stop`; all on one loop."""

    def __init__(
        self,
        config: TrainerConfig,
        on_event: Callable[[Event], None] = lambda event: None,
        on_hub: Callable[[HubService], None] = lambda hub: None,
    ) -> None:
        """on_hub: may add routes to the embedded hub before it serves."""
        self.config = config
        self.hub: HubService | None = None
        self.hub_url = ""
        self.fenced: FencedError | None = None
        self._emit = on_event
        self._on_hub = on_hub
        self._publishing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._announced = asyncio.Condition()
        self._known_at_hub: set[str] = set()
        self._claim_token: str | None = None
        self._hub_instance = ""

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, start or find the hub, claim the run, announce what there is. Raises `P2PSyncError`."""
        config = self.config
        self.store = await asyncio.to_thread(Store, config.store / "packs")
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        trusted = frozenset({config.key.public_key().public_bytes_raw()})
        self.hub_url = config.hub_url or await self._embed_hub(trusted)
        self.client = HubClient(self.hub_url, config.token)
        self.state = await self._take_over()
        self.versions = await asyncio.to_thread(
            VersionMaker, self.store, config.store / "snapshot", config.key, self.state.run, self.state.epoch
        )
        host = config.advertise or (HUB_HOST if self.hub is not None else "")
        info = NodeInfo(node=self.state.node, role="trainer", region=config.region, host=host, port=config.port)
        rng = random.Random(os.urandom(16))
        probe = NodeRunner(
            NodeCore(info, NodeConfig(), rng),
            self.client,
            self.store,
            trusted=trusted,
            instance=os.urandom(8).hex(),
            streams=config.streams,
            on_event=self._emit,
            on_view=self._on_view,
        )
        self.runner = probe
        await self.runner.start(config.host, config.port)
        if self.versions.position is not None:
            self.runner.running(self.versions.position)
        self._announcer = asyncio.create_task(self._announce_loop())

    async def stop(self) -> None:
        """Leave, and close everything."""
        announcer = getattr(self, "_announcer", None)
        if announcer is not None:
            announcer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await announcer
        if hasattr(self, "runner"):
            await self.runner.stop()
        if hasattr(self, "client"):
            await self.client.close()
        if self.hub is not None:
            await self.hub.stop()
        if hasattr(self, "versions"):
            self.versions.snapshot.close()
        self.store.close()

    # ---- publishing ------------------------------------------------------------------------------------------------

    async def publish(self, source: Source, settled: Callable[[], bool] = lambda: True) -> Published | None:
        """Make the next version from `source`, durably, and have it announced. None if no bit differs.

        Returns once it is durable; the announcement follows as soon as the hub can be reached (`announced` waits for
        it). Raises `FencedError` once another trainer has taken the run over, and `P2PSyncError` for a bad source or
        disk; then nothing was published.
        """
        async with self._publishing:
            if self.fenced is not None:
                raise self.fenced
            made = await asyncio.to_thread(self.versions.make, source, settled=settled)
            if made is None:
                return None
            self._offer(made)
            event = _published(made)
            self._emit(event)
            if anchor_due(self._lineage(), self.config.anchor_ratio):
                anchor = await asyncio.to_thread(self.versions.make_anchor)
                self._offer(anchor)
                self._emit(_published(anchor))
            return event

    async def announced(self) -> None:
        """Wait until the hub has everything that was published. Raises `FencedError`."""
        async with self._announced:
            await self._announced.wait_for(lambda: self.fenced is not None or not self._unannounced())
        if self.fenced is not None:
            raise self.fenced

    async def until_running(self, actors: int) -> None:
        """Wait until at least so many actors, and every one that the hub knows, run the newest version."""
        while True:
            live = self.position
            members = [m for m in (await self.client.status()).view.members if m.info.role != "trainer"]
            digest = live.digest.hex() if live else ""
            if len(members) >= actors and all(m.digest == digest for m in members):
                return
            await asyncio.sleep(0.2)

    @property
    def position(self) -> Position | None:
        """The newest version."""
        return self.versions.position

    @property
    def view(self) -> View | None:
        """The hub's last view."""
        return self.runner.core.membership.view

    def _offer(self, made: Made) -> None:
        self.runner.offer(made.pack)
        self.runner.running(made.position)
        self._wake.set()

    # ---- the run ---------------------------------------------------------------------------------------------------

    async def _embed_hub(self, trusted: frozenset[bytes]) -> str:
        self.hub = HubService(HubConfig(trusted=trusted, ttl=self.config.ttl), token=self.config.token)
        self._on_hub(self.hub)
        port = await self.hub.start(self.config.host, self.config.hub_port)
        host = "127.0.0.1" if self.config.host in ("", "0.0.0.0", "::") else self.config.host
        return f"http://{host}:{port}"

    async def _take_over(self) -> RunState:
        """Resume the run of this store, or begin one, at an epoch above every one that the store or the hub knows."""
        path = self.config.store / "run.json"
        found = _load_state(path)
        if found is None:
            found = RunState(new_run(int(time.time() * 1000), os.urandom(10)), 0, os.urandom(16).hex())
        view = await self.client.view()
        known = view.epoch if view.run == found.run else 0
        state = RunState(found.run, max(found.epoch, known) + 1, found.node)
        # Durable before it is used: a restart must not use the same epoch for something else.
        with disk_errors(path):
            await asyncio.to_thread(write_durably, path, msgspec.json.encode(state))
        await self._claim(state)
        return state

    async def _claim(self, state: RunState) -> None:
        claimed = await self.client.claim(self.config.key, node=state.node, run=state.run, epoch=state.epoch)
        self._claim_token = claimed.token
        self._known_at_hub.clear()

    # ---- announcing ------------------------------------------------------------------------------------------------

    def _lineage(self) -> list[Announcement]:
        packs = [p for p in self.store.packs() if p.sealed and p.manifest.run == self.state.run]
        return [announcement_of(p.signed, p.manifest) for p in packs]

    def _unannounced(self) -> list[Announcement]:
        return [a for a in self._lineage() if a.id not in self._known_at_hub]

    def _on_view(self, view: View) -> None:
        if view.run == self.state.run and view.epoch > self.state.epoch:
            self._fence(FencedError(f"another trainer took this run over at epoch {view.epoch}: this one stops"))
        elif view.instance != self._hub_instance:
            # Another hub process: it knows only what is told to it from now on.
            if self._hub_instance:
                self._known_at_hub.clear()
                self._claim_token = None
            self._hub_instance = view.instance
        self._wake.set()

    async def _announce_loop(self) -> None:
        pause = RETRY_FIRST
        while self.fenced is None:
            self._wake.clear()
            try:
                await self._announce_once()
                pause = RETRY_FIRST
                await self._wake.wait()
            except FencedError as error:
                self._fence(error)
            except LeaseError:
                self._claim_token = None
            except P2PSyncError as error:
                self._emit(Trouble(f"not announced yet: {error}"))
                await asyncio.sleep(pause)
                pause = min(RETRY_LAST, pause * 2)

    async def _announce_once(self) -> None:
        if self._claim_token is None:
            await self._claim(self.state)
        token = self._claim_token
        assert token is not None
        retire = self._retirable()
        new = self._unannounced()
        if new or retire:
            # In rising order of versions: followers count as gone only what the head has passed.
            packs = [self.store.get(bytes.fromhex(a.id)) for a in sorted(new, key=lambda a: (a.version, a.base or -1))]
            bodies = [pack.signed.to_bytes() for pack in packs if pack is not None]
            await self.client.announce(token, bodies, [a.id for a in retire if a.id in self._known_at_hub])
            self._known_at_hub |= {a.id for a in new}
        for announced in retire:
            self._known_at_hub.discard(announced.id)
            self.runner.withdraw(bytes.fromhex(announced.id))
            await asyncio.to_thread(self.store.remove, bytes.fromhex(announced.id))
            self._emit(Note(f"retired {'anchor' if announced.base is None else 'delta'} {announced.version}"))
        async with self._announced:
            self._announced.notify_all()

    def _retirable(self) -> list[Announcement]:
        members = self.view.members if self.view else []
        running = [m.version for m in members if m.info.role != "trainer"]
        return to_retire(self._lineage(), running, self.config.keep)

    def _fence(self, error: FencedError) -> None:
        if self.fenced is None:
            self.fenced = error
            self._emit(Trouble(str(error)))
            self._wake.set()
            self._tell = asyncio.get_running_loop().create_task(self._notify())

    async def _notify(self) -> None:
        async with self._announced:
            self._announced.notify_all()


def _load_state(path: Path) -> RunState | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read ({error}): restore it, or start with an empty --store") from None


def _published(made: Made) -> Published:
    manifest = made.pack.manifest
    return Published(
        version=manifest.version,
        digest=manifest.digest.hex(),
        anchor=manifest.base is None,
        changed=manifest.changed,
        total=manifest.total,
        payload_bytes=manifest.payload_bytes,
        full_bytes=sum(row.spec.nbytes for row in manifest.rows() if row.after),
        chunks=manifest.chunks,
        seconds=made.seconds,
        at=time.time(),
    )
