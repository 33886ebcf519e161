"""A trainer reports members that run another run."""

from __future__ import annotations

from p2psync.membership.records import Member, NodeInfo, Role
from p2psync.trainer.other_runs import OtherRuns

OLDER, OWN, NEWER = ("01a221f19048" + "a" * 20, "01a221f1a064" + "b" * 20, "01a221f1b0ff" + "c" * 20)


def member(run: str, version: int | None = 3, *, epoch: int = 1, role: Role = "actor") -> Member:
    digest = "" if version is None else "d" * 32
    return Member(info=NodeInfo(node="a" * 32, role=role), version=version, digest=digest, run=run, epoch=epoch)


def test_other_runs_hides_versions_of_older_runs_and_members_of_newer_ones() -> None:
    seen = OtherRuns(OWN, 2).without_other_runs(
        [member(OWN), member(OLDER), member(NEWER), member("", None), member("", 5)]
    )
    assert [(m.run, m.version) for m in seen] == [(OWN, 3), ("", None), ("", None), ("", 5)]


def test_other_runs_keeps_trainers_of_any_run() -> None:
    (seen,) = OtherRuns(OWN, 2).without_other_runs([member(NEWER, role="trainer")])
    assert seen.version is None


def test_other_runs_warns_of_actors_ahead_once_and_again_when_they_double() -> None:
    trainer = OtherRuns(OWN, 2)
    assert (
        trainer.warning([member(OWN), member(OLDER, epoch=9), member(NEWER, role="trainer"), member("", None)]) is None
    )
    told = [trainer.warning([member(NEWER)] * count) for count in (1, 1, 2, 3, 4, 4)]
    assert [event and event.actors for event in told] == [1, None, 2, None, 4, None]
    assert trainer.warning([]) is None
    again = trainer.warning([member(NEWER)])
    assert again is not None and again.line() == (
        "1 actor follows run 01a221f1b0ff (created 2026-11-28 11:36:57 UTC), which is newer than run 01a221f1a064"
        " (created 2026-11-28 11:36:53 UTC) of this trainer: its versions are not taken there; to have all take them,"
        " start this trainer with --supersede 01a221f1b0ff, to have some, start those with --follow-run 01a221f1a064"
    )


def test_other_runs_warns_of_a_later_epoch_of_the_same_run() -> None:
    event = OtherRuns(OWN, 2).warning([member(OWN, epoch=3), member(OWN, epoch=2)])
    assert event is not None and event.actors == 1
    assert "epoch 3 of this run, and this trainer is at 2, of an older store" in event.line()
    assert f"--supersede {OWN[:12]}" in event.line() and "--follow-run" not in event.line()
