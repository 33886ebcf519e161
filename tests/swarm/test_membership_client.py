"""A node's side of membership, in virtual time."""

from __future__ import annotations

import random

import pytest
from swarm_parts import view_of

from p2psync.membership.checks import MAX_NOTE
from p2psync.membership.client import (
    RETRY_MAX_SECONDS,
    RETRY_MIN_SECONDS,
    CallJoin,
    CallRenew,
    CallView,
    HubCall,
    MembershipClient,
)
from p2psync.membership.records import Lease, Member, NodeInfo, View

TTL = 9.0


def client() -> MembershipClient:
    """A client that has done nothing yet."""
    return MembershipClient(NodeInfo(node="n", role="actor"), random.Random(1))


def lease(name: str = "l") -> Lease:
    """What a hub grants."""
    return Lease(lease=name, ttl=TTL, revision=1)


def member() -> MembershipClient:
    """A client that joined at time 0, and whose long poll is open."""
    made = client()
    made.poll(0.0)
    made.joined(lease(), 0.0)
    assert [type(call) for call in made.poll(0.0)] == [CallView]
    return made


def calls(made: MembershipClient, now: float) -> list[type[HubCall]]:
    """The kinds of calls made at a time."""
    return [type(call) for call in made.poll(now)]


def test_membership_client_joins_first_and_once() -> None:
    made = client()
    assert calls(made, 0.0) == [CallJoin]
    assert calls(made, 1.0) == []
    assert made.next_wake() == float("inf")


def test_membership_client_keeps_one_long_poll_open_after_the_join() -> None:
    made = member()
    assert calls(made, 1.0) == []
    made.viewed(view_of(revision=4), 1.0)
    (call,) = made.poll(1.0)
    assert call == CallView("hub", 4, "l")


def test_membership_client_applies_changes_to_the_view_that_it_has() -> None:
    made = member()
    one, two = (Member(info=NodeInfo(node=name, role="actor")) for name in ("1", "2"))
    made.viewed(View(instance="hub", revision=4, members=[one]), 1.0)
    whole = made.viewed(View(instance="hub", revision=5, since=4, members=[two]), 2.0)
    assert whole == made.view == View(instance="hub", revision=5, members=[one, two])


def test_membership_client_asks_for_a_whole_view_after_changes_to_another_one() -> None:
    made = member()
    made.viewed(view_of(revision=4), 1.0)
    assert made.viewed(View(instance="hub", revision=9, since=7), 2.0) is None
    assert CallView("", -1, "l") in made.poll(3.0)


def test_a_trainer_asks_for_whole_views() -> None:
    made = MembershipClient(NodeInfo(node="n", role="trainer"), random.Random(1))
    made.poll(0.0)
    made.joined(lease(), 0.0)
    assert made.poll(0.0) == [CallView("", -1, "l", whole=True)]


def test_an_unchanged_view_keeps_the_last_one() -> None:
    made = member()
    view = view_of(revision=4)
    made.viewed(view, 1.0)
    made.poll(1.0)
    made.viewed(None, 11.0)
    assert made.view is view


def test_membership_client_renews_at_a_third_of_the_ttl() -> None:
    made = member()
    assert made.next_wake() == pytest.approx(TTL / 3)
    assert calls(made, TTL / 3 - 0.01) == []
    assert calls(made, TTL / 3) == [CallRenew]
    made.renewed(lease(), 3.1)
    assert calls(made, 5.9) == []
    assert calls(made, 6.0) == [CallRenew]


def test_the_same_bits_under_another_run_are_news_and_why_it_waits_goes_with_each_renewal() -> None:
    made = member()
    made.running(3, "d" * 32, 0.0, "a" * 32, 1)
    assert made.has_unreported_version and calls(made, 0.0) == [CallRenew]
    made.renewed(lease(), 0.0)
    assert not made.has_unreported_version
    made.why_waiting = lambda: "the disk is full" * 99
    made.running(3, "d" * 32, 1.0, "b" * 32, 1)
    assert made.has_unreported_version
    (call,) = made.poll(1.0)
    assert isinstance(call, CallRenew)
    assert (call.request.run, call.request.epoch, len(call.request.waits)) == ("b" * 32, 1, MAX_NOTE)


