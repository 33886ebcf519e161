"""The ledger of a trainer daemon: on its embedded hub, with a journal in its store, used by a framework over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from p2psync.net.hub import HubService
from p2psync.observe.events import Event, Published
from p2psync.protocol.versions import Position
from p2psync.trainer.ledger.core import LedgerConfig
from p2psync.trainer.ledger.journal import Journal
from p2psync.trainer.ledger.routes import LedgerRoutes, work_token
from p2psync.trainer.ledger.service import LedgerService, mount

#: Files in the store: the journal, and the token that the framework sends.
JOURNAL, TOKEN = "ledger.db", "rollouts.token"


class DaemonLedger:
    """Wires a ledger to a trainer node; on its loop."""

    def __init__(self, store: Path, max_staleness: int) -> None:
        self._store = store
        self._config = LedgerConfig(max_staleness=max_staleness)
        self._service: LedgerService | None = None

    def mount(self, hub: HubService) -> None:
        """Add the ledger to the embedded hub, before that starts to serve. Raises `StoreError`."""
        token = work_token(self._store / TOKEN)
        journal = Journal(self._store / JOURNAL, self._config.remembered)
        self._service = mount(hub.build_app(), hub, self._config, journal=journal)
        LedgerRoutes(self._service, token).add(hub.build_app())

    def admit_before(self, show: Callable[[Event], None]) -> Callable[[Event], None]:
        """Returns a handler that admits every published version to the ledger, and passes all events to `show`.

        The node calls it before it announces the version.
        """

        def on_event(event: Event) -> None:
            if isinstance(event, Published) and self._service is not None:
                self._service.admit(event.version, event.digest)
            show(event)

        return on_event

    def started(self, position: Position | None) -> None:
        """Admit the version that the node has started with; None: it has none."""
        if position is not None and self._service is not None:
            self._service.admit(position.version, position.digest.hex())
