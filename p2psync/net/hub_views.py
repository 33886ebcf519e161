"""The hub's view as bytes, encoded once for all who are to get the same."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.membership.hub import HubCore
from p2psync.membership.records import View
from p2psync.net.hub_wire import pack
from p2psync.protocol.wire import encode_json

#: A view whose members' versions have changed since is encoded anew after this long (seconds).
_STALE_AFTER = 1.0
#: Encoded views that are kept: nodes that keep up know the last few revisions.
_MOST = 32


@dataclass(frozen=True)
class _Encoded:
    """A view in JSON, at a revision, when so many acknowledgements had come, and packed."""

    revision: int
    acknowledgements: int
    at: float
    body: bytes
    packed: bytes


class EncodedViews:
    """Views by what they tell: those who come again with one revision all get the same."""

    def __init__(self, core: HubCore) -> None:
        self._core = core
        self._encoded: dict[tuple[str, int], _Encoded] = {}

    def get(self, known: int, now: float, *, packed: bool, changes: bool = False) -> bytes:
        """The view in JSON for one who knows a revision (see `HubCore.view`), packed if wanted. now: seconds.

        changes: of this instance is known what is known, and no more than what changed since is wanted.
        """
        core = self._core
        news = "changes", known
        found = self._encoded.get(news) if changes else None
        if found is not None and found.revision == core.revision:
            return found.packed if packed else found.body
        view = core.changes(known) if changes else None
        if view is not None:
            found = self._encode(news, view, now)
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
        if len(self._encoded) >= _MOST:  # somebody asks for what changed since all kinds of revisions
            self._encoded.pop(next(iter(self._encoded)))
        body = encode_json(view)
        made = self._encoded[kind] = _Encoded(core.revision, core.acknowledgements, now, body, pack(body))
        return made

    def _is_fresh(self, found: _Encoded, now: float) -> bool:
        if found.revision != self._core.revision:
            return False
        return found.acknowledgements == self._core.acknowledgements or now - found.at < _STALE_AFTER
