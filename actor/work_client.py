"""The actor's client of the rollout ledger: leases work and hands in results."""

from __future__ import annotations

import asyncio
import random
import secrets

import zstandard

from p2psync.errors import FormatError, HubError, LeaseError
from p2psync.membership.work import (
    MAX_GRANT_BYTES,
    MAX_RESULT_BYTES,
    MAX_WORK_WAIT_SECONDS,
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

#: Maximum bytes of a grant's answer: its payloads in base64, and the rest.
_MAX_GRANT_REPLY = MAX_GRANT_BYTES // 3 * 4 + (1 << 20)
#: Results of at least this many bytes are compressed, if that saves a tenth.
_MIN_PACKED_BYTES = 4 << 10
#: Results of at least this many bytes are sent only once the ledger wants them (Expect: 100-continue).
_MIN_EXPECT_BYTES = 64 << 10
#: First and longest pause between tries (seconds). A try waits between half the pause and all of it, at random.
RETRY_MIN_SECONDS, RETRY_MAX_SECONDS = 0.25, 8.0
_SERVER_ERRORS = frozenset({500, 502, 503, 504})


class BusyError(HubError):
    """The ledger is full, or cannot write to its disk: offer the result again after `after` seconds."""

    def __init__(self, message: str, after: float) -> None:
        super().__init__(message)
        self.after = after


class WorkClient:
    """A client of the ledger at a hub's address, over the hub's client, which the caller closes."""

    def __init__(self, hub: HubClient, *, pack: bool = True) -> None:
        """pack: compress results. Takes 3 ms of CPU time a MB; tokens and probabilities shrink by a third."""
        self._hub = hub
        self._pack = pack
        self._unanswered: list[str] = []

    async def lease(
        self, lease: str, max_items: int = 1, wait: float = MAX_WORK_WAIT_SECONDS, version: int | None = None
    ) -> WorkGrant:
        """Claims up to `max_items` items; returns none if there was none for `wait` seconds (at most 20).

        lease: the membership lease; the claim lasts while it is renewed. version: the policy that would be used. Raises
        `LeaseError` when the lease has ended: join again, and give up what was claimed under it. Raises `HubError` as
        `HubClient` does, and retries nothing; the next call also gets the work that a lost answer granted.
        """
        wait = min(max(wait, 0.0), MAX_WORK_WAIT_SECONDS)
        # Work granted in a lost answer would stay claimed while this node lives: ask for it again.
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
        """Offers an item's result once, and returns the ledger's verdict.

        work: the grant's id. version, digest (32 hex digits): under which the result was made. tokens: their number.
        Only "accepted" means that the result counts; after "full" it may be offered again later. After a lost answer it
        may be offered again too: "duplicate" then means that it counted. Raises `FormatError` for a result over 4 MiB,
        `HubError` as `HubClient` does.
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
        timeout_seconds: float = 120.0,
    ) -> Receipt:
        """Offers a result until the ledger answers: also while the ledger is full, restarts, or cannot be reached.

        Offers it again after the ledger's Retry-After, or after pauses that double. It gives up after
        `timeout_seconds`. Raises as `complete`; the result may count nevertheless.
        """
        body, packed = await self._prepare(result)
        head = ResultHead(work=work, item=item, version=version, digest=digest, tokens=tokens, packed=packed)
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + timeout_seconds, RETRY_MIN_SECONDS
        while True:
            try:
                return await self._offer(head, body)
            except HubError as error:
                after = error.after if isinstance(error, BusyError) else 0.0
                wait = max(after, pause) * random.uniform(0.5, 1.0) if after == 0 else after + random.uniform(0, pause)
                if loop.time() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            pause = min(RETRY_MAX_SECONDS, 2 * pause)

    async def _prepare(self, result: bytes) -> tuple[bytes, bool]:
        if len(result) > MAX_RESULT_BYTES:
            raise FormatError(f"a result of {len(result)} bytes; at most {MAX_RESULT_BYTES} are taken")
        if not self._pack or len(result) < _MIN_PACKED_BYTES:
            return result, False
        packed = await asyncio.to_thread(lambda: zstandard.ZstdCompressor(level=1).compress(result))
        return (packed, True) if len(packed) < 0.9 * len(result) else (result, False)

    async def _offer(self, head: ResultHead, body: bytes) -> Receipt:
        headers = {RESULT_HEADER: encode_head(head), "Content-Type": "application/octet-stream"}
        answer = await self._hub.exchange(
            "POST", "/v1/work/result", body, headers=headers, limit=MAX_REPLY, expect=len(body) >= _MIN_EXPECT_BYTES
        )
        if answer.status == 200:
            return decode(answer.body, Receipt, f"the answer of {self._hub.url}", HubError)
        if answer.status == 429:
            raise BusyError(f"the ledger at {self._hub.url} is full now", _seconds(answer))
        error = decode_error(answer.body, answer.status, str(self._hub.url))
        if answer.status in _SERVER_ERRORS:
            raise BusyError(str(error), _seconds(answer)) from error
        raise error


def _seconds(answer: HubReply) -> float:
    """Returns the seconds of the answer's Retry-After, within bounds; the ledger sends no dates."""
    try:
        return min(max(float(answer.retry_after), 0.0), 60.0)
    except ValueError:
        return RETRY_MIN_SECONDS
