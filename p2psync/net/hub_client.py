"""The hub's client: one method per request; every wait and every reply is bounded; no retries."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Self, TypeVar

import aiohttp
import msgspec
from aiohttp.abc import ResolveResult
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.errors import FormatError, HubError, UsageError
from p2psync.membership.records import (
    Announce,
    Announced,
    Challenge,
    Claimed,
    Join,
    Lease,
    Leave,
    NodeInfo,
    NodeStatistics,
    Renew,
    RunClaim,
    Status,
    View,
    claim_bytes,
)
from p2psync.net.addresses import check_url as check_url
from p2psync.net.dialling import ATTEMPT_DELAY_SECONDS
from p2psync.net.hub_wire import (
    CLAIM_HEADER,
    MAX_ANNOUNCE_BATCH,
    MAX_LONG_POLL_SECONDS,
    MAX_MANIFEST_REPLY,
    MAX_PLAN_REPLY,
    MAX_REFUSAL,
    MAX_REPLY,
    MAX_VIEW_REPLY,
    PACKED,
    decode,
    decode_error,
    one_line,
    read_bounded,
    unpack,
)
from p2psync.protocol.plan import NodePlan
from p2psync.protocol.wire import encode_json

#: The slowest rate (bytes a second) that a large body may have: one second of extra time for this many bytes.
_MIN_BYTES_PER_SECOND = 1 << 20

_JSON = {"Content-Type": "application/json"}
_NOTHING: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")


class HubReply(NamedTuple):
    """The hub's reply. retry_after: that header's value, "" without it."""

    status: int
    body: bytes
    retry_after: str


class HubClient:
    """Sends requests to the hub at `url`. An async context manager; use it on one loop.

    Every method raises `HubError` when the hub cannot be reached, does not reply in time, or sends a malformed reply;
    `TrustError` for a wrong join token; and the errors that its own docstring names. Nothing is retried.
    """

    def __init__(
        self, url: str, token: str | None = None, timeout: float = 10.0, *, tls: ssl.SSLContext | None = None
    ) -> None:
        """url: `http://host:port` or `https://host:port`. timeout: seconds for one request, beyond the time that it
        asks the hub to wait.

        tls: how to verify an https hub; None: the system's way. Raises `UsageError` for a malformed url.
        """
        self.url = check_url(url)
        self._timeout = timeout
        self._tls = tls
        self._headers = {"Accept-Encoding": "identity"}
        if token is not None:
            if not token.isprintable() or not token.isascii():
                raise UsageError("a join token is printable ASCII")
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; requests in flight end with `HubError`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def join(
        self, info: NodeInfo, version: int | None = None, digest: str = "", *, run: str = "", epoch: int = 0
    ) -> Lease:
        """Become a member. Raises `FormatError` for data out of bounds, `HubError` also when the hub is full."""
        body = Join(info=info, version=version, digest=digest, run=run, epoch=epoch)
        return await self.post("/v1/join", body, Lease)

    async def renew(
        self,
        lease: str,
        version: int | None = None,
        digest: str = "",
        *,
        run: str = "",
        epoch: int = 0,
        waits: str = "",
        fetch_rate: int = 0,
        statistics: NodeStatistics | None = None,
        rejected: str = "",
        limit: float = float("inf"),
    ) -> Lease:
        """Renews a lease, and reports the live version and the other fields of `Renew` (statistics None: unchanged).

        limit: seconds to wait for the reply, if less than the client's timeout. Raises `LeaseError` when the lease has
        ended: join again.
        """
        body = Renew(
            lease=lease,
            version=version,
            digest=digest,
            run=run,
            epoch=epoch,
            waits=waits,
            fetch_rate=fetch_rate,
            statistics=statistics,
            rejected=rejected,
        )
        try:
            async with asyncio.timeout(limit if limit < self._timeout else None):
                return await self.post("/v1/renew", body, Lease)
        except TimeoutError:
            raise HubError(f"the hub at {self.url} did not renew the lease within {limit:.1f} s") from None

    async def leave(self, lease: str) -> None:
        """Ends a lease. Raises `LeaseError` when it has ended before."""
        await self.post("/v1/leave", Leave(lease=lease), dict[str, str])

    async def challenge(self) -> Challenge:
        """Requests a nonce for one claim."""
        return self._decode(await self.get("/v1/challenge", MAX_REPLY), Challenge, "/v1/challenge")

    async def claim(
        self,
        key: Ed25519PrivateKey,
        *,
        node: str,
        run: str,
        epoch: int,
        take_over: bool = False,
        nonce: str = "",
    ) -> Claimed:
        """Takes the run over at `epoch`, signing with `key`.

        take_over: see `RunClaim`. nonce: of this process's own hub (`HubService.own_nonce`); "": request one. Raises
        `TrustError` when the hub does not trust the key, `FencedError` when another claim outranks this one.
        """
        nonce = nonce or (await self.challenge()).nonce
        public = key.public_key().public_bytes_raw().hex()
        claim = RunClaim(node=node, run=run, epoch=epoch, nonce=nonce, key=public, take_over=take_over)
        claim = msgspec.structs.replace(claim, signature=key.sign(claim_bytes(claim)).hex())
        return await self.post("/v1/claim", claim, Claimed)

    async def announce(
        self,
        token: str,
        manifests: Sequence[bytes] = (),
        retire: Sequence[str] = (),
        note: str = "",
        co_publishers: Sequence[str] | None = None,
    ) -> int:
        """Retires ids (hex), then adds signed manifests, and sets the status note; returns the view's revision.

        co_publishers: see `Announce`. Sends one request, all or nothing, unless the manifests exceed 95 MiB: then
        several, in order. Raises `FencedError` when another trainer has claimed the run, `LeaseError` when the hub does
        not know the token (claim again), `TrustError`, `ReplayError`, `FormatError`, `UsageError` or
        `BaseMismatchError` for a manifest that is refused, `LineageFullError` when the lineage is full.
        """
        revision = 0
        for batch in _batches(manifests):
            nodes = None if co_publishers is None else list(co_publishers)
            body = Announce(token=token, manifests=batch, retire=list(retire), note=note, co_publishers=nodes)
            retire = ()
            headers = {CLAIM_HEADER: token}
            revision = (await self.post("/v1/announce", body, Announced, headers=headers)).revision
        return revision

    async def view(
        self, instance: str = "", revision: int = -1, wait: float = 0.0, lease: str = "", *, changes: bool = False
    ) -> View:
        """Long-polls the view: returns at once if it differs from `revision` of `instance`, otherwise after a change.

        wait: seconds after which the view is returned in any case, at most 30. lease: the caller's lease, if it has
        one: if the caller is killed while it waits, the hub plans without it. changes: accept only the changes since
        `revision`; see `View.since`.
        """
        wait = min(max(wait, 0.0), MAX_LONG_POLL_SECONDS)
        query = {"instance": instance, "revision": str(revision), "wait": f"{wait:.3f}"}
        if lease:
            query["lease"] = lease
        if changes:
            query["changes"] = "1"
        headers = {"Accept-Encoding": PACKED}
        body = await self.get("/v1/view", MAX_VIEW_REPLY, query=query, headers=headers, wait=wait)
        return self._decode(unpack(body, MAX_VIEW_REPLY), View, "/v1/view")

    async def plan(self, lease: str) -> NodePlan:
        """Fetches the part of the plan of the node that holds `lease`.

        Raises `LeaseError` when the lease has ended, `HubError` also when there is no plan yet.
        """
        body = await self.get("/v1/plan", MAX_PLAN_REPLY, query={"lease": lease})
        return self._decode(body, NodePlan, "/v1/plan")

    async def manifest(self, manifest_id: str, max_bytes: int = MAX_MANIFEST_REPLY) -> bytes:
        """Fetches a signed manifest of the lineage by its id (hex), unverified: pass it to `open_signed`, and compare
        its id.

        max_bytes: bound on the reply, best the announcement's `manifest_bytes`. Raises `HubError` also when the lineage
        does not hold the manifest.
        """
        if not manifest_id.isalnum() or not manifest_id.isascii():
            raise UsageError("a manifest's id is 64 hex digits")
        return await self.get(f"/v1/manifests/{manifest_id}", min(max_bytes, MAX_MANIFEST_REPLY))

    async def status(self) -> Status:
        """Fetches the view and every member's age, for people."""
        return self._decode(await self.get("/v1/status", MAX_VIEW_REPLY), Status, "/v1/status")

    async def get(
        self,
        path: str,
        limit: int,
        *,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        wait: float = 0.0,
    ) -> bytes:
        """GET `path`: returns the reply's body, at most `limit` bytes. wait: seconds that the hub may take before it
        replies."""
        return await self._request("GET", path, None, query or {}, headers or {}, limit, wait)

    async def post(
        self,
        path: str,
        message: object,
        kind: type[T],
        *,
        limit: int = MAX_REPLY,
        wait: float = 0.0,
        headers: dict[str, str] | None = None,
    ) -> T:
        """POST a struct to `path`, and decode the reply as `kind`. limit (bytes) and wait (seconds): as in `get`."""
        body = encode_json(message)
        answer = await self._request("POST", path, body, {}, _JSON | (headers or {}), limit, wait)
        return self._decode(answer, kind, path)

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        *,
        query: Mapping[str, str] = _NOTHING,
        headers: Mapping[str, str] = _NOTHING,
        limit: int = MAX_REPLY,
        wait: float = 0.0,
        expect: bool = False,
    ) -> HubReply:
        """Sends one request and returns its reply, whatever its status. expect: send the body only once the hub agrees
        (100-continue).

        Raises `HubError` when there is no reply, or one over `limit` bytes.
        """
        seconds = self._timeout + wait + max(len(body or b""), limit) / _MIN_BYTES_PER_SECOND
        try:
            async with self._opened().request(
                method,
                self.url / path.removeprefix("/"),
                params=query,
                data=None if body is None else io.BytesIO(body),  # written in pieces, for the loop
                headers=headers,
                allow_redirects=False,
                expect100=expect,
                timeout=aiohttp.ClientTimeout(
                    total=seconds, sock_connect=self._timeout, sock_read=self._timeout + wait
                ),
            ) as response:
                status = response.status
                answer = await read_bounded(response.content.iter_any(), limit if status == 200 else MAX_REFUSAL)
        except TimeoutError:
            raise HubError(f"the hub at {self.url} did not answer in time; is the network up?") from None
        except aiohttp.ClientResponseError:
            raise HubError(
                f"{self.url} answers, but not as a hub does: is that the port of the swarm? A hub serves at 7070 unless"
                " told otherwise"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise HubError(f"the hub at {self.url} cannot be reached: {_cause(error)}; is it running there?") from None
        if answer is None:
            raise HubError(f"the answer of {self.url} to {path} is over its bound of {limit} bytes; is that a hub?")
        return HubReply(status, answer, response.headers.get("Retry-After", ""))

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        query: dict[str, str],
        headers: dict[str, str],
        limit: int,
        wait: float,
    ) -> bytes:
        answer = await self.exchange(method, path, body, query=query, headers=headers, limit=limit, wait=wait)
        if answer.status != 200:
            raise decode_error(answer.body, answer.status, str(self.url))
        return answer.body

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._tls if self._tls is not None else True,
                resolver=_SystemResolver(),
                happy_eyeballs_delay=ATTEMPT_DELAY_SECONDS,
                interleave=1,
            )
            self._session = aiohttp.ClientSession(
                connector=connector, headers=self._headers, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    def _decode(self, body: bytes, kind: type[T], path: str) -> T:
        return decode(body, kind, f"the answer of {self.url} to {path}", HubError)


class _SystemResolver(aiohttp.ThreadedResolver):
    """Resolves names also on a machine that has only loopback addresses, where aiohttp's resolver finds none
    (`AI_ADDRCONFIG`)."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Returns the addresses of a host, in the system's order. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = []
        for kind, _, number, _, address in await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM):
            text = str(address[0])
            if len(address) == 4 and address[3] and "%" not in text:
                text = f"{text}%{address[3]}"
            found.append(
                ResolveResult(
                    hostname=host, host=text, port=port, family=kind, proto=number, flags=socket.AI_NUMERICHOST
                )
            )
        return found


def _cause(error: Exception) -> str:
    """Returns why a connection failed, for people: the system's message, without the client library's own."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({one_line(str(error.certificate_error))})"
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(inner, OSError) and inner.errno and not isinstance(inner, socket.gaierror | ssl.SSLError):
        return os.strerror(inner.errno)
    text = (inner.strerror if isinstance(inner, socket.gaierror) else None) or str(inner) or type(error).__name__
    return one_line(text.removeprefix("Multiple exceptions: "))


def _batches(manifests: Sequence[bytes]) -> list[list[bytes]]:
    """Splits manifests, in order, into as few batches as possible of at most `MAX_ANNOUNCE_BATCH` bytes; one empty
    batch if there are none."""
    batches: list[list[bytes]] = [[]]
    left = MAX_ANNOUNCE_BATCH
    for data in manifests:
        if len(data) > MAX_ANNOUNCE_BATCH:
            raise FormatError(f"a manifest of {len(data)} bytes is over the limit of {MAX_ANNOUNCE_BATCH}")
        if len(data) > left:
            batches.append([])
            left = MAX_ANNOUNCE_BATCH
        batches[-1].append(data)
        left -= len(data)
    return batches
