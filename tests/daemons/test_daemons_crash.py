"""SIGKILL at any moment, and the same command again: the swarm gets to the newest version, bit for bit."""

from __future__ import annotations

import random

import pytest
from daemon_parts import Swarm
from soak import MOMENTS, Moment, Soak


@pytest.fixture(scope="module")
def soak(shared: Swarm) -> Soak:
    """A hub, a trainer and two actors for all tests here."""
    shared.plans = True
    made = Soak(shared, random.Random(3))
    made.begin()
    return made


def test_killed_in_the_midst_of_each_kind_of_work_the_swarm_converges_again(soak: Soak) -> None:
    for _ in soak.rounds(len(MOMENTS)):
        pass
    assert set(soak.interrupted) == set(MOMENTS), "each interrupted what it was to interrupt"
    assert sorted(soak.told) == list(range(len(soak.told))), "no version is missing"


def test_a_soak_fails_if_the_event_that_it_kills_at_does_not_come(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "limit", 0.5)
    with pytest.raises(AssertionError, match="no PeerBanned"):
        soak.one(Moment("trainer", "PeerBanned"))


def test_a_soak_fails_if_its_kills_interrupt_nothing(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "most_late", 1)
    monkeypatch.setattr("soak.LATER", 0.0)
    with pytest.raises(AssertionError, match="1 kills of two at Committed came too late"):
        soak.one(Moment("two", "Committed", undone=("two",)))
