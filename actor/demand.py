"""The version that a rollout request demands, whether it is live, and the headers of the answer. Pure.

A request may carry `P2PSync-Min-Version` (this version or a later one) or `P2PSync-Exact-Version`. If the live version
does not meet it, the answer is 409, with the live version, and with Retry-After if waiting may help. Every answer names
the version at its start and at its end. The start is read before the engine gets the request, and the end after the
engine's last byte, both outside of any commit. So every token was made under a version from start to end; and if
`commits` is 0, all tokens under one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from p2psync.errors import FormatError
from p2psync.membership.checks import MAX_COUNT
from p2psync.protocol.versions import Position

MIN_HEADER, EXACT_HEADER = "P2PSync-Min-Version", "P2PSync-Exact-Version"
START_VERSION, START_DIGEST = "P2PSync-Start-Version", "P2PSync-Start-Digest"
END_VERSION, END_DIGEST = "P2PSync-End-Version", "P2PSync-End-Digest"
COMMITS = "P2PSync-Commits"
LIVE_VERSION = "P2PSync-Live-Version"

#: not_yet: the version is not live yet; wait. passed: a newer one is live here; another actor may still have it.
#: moved: it was live at the start, but a commit came before the end; ask again.
Reason = Literal["not_yet", "passed", "moved"]


class VersionDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that a request accepts: `minimum` or later, or `exact`; None: any."""

    minimum: int | None = None
    exact: int | None = None


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The live version at a time outside of any commit, and the number of commits so far."""

    position: Position | None
    commits: int


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The versions under which an answer was made. Digests in hex. commits: number of commits during the answer."""

    start_version: int
    start_digest: str
    end_version: int
    end_digest: str
    commits: int


class UnmetDemand(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a 409. live: None before the first version. retry: whether the same actor may be asked again."""

    error: str = "version_unmet"
    reason: Reason
    live: int | None
    minimum: int | None
    exact: int | None
    retry: bool


def demand_of(headers: Mapping[str, str]) -> VersionDemand:
    """Reads a request's demand from its headers. Raises `FormatError`."""
    minimum, exact = _version_number(headers, MIN_HEADER), _version_number(headers, EXACT_HEADER)
    if minimum is not None and exact is not None:
        raise FormatError(f"{MIN_HEADER} and {EXACT_HEADER}: ask for one of them")
    return VersionDemand(minimum=minimum, exact=exact)


def unmet_demand(demand: VersionDemand, live: Position | None) -> UnmetDemand | None:
    """Returns why the live version does not meet the demand; None if it does. Without a live version none is met."""
    version = None if live is None else live.version
    if version is None or (demand.minimum is not None and version < demand.minimum):
        return _refusal(demand, version, "not_yet")
    if demand.exact is not None and version != demand.exact:
        return _refusal(demand, version, "not_yet" if version < demand.exact else "passed")
    return None


def changed_during(demand: VersionDemand, start: LiveState, end: LiveState) -> UnmetDemand | None:
    """Returns why an answer that started under the right version does not meet the demand; None if it does.

    Only a demand for an exact version can fail: by any commit in between, even one that was rolled back.
    """
    if demand.exact is None or end.commits == start.commits:
        return None
    version = None if end.position is None else end.position.version
    return _refusal(demand, version, "moved" if version is not None and version <= demand.exact else "passed")


def version_span(start: LiveState, end: LiveState) -> VersionSpan:
    """Returns the versions of an answer. Both readings have a version."""
    assert start.position is not None and end.position is not None
    return VersionSpan(
        start_version=start.position.version,
        start_digest=start.position.digest.hex(),
        end_version=end.position.version,
        end_digest=end.position.digest.hex(),
        commits=end.commits - start.commits,
    )


def start_headers(start: LiveState) -> dict[str, str]:
    """Returns the headers that are known when an answer starts."""
    assert start.position is not None
    return {START_VERSION: str(start.position.version), START_DIGEST: start.position.digest.hex()}


def end_headers(found: VersionSpan) -> dict[str, str]:
    """Returns the headers of an answer whose end is known before it is sent."""
    return {END_VERSION: str(found.end_version), END_DIGEST: found.end_digest, COMMITS: str(found.commits)}


def refusal_headers(refusal: UnmetDemand, after: float) -> dict[str, str]:
    """Returns the headers of a 409. after: seconds until the demanded version may be live."""
    headers = {} if refusal.live is None else {LIVE_VERSION: str(refusal.live)}
    if refusal.retry:
        headers["Retry-After"] = f"{0.0 if refusal.reason == 'moved' else max(0.0, after):.0f}"
    return headers


def _refusal(demand: VersionDemand, live: int | None, reason: Reason) -> UnmetDemand:
    return UnmetDemand(reason=reason, live=live, minimum=demand.minimum, exact=demand.exact, retry=reason != "passed")


def _version_number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) >= MAX_COUNT:
        raise FormatError(f"{name}: a version is a whole number, like 12")
    return int(text)
