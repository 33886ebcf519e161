"""A follower's states: every one leads back to rest, and the documented table is the one in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p2psync.swarm.synchronizer.states import INTERRUPTIBLE, STAGING, TRANSITIONS, SyncEvent, SyncState

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "life-of-a-version.md"


def test_every_state_is_reached_from_idle() -> None:
    reached = {SyncState.IDLE}
    for _ in SyncState:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(SyncState)


@pytest.mark.parametrize("state", sorted(set(SyncState) - {SyncState.IDLE}, key=lambda state: state.value))
def test_an_attempt_that_is_given_up_ends_in_idle_from_every_state(state: SyncState) -> None:
    assert TRANSITIONS[state, SyncEvent.GIVEN_UP] is SyncState.IDLE


def test_an_attempt_is_never_interrupted_in_a_commit() -> None:
    assert {SyncState.OPEN, SyncState.FETCH} == STAGING < INTERRUPTIBLE
    assert {SyncState.IDLE, SyncState.COMMIT} == set(SyncState) - INTERRUPTIBLE


def test_the_page_lists_every_transition() -> None:
    section = PAGE.read_text().split("## An actor's states")[1].split("\n## ")[0]
    listed: set[tuple[str, str]] = set()
    states = ""
    for row in re.findall(r"^\| ?([A-Z, ]*) ?\|.*\| ([A-Z]+) \|$", section, re.M):
        states = row[0].strip() or states
        listed |= {(state.strip(), row[1]) for state in states.split(",")}
    assert listed == {(before.name, after.name) for (before, _), after in TRANSITIONS.items()}
