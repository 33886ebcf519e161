"""Caches the hub's encoded view, so that readers of the same bytes share one encoding."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.membership.hub import HubCore
from p2psync.membership.records import View
from p2psync.net.hub_wire import pack
from p2psync.protocol.wire import encode_json

#: Seconds after which a view whose members' versions changed is encoded again.
_STALE_SECONDS = 1.0
#: Encoded views that are kept: nodes that keep up have one of the last few revisions.
_MAX_VIEWS = 32


@dataclass(frozen=True)
class _Encoded:
    """An encoded view: its revision, the acknowledgements counted by then, when (seconds), the JSON and its packed
    form."""

    revision: int
    acknowledgements: int
    at: float
    body: bytes
    packed: bytes


class EncodedViews:
    """Encoded views by content: readers at one revision all get the same bytes."""

    def __init__(self, core: HubCore) -> None:
        self._core = core
        self._encoded: dict[tuple[str, int], _Encoded] = {}

    def get(self, known: int, now: float, *, packed: bool, changes: bool = False) -> bytes:
        """Returns the view in JSON for a reader of revision `known` (see `HubCore.view`), packed if wanted. now:
        seconds.

        changes: the reader has revision `known` of this instance, and needs only the changes since.
        """
        core = self._core
        key = "changes", known
        found = self._encoded.get(key) if changes else None
        if found is not None and found.revision == core.revision:
            return found.packed if packed else found.body
        view = core.changes(known) if changes else None
        if view is not None:
            found = self._encode(key, view, now)
            return found.packed if packed else found.body
        kind = "all", -1 if known < 0 else core.new_manifests_after(known)
        found = self._encoded.get(kind)
        if found is None or not self._is_fresh(found, now):
            found = self._encode(kind, core.view(known), now)
        return found.packed if packed else found.body

    def _encode(self, kind: tuple[str, int], view: View, now: float) -> _Encoded:
        core = self._core
        if any(found.revision != core.revision for found in self._encoded.values()):
            self._encoded.clear()
        if len(self._encoded) >= _MAX_VIEWS:  # readers of many different revisions
            self._encoded.pop(next(iter(self._encoded)))
        body = encode_json(view)
        made = self._encoded[kind] = _Encoded(core.revision, core.acknowledgements, now, body, pack(body))
        return made

    def _is_fresh(self, found: _Encoded, now: float) -> bool:
        if found.revision != self._core.revision:
            return False
        return found.acknowledgements == self._core.acknowledgements or now - found.at < _STALE_SECONDS
