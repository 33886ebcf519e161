"""The live version meets some demands; refusals of others name the reason."""

from __future__ import annotations

import pytest

from p2psync.actor.demand import LiveState, VersionDemand, changed_during, demand_of, unmet_demand, version_span
from p2psync.errors import FormatError
from p2psync.protocol.versions import Position


def at(version: int) -> Position:
    return Position(run="r", epoch=1, version=version, digest=bytes([version]) * 16)


@pytest.mark.parametrize(
    ("headers", "live", "reason", "retry"),
    [
        ({}, 3, None, None),
        ({}, None, "not_yet", True),
        ({"P2PSync-Min-Version": "3"}, 3, None, None),
        ({"P2PSync-Min-Version": "3"}, 9, None, None),
        ({"P2PSync-Min-Version": "3"}, 2, "not_yet", True),
        ({"P2PSync-Min-Version": "0"}, None, "not_yet", True),
        ({"P2PSync-Exact-Version": "3"}, 3, None, None),
        ({"P2PSync-Exact-Version": "3"}, 2, "not_yet", True),
        ({"P2PSync-Exact-Version": "3"}, 4, "passed", False),
    ],
)
def test_a_demand_is_met_or_refused_with_the_live_version(
    headers: dict[str, str], live: int | None, reason: str | None, retry: bool | None
) -> None:
    refusal = unmet_demand(demand_of(headers), None if live is None else at(live))
    if reason is None:
        assert refusal is None
    else:
        assert refusal is not None
        assert (refusal.reason, refusal.live, refusal.retry) == (reason, live, retry)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "1" * 17, "9" * 16, "١"])
def test_a_malformed_version_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        demand_of({"P2PSync-Exact-Version": text})


def test_both_demands_at_once_are_refused() -> None:
    with pytest.raises(FormatError, match="one of them"):
        demand_of({"P2PSync-Exact-Version": "1", "P2PSync-Min-Version": "1"})


@pytest.mark.parametrize(
    ("demand", "end", "reason"),
    [
        (VersionDemand(exact=3), LiveState(position=at(3), commits=5), None),
        (VersionDemand(exact=3), LiveState(position=at(4), commits=6), "passed"),
        (VersionDemand(exact=3), LiveState(position=at(3), commits=7), "moved"),  # there and back again
        (VersionDemand(minimum=3), LiveState(position=at(4), commits=6), None),
        (VersionDemand(), LiveState(position=at(4), commits=6), None),
    ],
)
def test_a_commit_in_between_breaks_exact_demands_only(
    demand: VersionDemand, end: LiveState, reason: str | None
) -> None:
    refusal = changed_during(demand, LiveState(position=at(3), commits=5), end)
    assert (refusal and refusal.reason) == reason


def test_an_answer_names_its_first_and_last_version() -> None:
    found = version_span(LiveState(position=at(3), commits=5), LiveState(position=at(4), commits=6))
    assert (found.start_version, found.end_version, found.commits) == (3, 4, 1)
    assert (found.start_digest, found.end_digest) == ("03" * 16, "04" * 16)
