"""Drawn histories of dying, lying and repeating actors and a trainer that is killed; `p2psync sim ledger` runs more."""

from __future__ import annotations

import pytest

from p2psync.bench.rollouts.faults import simulate, sweep
from p2psync.bench.rollouts.world import LedgerTrainer
from p2psync.trainer.ledger.core import Ledger


def test_every_prompt_is_answered_once_per_step_under_faults() -> None:
    told: list[str] = []
    swept = sweep(range(80), told.append)
    assert not told
    assert swept.failed == 0
    assert min(swept.deaths, swept.restarts, swept.cuts, swept.hedged) > 50
    assert set(swept.verdicts) == {"accepted", "duplicate", "late", "stale", "unknown_version", "wrong_digest", "full"}


def test_the_same_seed_is_the_same_history() -> None:
    assert simulate(7) == simulate(7)


def broken(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, instead: object) -> list[str]:
    """Returns the failures that the simulation reports with `kind.name` replaced by `instead`."""
    monkeypatch.setattr(kind, name, instead)
    told: list[str] = []
    sweep(range(40), told.append)
    return told


def test_a_ledger_that_accepts_stale_or_forged_results_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(self: Ledger, lease: str, item: str, *_rest: object) -> str:
        claim = self._claims.by_lease.get(lease)
        return "accepted" if claim is not None and self._items.numbers.get(item) in claim.items else "duplicate"

    assert broken(monkeypatch, Ledger, "_judge", judge)


def test_a_trainer_that_forgets_its_steps_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(monkeypatch, Ledger, "resume", lambda self, committed=None: self.hand_back())


def test_an_acknowledgement_before_durability_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(monkeypatch, LedgerTrainer, "_when_durable", lambda self, call: call())
