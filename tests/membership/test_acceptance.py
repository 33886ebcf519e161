"""Version acceptance: the effects of actors' rejections, and of their silence."""

from __future__ import annotations

from p2psync.membership.acceptance import COMMIT_WAIT_MIN_SECONDS, MAX_OPEN_VERSIONS, REFUSAL_WAIT_SECONDS, Acceptance
from p2psync.membership.records import Member, NodeInfo, Role
from p2psync.protocol.versions import Position


def position(version: int) -> Position:
    return Position(run="r", epoch=1, version=version, digest=bytes([version % 256]) * 16)


def member(name: str, runs: int | None = None, refused: int | None = None, role: Role = "actor") -> Member:
    reported = {"version": runs, "digest": position(runs).digest.hex()} if runs is not None else {}
    no = position(refused).digest.hex() if refused is not None else ""
    return Member(info=NodeInfo(node=name * 32, role=role), rejected=no, **reported)


def begun(versions: int = 1) -> Acceptance:
    """A monitor after this many versions at time 0; actors run the last but one."""
    acceptance = Acceptance()
    for version in range(versions):
        acceptance.published(position(version), 0.0)
        if version < versions - 1:
            acceptance.check([member("a", version)], 0.0)
    return acceptance


def test_a_version_rejected_by_all_actors_is_given_up_once() -> None:
    acceptance = begun(2)
    refusing = [member("a", 0, refused=1), member("b", 0, refused=1), member("t", 1, role="trainer")]
    assert acceptance.check(refusing, 1.0) == "version 1 is run by none of 2 actors, 2 found other bits than signed"
    assert acceptance.settled
    assert acceptance.check(refusing, 2.0) is None


def test_one_rejection_waits_for_actors_that_still_fetch() -> None:
    acceptance = begun(2)
    members = [member("a", 0, refused=1), member("b", 0)]
    assert acceptance.check(members, 1.0) is None
    assert acceptance.check(members, 1.0 + REFUSAL_WAIT_SECONDS - 0.1) is None
    assert acceptance.check(members, 1.0 + REFUSAL_WAIT_SECONDS) is not None


def test_a_rejection_is_ignored_once_another_actor_runs_the_version() -> None:
    acceptance = begun(2)
    assert acceptance.check([member("a", 0, refused=1), member("b", 0)], 1.0) is None
    assert acceptance.check([member("a", 0, refused=1), member("b", 1)], 2.0) is None
    assert acceptance.settled


def test_a_rejection_of_an_older_version_counts_while_no_actor_runs_a_later_one() -> None:
    """Actors retry with backoff while the trainer goes on publishing."""
    acceptance = begun(2)
    acceptance.published(position(2), 1.0)
    acceptance.published(position(3), 2.0)
    assert acceptance.check([member("a", 0, refused=2)], 3.0) is not None


def test_a_rejection_of_a_closed_version_is_ignored() -> None:
    acceptance = begun(3)
    assert acceptance.check([member("a", 1, refused=0)], 1e6 / 1e6) is None
    assert not acceptance.settled


def test_relays_and_rejections_of_unknown_versions_are_ignored() -> None:
    acceptance = begun(2)
    assert acceptance.check([member("r", 1, refused=1, role="relay"), member("a", 0, refused=200)], 100.0) is None
    assert not acceptance.settled


def test_silence_counts_only_after_a_long_wait_and_an_earlier_commit() -> None:
    acceptance = begun(2)
    silent = [member("a", 0)]
    assert acceptance.check(silent, COMMIT_WAIT_MIN_SECONDS - 1) is None
    assert acceptance.check([], COMMIT_WAIT_MIN_SECONDS + 1) is None
    assert acceptance.check(silent, COMMIT_WAIT_MIN_SECONDS) == "version 1 is run by none of 1 actors after 120 s"
    assert begun(1).check([member("a")], 1e6) is None


def test_slow_links_get_ten_times_their_longest_commit_time() -> None:
    acceptance = begun(1)
    assert acceptance.check([member("a", 0)], 50.0) is None
    acceptance.published(position(1), 100.0)
    assert acceptance.check([member("a", 0)], 100.0 + 499.0) is None
    assert acceptance.check([member("a", 0)], 100.0 + 500.0) is not None


def test_an_anchor_of_a_given_up_version_does_not_reopen_it() -> None:
    acceptance = begun(2)
    refusing = [member("a", 0, refused=1)]
    assert acceptance.check(refusing, 1.0) is not None
    acceptance.published(position(1), 2.0)
    assert acceptance.settled
    acceptance.published(position(2), 3.0)
    assert acceptance.check(refusing, 4.0) is None  # that is an old refusal
    assert acceptance.check([member("a", 0, refused=2)], 5.0) is not None


def test_open_versions_are_bounded() -> None:
    acceptance = begun(1)
    for version in range(1, 3 * MAX_OPEN_VERSIONS):
        acceptance.published(position(version), 1.0)
    assert len(acceptance._open) <= MAX_OPEN_VERSIONS
