"""The hub's view as bytes, encoded once for all who are to get the same."""

from __future__ import annotations

from dataclasses import dataclass

from p2psync.membership.hub import HubCore
from p2psync.net.hub_wire import pack
from p2psync.protocol.wire import encode_json

#: A view whose members' versions have changed since is encoded anew after this long (seconds).
_STALE_AFTER = 1.0


@dataclass(frozen=True)
class _Encoded:
    """A view in JSON, at a revision, when so many acknowledgements had come, and packed."""

    revision: int
    acknowledged: int
    at: float
    body: bytes
    packed: bytes


class EncodedViews:
    """Views by how many manifests are inlined: those who come again with one revision all get the same."""

    def __init__(self, core: HubCore) -> None:
        self._core = core
        self._encoded: dict[int, _Encoded] = {}

    def get(self, known: int, now: float, *, packed: bool) -> bytes:
        """The view in JSON for one who knows a revision (see `HubCore.view`), packed if wanted. now: seconds."""
        core = self._core
        kind = -1 if known < 0 else core.news_after(known)
        found = self._encoded.get(kind)
        if found is None or not self._is_fresh(found, now):
            if found is not None and found.revision != core.revision:
                self._encoded.clear()
            body = encode_json(core.view(known))
            found = self._encoded[kind] = _Encoded(core.revision, core.acknowledged, now, body, pack(body))
        return found.packed if packed else found.body

    def _is_fresh(self, found: _Encoded, now: float) -> bool:
        if found.revision != self._core.revision:
            return False
        return found.acknowledged == self._core.acknowledged or now - found.at < _STALE_AFTER
