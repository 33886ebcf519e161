"""Nodes follow the newest run; runs are described for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2psync.errors import UsageError
from p2psync.membership.runs import ANY, NEWEST, RunRefusal, is_newer, later_run, parse_follow, run_name, why_not

A, B = "01a221f19048" + "a" * 20, "01a221f1a064" + "b" * 20
RUNS = st.sampled_from([A, B, "01a221f1a064" + "c" * 20])
PLACES = st.tuples(RUNS, st.integers(0, 3))


@pytest.mark.parametrize(
    ("follow", "live", "offered", "reason"),
    [
        (NEWEST, ("", 0), (A, 1), None),
        (NEWEST, (A, 5), (B, 1), None),
        (NEWEST, (B, 1), (A, 9), "older"),
        (NEWEST, (A, 2), (A, 1), "fenced"),
        (NEWEST, (A, 2), (A, 2), None),
        (ANY, (B, 1), (A, 9), None),
        (ANY, (B, 9), (A, 1), None),
        (ANY, (A, 2), (A, 1), "fenced"),
        (A[:12], (B, 1), (A, 1), None),
        (A[:12], (A, 1), (B, 1), "other"),
        (A[:12], ("", 0), (B, 1), "other"),
        (A[:12], (A, 2), (A, 1), "fenced"),
    ],
)
def test_older_runs_and_epochs_are_not_followed(
    follow: str, live: tuple[str, int], offered: tuple[str, int], reason: str | None
) -> None:
    assert why_not(follow, live=live, offered=offered) == reason


@given(st.lists(PLACES, max_size=8))
def test_no_sequence_of_offers_leads_back_to_an_older_run(offers: list[tuple[str, int]]) -> None:
    followed: list[tuple[str, int]] = []
    for offered in offers:
        if why_not(NEWEST, live=followed[-1] if followed else ("", 0), offered=offered) is None:
            followed.append(offered)
    assert followed == sorted(followed)


@given(RUNS, st.integers(0, 1 << 47), st.binary(min_size=10, max_size=10))
def test_a_later_run_is_newer_than_earlier_ones_despite_the_clock(than: str, ms: int, drawn: bytes) -> None:
    made = later_run(than, ms, drawn)
    assert len(made) == 32 and is_newer(made, than) and is_newer(made, than[:12]) and not is_newer(than, made)


def test_no_run_follows_the_last_possible_time() -> None:
    with pytest.raises(UsageError, match="no run after ffffffffffff"):
        later_run("f" * 12, 0, bytes(10))


@pytest.mark.parametrize("text", ["", "latest", "01a2", A + "0", "01a221f1904g"])
def test_a_malformed_run_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="follow_run wants newest, any or the 12 to 32 hex digits"):
        parse_follow(text)


def test_runs_are_named_by_the_digits_and_the_time_of_their_creation() -> None:
    assert run_name(A) == "run 01a221f19048 (created 2026-11-28 11:36:48 UTC)"
    assert run_name("f" * 32) == "run ffffffffffff"
    assert run_name("\x1b[31m\n0123456789") == "run  [31m 012345"
    assert parse_follow(A[:12].upper()) == A[:12]


@pytest.mark.parametrize(
    ("reason", "remedies"),
    [
        ("older", [f"--supersede {B[:12]}", f"--follow-run {A[:12]}"]),
        ("fenced", ["--supersede", "newest store"]),
        ("other", ["leave --follow-run out"]),
    ],
)
def test_a_run_refusal_names_both_runs_and_the_remedies(reason: str, remedies: list[str]) -> None:
    text = RunRefusal(reason, A, 1, B, 2, A[:12]).text()  # type: ignore[arg-type]
    assert "not followed" in text and "\n" not in text and all(remedy in text for remedy in remedies)
