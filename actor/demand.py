"""Which version a rollout request wants, whether it can have it now, and what its answer says. Pure.

A request may carry `P2PSync-Min-Version` (this one or a later one) or `P2PSync-Exact-Version`. While that is not so it
is answered 409, with what is live, and with Retry-After if waiting may help. Every answer says the version at its start
and at its end. The start is read before the engine hears of the request and the end after it gave its last byte, each
outside of any commit, so every token was made under a version from start to end; and if `commits` is 0, all under one.
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

#: not_yet: wait for it. passed: a newer one is live here; another actor may still have it. moved: it was live at the
#: start, but a commit came before the end; ask again.
Reason = Literal["not_yet", "passed", "moved"]


class VersionDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants; None: anything."""

    minimum: int | None = None
    exact: int | None = None


class LiveReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was live at a moment without a commit, and how many commits there had been."""

    position: Position | None
    commits: int


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Under which versions an answer was made. Digests in hex. commits: during it."""

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
    """What a request's headers want. Raises `FormatError`."""
    minimum, exact = _number(headers, MIN_HEADER), _number(headers, EXACT_HEADER)
    if minimum is not None and exact is not None:
        raise FormatError(f"{MIN_HEADER} and {EXACT_HEADER}: ask for one of them")
    return VersionDemand(minimum=minimum, exact=exact)


def unmet_demand(demand: VersionDemand, live: Position | None) -> UnmetDemand | None:
    """Why the demand is not met by what is live; None if it is. Nothing is met before the first version."""
    version = None if live is None else live.version
    if version is None or (demand.minimum is not None and version < demand.minimum):
        return _refusal(demand, version, "not_yet")
    if demand.exact is not None and version != demand.exact:
        return _refusal(demand, version, "not_yet" if version < demand.exact else "passed")
    return None


def changed_during(demand: VersionDemand, start: LiveReading, end: LiveReading) -> UnmetDemand | None:
    """Why an answer that was begun rightly is not what was asked for; None if it is.

    Only an exact version can be missed, and is already when a commit came in between and was rolled back.
    """
    if demand.exact is None or end.commits == start.commits:
        return None
    version = None if end.position is None else end.position.version
    return _refusal(demand, version, "moved" if version is not None and version <= demand.exact else "passed")


def version_span(start: LiveReading, end: LiveReading) -> VersionSpan:
    """What an answer says of its versions. Both readings found a version."""
    assert start.position is not None and end.position is not None
    return VersionSpan(
        start_version=start.position.version,
        start_digest=start.position.digest.hex(),
        end_version=end.position.version,
        end_digest=end.position.digest.hex(),
        commits=end.commits - start.commits,
    )


def start_headers(start: LiveReading) -> dict[str, str]:
    """What is said when an answer begins."""
    assert start.position is not None
    return {START_VERSION: str(start.position.version), START_DIGEST: start.position.digest.hex()}


def end_headers(found: VersionSpan) -> dict[str, str]:
    """What is said when an answer's end is known before it is sent."""
    return {END_VERSION: str(found.end_version), END_DIGEST: found.end_digest, COMMITS: str(found.commits)}


def refusal_headers(refusal: UnmetDemand, after: float) -> dict[str, str]:
    """What is said with a 409. after: seconds until a version that is not there yet may be."""
    headers = {} if refusal.live is None else {LIVE_VERSION: str(refusal.live)}
    if refusal.retry:
        headers["Retry-After"] = f"{0.0 if refusal.reason == 'moved' else max(0.0, after):.0f}"
    return headers


def _refusal(demand: VersionDemand, live: int | None, reason: Reason) -> UnmetDemand:
    return UnmetDemand(reason=reason, live=live, minimum=demand.minimum, exact=demand.exact, retry=reason != "passed")


def _number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 16 or int(text) >= MAX_COUNT:
        raise FormatError(f"{name}: a version is a whole number, like 12")
    return int(text)