def test_a_new_version_is_told_at_once() -> None:
    made = member()
    made.running(5, "ab", 1.0)
    assert made.has_unreported_version
    (call,) = made.poll(1.0)
    assert isinstance(call, CallRenew) and (call.request.version, call.request.digest) == (5, "ab")
    made.renewed(lease(), 1.1)
    assert not made.has_unreported_version


def test_a_version_that_changes_while_a_renewal_is_under_way_is_told_after_it() -> None:
    made = member()
    made.poll(TTL / 3)
    made.running(5, "ab", 3.05)
    assert calls(made, 3.05) == []
    made.renewed(lease(), 3.1)
    assert calls(made, 3.1) == [CallRenew]


def test_a_version_that_changes_while_the_join_is_under_way_is_told_after_it() -> None:
    made = client()
    made.poll(0.0)
    made.running(5, "ab", 0.1)
    made.joined(lease(), 0.2)
    assert CallRenew in calls(made, 0.2)


def test_pauses_between_failed_joins_grow_with_jitter_up_to_a_limit() -> None:
    made = client()
    now, pauses = 0.0, []
    for _ in range(12):
        (call,) = made.poll(now)
        assert isinstance(call, CallJoin)
        made.failed(call, now)
        wake = made.next_wake()
        assert calls(made, (now + wake) / 2) == []
        pauses.append(wake - now)
        now = wake
    assert RETRY_MIN_SECONDS * 0.75 <= pauses[0] <= RETRY_MIN_SECONDS * 1.25
    assert RETRY_MAX_SECONDS * 0.75 <= pauses[-1] <= RETRY_MAX_SECONDS * 1.25


def test_a_success_makes_pauses_short_again() -> None:
    made = client()
    for _ in range(6):
        (call,) = made.poll(made.next_wake() if made.next_wake() > 0 else 0.0)
        made.failed(call, 100.0)
    made.poll(200.0)
    made.joined(lease(), 200.0)
    made.poll(200.0)
    made.lease_lost(200.0)
    (call,) = made.poll(200.0)
    made.failed(call, 200.0)
    assert made.next_wake() - 200.0 <= RETRY_MIN_SECONDS * 1.25


def test_a_failed_renewal_is_tried_again_soon_and_the_lease_lives_on() -> None:
    made = member()
    (call,) = made.poll(3.0)
    made.failed(call, 3.0)
    assert made.lease == "l"
    assert 3.0 < made.next_wake() <= 3.0 + RETRY_MIN_SECONDS * 1.25
    assert calls(made, 3.3) == [CallRenew]


def test_a_failed_long_poll_is_opened_again_after_a_pause() -> None:
    made = member()
    made.failed(CallView("", -1), 1.0)
    assert calls(made, 1.0) == []
    assert calls(made, 1.3) == [CallView]


def test_a_lease_that_the_hub_does_not_know_is_joined_anew_at_once() -> None:
    made = member()
    made.poll(3.0)
    made.lease_lost(3.1)
    assert made.lease is None
    assert calls(made, 3.1) == [CallJoin]


def test_a_lease_that_ran_out_unrenewed_is_joined_anew() -> None:
    made = member()
    (call,) = made.poll(3.0)
    made.failed(call, 8.9)
    assert calls(made, 9.2) == [CallJoin]


def test_the_last_view_stays_in_use_while_the_hub_is_away() -> None:
    made = member()
    view = view_of(revision=4)
    made.viewed(view, 1.0)
    made.poll(1.0)
    made.failed(CallView("hub", 4), 2.0)
    made.lease_lost(2.0)
    assert made.view is view


def test_membership_client_sets_no_alarm_at_once_when_nothing_is_due() -> None:
    made = member()
    now = 0.0
    rng = random.Random(5)
    for _ in range(500):
        for call in made.poll(now):
            outcome = rng.random()
            if outcome < 0.3:
                made.failed(call, now)
            elif isinstance(call, CallView):
                continue
            elif isinstance(call, CallJoin):
                made.joined(lease(), now)
            elif outcome < 0.5:
                made.lease_lost(now)
            else:
                made.renewed(lease(), now)
        made.poll(now)
        wake = made.next_wake()
        if wake == float("inf"):
            break
        assert wake > now
        now = wake
