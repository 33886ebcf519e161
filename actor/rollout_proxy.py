"""An engine that is another server, such as vLLM's OpenAI-compatible one: requests are passed on, answers as they come.

Only inference is passed on: the routes by which such a server is paused or its weights are changed are not reached
from outside.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

import aiohttp
from yarl import URL

from p2psync.actor.rollout_server import RolloutAnswer, RolloutRequest
from p2psync.errors import EngineError, UsageError
from p2psync.net.hub_wire import NotFoundError, one_line

#: Paths that begin so are passed on.
INFERENCE_PATHS = ("/v1/",)
#: Headers that belong to one connection, or that are made anew.
_OWN = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"),
        *("transfer-encoding", "content-length", "content-encoding", "content-type", "host", "date", "server"),
        *("expect", "accept-encoding"),
    }
)


class ProxyEngine:
    """Passes requests on to `url`. An async context manager, or `close` it."""

    def __init__(self, url: str, *, paths: tuple[str, ...] = INFERENCE_PATHS, silence: float = 600.0) -> None:
        """paths: what is passed on begins with one of these. silence: seconds for which the server may say nothing."""
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

    async def __call__(self, asked: RolloutRequest) -> RolloutAnswer:
        """See `RolloutEngine`. Raises `EngineError` where the server cannot be reached."""
        if not asked.path.startswith(self._paths) or "/.." in asked.path:
            raise NotFoundError(f"{one_line(asked.path)[:80]} is not passed on; inference is at {self._paths[0]}")
        if self._session is None:
            # Each request is a connection of its own while it lasts: the face bounds how many there are.
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        headers = _passed(asked.headers) | {"Accept-Encoding": "identity"}
        if "Content-Type" in asked.headers:
            headers["Content-Type"] = asked.headers["Content-Type"]
        target = self._url.origin().join(URL(asked.path, encoded=True))
        try:
            response = await self._session.request(
                asked.method, target, data=asked.body or None, headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineError(f"the engine at {self._url} does not answer: {one_line(str(error))}") from None
        return RolloutAnswer(
            body=_parts(response),
            status=response.status,
            content_type=response.content_type,
            headers=_passed(response.headers),
        )


async def _parts(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for part in response.content.iter_any():
            yield part
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise EngineError(f"the engine broke off: {one_line(str(error))}") from None
    finally:
        response.close()


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name.lower() not in _OWN and not name.lower().startswith("p2psync-")
    }
