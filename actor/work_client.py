"""The actor's side of the rollout ledger: leases of work, and results."""

from __future__ import annotations

import asyncio
import random
import secrets

import zstandard

from p2psync.errors import FormatError, HubError, LeaseError
from p2psync.membership.work import (
    MAX_GRANT_BYTES,
    MAX_RESULT_BYTES,
    MAX_WORK_WAIT,
    RESULT_HEADER,
    LeaseWork,
    Receipt,
    ResultHead,
    Verdict,
    WorkGrant,
    encode_head,
)
from p2psync.net.hub_client import HubClient, HubReply
from p2psync.net.hub_wire import MAX_REPLY, decode, decode_error

#: A grant's payloads in base64, and what stands around them.
_MAX_GRANT_REPLY = MAX_GRANT_BYTES // 3 * 4 + (1 << 20)
#: Results from so many bytes on are packed, if that saves a tenth, and sent only once the ledger wants them.
_PACK_FROM = 4 << 10
_EXPECT_FROM = 64 << 10
#: Pauses between tries (seconds): the first, and the longest; each is drawn from half of it to all.
RETRY_FIRST, RETRY_LAST = 0.25, 8.0
_SERVER_ERRORS = frozenset({500, 502, 503, 504})


class BusyError(HubError):
    """The ledger has no room now, or cannot write to its disk: offer the result again after `after` seconds."""

    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


class WorkClient:
    """Speaks to the ledger at a hub's address, over the hub's client, whose life is the caller's."""

    def __init__(self, hub: HubClient, *, pack: bool = True) -> None:
        """pack: compress results on their way. 3 ms of processor time a MB; tokens and their probabilities shrink by
        a third."""
        self._hub = hub
        self._pack = pack
        self._unanswered: list[str] = []

    async def lease(
        self, lease: str, max_items: int = 1, wait: float = MAX_WORK_WAIT, version: int | None = None
    ) -> WorkGrant:
        """Claim up to `max_items` items; without items when there was none for `wait` seconds (at most 20).

        lease: the membership lease, while whose renewals last the claim lasts. version: the policy that would be used.
        Raises `LeaseError` when the lease has ended: join again, and give up what was claimed under it. `HubError` as
        `HubClient`; the next call then also gets what was granted in an answer that was lost. Nothing is retried.
        """
        wait = min(max(wait, 0.0), MAX_WORK_WAIT)
        # Work granted in an answer that never came would stay claimed while this node lives: ask for it again.
        work = self._unanswered.pop() if self._unanswered else secrets.token_hex(16)
        asked = LeaseWork(lease=lease, work=work, max_items=max_items, wait=wait, version=version)
        try:
            return await self._hub.post("/v1/work/lease", asked, WorkGrant, limit=_MAX_GRANT_REPLY, wait=wait)
        except LeaseError:
            raise  # nothing was granted
        except (HubError, asyncio.CancelledError):
            self._unanswered.append(work)
            raise

    async def complete(
        self, work: str, item: str, result: bytes, *, version: int, digest: str, tokens: int = 0
    ) -> Verdict:
        """Offer an item's result once, made under `version` with `digest` (32 hex digits), of `tokens` tokens.

        work: the grant's id. Anything but "accepted" means that the result does not count; after "full" it may be
        offered again later. An answer that was lost may be asked for again: "duplicate" then says that it counted.
        Raises `FormatError` for a result over 4 MiB, `HubError` as `HubClient`.
        """
        body, packed = await self._prepare(result)
        head = ResultHead(work=work, item=item, version=version, digest=digest, tokens=tokens, packed=packed)
        try:
            return (await self._offer(head, body)).verdict
        except BusyError as busy:
            if busy.__cause__ is not None:
                raise
            return "full"

    async def deliver(
        self,
        work: str,
        item: str,
        result: bytes,
        *,
        version: int,
        digest: str,
        tokens: int = 0,
        patience: float = 120.0,
    ) -> Receipt:
        """Offer a result until the ledger has said what became of it: while it is full, restarts, or cannot be reached.

        It is offered again when the ledger says (Retry-After), or after pauses that double. patience: seconds after
        which it is given up. Raises as `complete`; then the result may count nevertheless.
        """
        body, packed = await self._prepare(result)
        head = ResultHead(work=work, item=item, version=version, digest=digest, tokens=tokens, packed=packed)
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + patience, RETRY_FIRST
        while True:
            try:
                return await self._offer(head, body)
            except HubError as error:
                after = error.after if isinstance(error, BusyError) else 0.0
                wait = max(after, pause) * random.uniform(0.5, 1.0) if after == 0 else after + random.uniform(0, pause)
                if loop.time() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            pause = min(RETRY_LAST, 2 * pause)

    async def _prepare(self, result: bytes) -> tuple[bytes, bool]:
        if len(result) > MAX_RESULT_BYTES:
            raise FormatError(f"a result of {len(result)} bytes; at most {MAX_RESULT_BYTES} are taken")
        if not self._pack or len(result) < _PACK_FROM:
            return result, False
        packed = await asyncio.to_thread(lambda: zstandard.ZstdCompressor(level=1).compress(result))
        return (packed, True) if len(packed) < 0.9 * len(result) else (result, False)

    async def _offer(self, head: ResultHead, body: bytes) -> Receipt:
        headers = {RESULT_HEADER: encode_head(head), "Content-Type": "application/octet-stream"}
        answer = await self._hub.exchange(
            "POST", "/v1/work/result", body, headers=headers, limit=MAX_REPLY, expect=len(body) >= _EXPECT_FROM
        )
        if answer.status == 200:
            return decode(answer.body, Receipt, f"the answer of {self._hub.url}", HubError)
        if answer.status == 429:
            raise BusyError(f"the ledger at {self._hub.url} has no room for results now", _seconds(answer))
        error = decode_error(answer.body, answer.status, str(self._hub.url))
        if answer.status in _SERVER_ERRORS:
            raise BusyError(str(error), _seconds(answer)) from error
        raise error


def _seconds(answer: HubReply) -> float:
    """What the answer's Retry-After says, within bounds; dates are not used here."""
    try:
        return min(max(float(answer.retry_after), 0.0), 60.0)
    except ValueError:
        return RETRY_FIRST
