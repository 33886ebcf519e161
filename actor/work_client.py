"""The actor's side of the rollout ledger: leases of work, and results. Nothing is retried inside."""

from __future__ import annotations

import asyncio
import secrets

from p2psync.errors import HubError
from p2psync.membership.work import MAX_GRANT_BYTES, MAX_WORK_WAIT, LeaseWork, Receipt, Verdict, WorkGrant, WorkResult
from p2psync.net.hub_client import HubClient

#: A grant's payloads in base64, and what stands around them.
_MAX_GRANT_REPLY = MAX_GRANT_BYTES // 3 * 4 + (1 << 20)


class WorkClient:
    """Speaks to the ledger at a hub's address, over the hub's client, whose life is the caller's."""

    def __init__(self, hub: HubClient) -> None:
        self._hub = hub
        self._unanswered: list[str] = []

    async def lease(self, lease: str, max_items: int = 1, wait: float = MAX_WORK_WAIT) -> WorkGrant:
        """Claim up to `max_items` items; without items when there was none for `wait` seconds (at most 20).

        lease: the membership lease, while whose renewals last the claim lasts. Raises `LeaseError` when it has ended:
        join again, and give up what was claimed under it. `HubError` as `HubClient`; the next call then also gets what
        was granted in an answer that was lost.
        """
        wait = min(max(wait, 0.0), MAX_WORK_WAIT)
        # Work granted in an answer that never came would stay claimed while this node lives: ask for it again.
        work = self._unanswered.pop() if self._unanswered else secrets.token_hex(16)
        asked = LeaseWork(lease=lease, work=work, max_items=max_items, wait=wait)
        try:
            return await self._hub.post("/v1/work/lease", asked, WorkGrant, limit=_MAX_GRANT_REPLY, wait=wait)
        except (HubError, asyncio.CancelledError):
            self._unanswered.append(work)
            raise

    async def complete(self, work: str, item: str, result: bytes, *, version: int, digest: str) -> Verdict:
        """Offer an item's result, made under `version` with `digest` (32 hex digits).

        work: the grant's id. Anything but "accepted" means that the result does not count; after "full" it may be
        offered again later. An answer that was lost may be asked for again: "duplicate" then says that it counted.
        Raises `FormatError` for a result over 4 MiB, `HubError` as `HubClient`.
        """
        offered = WorkResult(work=work, item=item, version=version, digest=digest, result=result)
        return (await self._hub.post("/v1/work/result", offered, Receipt)).verdict
