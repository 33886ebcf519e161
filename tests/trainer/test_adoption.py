"""Adoption counts the actors that run the newest version, and names those that are missing."""

from __future__ import annotations

from p2psync.membership.records import Member, NodeInfo, Role
from p2psync.protocol.versions import Position
from p2psync.trainer.adoption import adoption_of

LIVE = Position(run="r", epoch=1, version=7, digest=b"7" * 16)


def member(name: str, digest: bytes = b"", version: int | None = None, host: str = "", role: Role = "actor") -> Member:
    info = NodeInfo(node=name * 32, role=role, host=host)
    return Member(info=info, version=version, digest=digest.hex())


def test_adoption_counts_actors_only_and_names_the_missing() -> None:
    found = adoption_of(
        [
            member("a", LIVE.digest, 7),
            member("b", b"6" * 16, 6, host="10.0.0.2"),
            member("c"),
            member("d", LIVE.digest, 7, role="relay"),
            member("e", LIVE.digest, 7, role="trainer"),
        ],
        LIVE,
    )
    assert found.running == 1 and found.reached(1) and not found.reached(2)
    assert str(found) == (
        "1 of 3 actors run version 7; missing: bbbbbbbb at 10.0.0.2 (runs version 6), cccccccc (runs nothing)"
    )


def test_adoption_names_only_some_of_many_missing_actors() -> None:
    found = adoption_of([member(name) for name in "0123456789"], LIVE)
    assert str(found).count("(runs nothing)") == 5 and str(found).endswith(" and 5 more")


def test_an_actor_with_the_same_number_and_other_bits_is_missing() -> None:
    assert adoption_of([member("a", b"x" * 16, 7)], LIVE).running == 0


def test_adoption_names_no_actor_when_all_run_the_version() -> None:
    assert str(adoption_of([member("a", LIVE.digest, 7)], LIVE)) == "1 of 1 actors run version 7"
