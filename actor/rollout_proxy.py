"""A rollout engine that forwards requests to another server, such as vLLM's OpenAI-compatible one.

Only inference is forwarded: the routes that pause such a server or change its weights cannot be reached from outside.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import aiohttp
from yarl import URL

from p2psync.actor.rollout_server import RolloutAnswer, RolloutRequest
from p2psync.errors import EngineError, UsageError
from p2psync.net.hub_wire import NotFoundError, one_line

#: Prefixes of the paths that are forwarded.
INFERENCE_PATHS = ("/v1/",)
#: Headers that belong to one connection, or that are set again.
_NOT_FORWARDED = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"),
        *("transfer-encoding", "content-length", "content-encoding", "content-type", "host", "date", "server"),
        *("expect", "accept-encoding"),
    }
)


class ProxyEngine:
    """Forwards requests to `url`. An async context manager, or call `close`."""

    def __init__(self, url: str, *, paths: tuple[str, ...] = INFERENCE_PATHS, silence: float = 600.0) -> None:
        """paths: prefixes that are forwarded. silence: seconds without data after which the server counts as dead."""
        self._url = URL(url)
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise UsageError(f"{one_line(url)!r} is not a server's address; give one like http://127.0.0.1:8000")
        self._paths = paths
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> ProxyEngine:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def __call__(self, request: RolloutRequest) -> RolloutAnswer:
        """See `RolloutEngine`. Raises `EngineError` where the server cannot be reached."""
        if not request.path.startswith(self._paths) or "/.." in request.path:
            raise NotFoundError(f"{one_line(request.path)[:80]} is not passed on; inference is at {self._paths[0]}")
        if self._session is None:
            # Each request has a connection of its own; the rollout server limits how many there are.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = _forwarded(request.headers) | {"Accept-Encoding": "identity"}
        if "Content-Type" in request.headers:
            headers["Content-Type"] = request.headers["Content-Type"]
        target = self._url.origin().join(URL(request.path, encoded=True))
        try:
            response = await self._session.request(
                request.method, target, data=request.body or None, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineError(f"the engine at {self._url} does not answer: {one_line(str(error))}") from None
        return RolloutAnswer(
            body=_parts(response),
            status=response.status,
            content_type=response.content_type,
            headers=_forwarded(response.headers),
        )


async def _parts(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for part in response.content.iter_any():
            yield part
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise EngineError(f"the engine broke off: {one_line(str(error))}") from None
    finally:
        response.close()


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name.lower() not in _NOT_FORWARDED and not name.lower().startswith("p2psync-")
    }
