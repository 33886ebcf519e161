"""Explains, from an actor's events, why the next version is not live yet. Pure."""

from __future__ import annotations

from p2psync.observe.events import (
    CodecCompiled,
    CodecCompiling,
    Committed,
    Event,
    Fetching,
    FetchProgress,
    HubJoined,
    HubUnreachable,
    Trouble,
)
from p2psync.protocol.versions import Position


class Obstacle:
    """Follows the events of one actor and keeps what stands in its way."""

    def __init__(self, hub_url: str) -> None:
        self._hub_url = hub_url
        self._hub = f"the hub at {hub_url} has not answered yet"
        self._compiling = ""
        self._trouble = ""
        self._fetching = ""

    def hear(self, event: Event) -> None:
        """Takes one event."""
        match event:
            case HubJoined():
                self._hub = ""
            case HubUnreachable():
                self._hub = event.message
            case CodecCompiling():
                self._compiling = "the codec is still being compiled; `p2psync warm` does it beforehand"
            case CodecCompiled():
                self._compiling = ""
            case Trouble():
                self._trouble = event.message
            case Fetching():
                self._fetching = f"version {event.version} is being fetched"
            case FetchProgress():
                self._fetching = event.line()
            case Committed():
                self._trouble = self._fetching = ""

    def line(self, live: Position | None) -> str:
        """Returns one line: the live version, and why no newer one is live."""
        have = "nothing is live yet" if live is None else f"version {live.version} is live"
        why = self._hub or self._compiling or self._trouble or self._fetching
        return f"{have}; {why or f'the hub at {self._hub_url} has announced nothing newer'}"
