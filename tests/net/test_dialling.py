"""Staggered dialling: which address is tried when, and that a silent one costs a quarter of a second."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from peer_parts import Told, until
from private_network import LINK, SILENCE, SILENT_V4, SILENT_V6, inside, needs_root

from p2psync.membership.records import NodeInfo
from p2psync.net.dialling import ATTEMPT_DELAY_SECONDS, MAX_ATTEMPTS, Attempts, interleave

V4, V6 = socket.AF_INET, socket.AF_INET6


@dataclass(frozen=True)
class Host:
    """How an address answers: after so many seconds with a connection, with a refusal, or never."""

    after: float
    refuses: bool = False


SILENT = Host(float("inf"))
HOSTS = st.builds(Host, st.one_of(st.floats(0.001, 3), st.just(float("inf"))), st.booleans())


def raced(hosts: list[Host]) -> tuple[float, int, list[float]]:
    """(when the first connection stands, to which host, when each was tried), in virtual time; inf, -1: none stands."""
    attempts = Attempts(range(len(hosts)))
    now, started, answers = 0.0, [], []
    while True:
        while (index := attempts.poll(now)) is not None:
            started.append(now)
            heapq.heappush(answers, (now + hosts[index].after, index))
        if not answers or min(answers[0][0], attempts.due) == float("inf"):
            return float("inf"), -1, started
        if attempts.due < answers[0][0]:
            now = attempts.due
            continue
        now, index = heapq.heappop(answers)
        if not hosts[index].refuses:
            return now, index, started
        attempts.failed()


def test_a_silent_address_costs_one_delay() -> None:
    assert raced([SILENT, Host(0.03)]) == (ATTEMPT_DELAY_SECONDS + 0.03, 1, [0.0, ATTEMPT_DELAY_SECONDS])


def test_a_refusal_costs_no_delay() -> None:
    assert raced([Host(0.02, refuses=True), Host(0.03)]) == (0.05, 1, [0.0, 0.02])


def test_a_slow_first_address_wins_if_it_answers_before_the_second() -> None:
    assert raced([Host(0.3), Host(0.2)])[:2] == (0.3, 0)


def test_a_refusal_of_a_later_address_starts_the_one_after_it() -> None:
    assert raced([SILENT, Host(0.01, refuses=True), Host(0.01)])[2] == [
        0,
        ATTEMPT_DELAY_SECONDS,
        ATTEMPT_DELAY_SECONDS + 0.01,
    ]


def test_a_name_with_hundreds_of_addresses_is_given_up_after_a_few() -> None:
    assert len(raced([SILENT] * 300)[2]) == MAX_ATTEMPTS


@given(st.lists(HOSTS, min_size=1, max_size=MAX_ATTEMPTS))
def test_every_address_that_answers_is_reached_within_a_delay_for_each_before_it(hosts: list[Host]) -> None:
    at, winner, started = raced(hosts)
    good = [(i * ATTEMPT_DELAY_SECONDS + host.after, i) for i, host in enumerate(hosts) if not host.refuses]
    assert at <= min(good, default=(float("inf"), -1))[0] + 1e-9
    assert winner == -1 or not hosts[winner].refuses
    # One address after another, and never two at a time unless one before has failed.
    assert started == sorted(started)
    refusals = sum(host.refuses for host in hosts)
    assert sum(b - a < ATTEMPT_DELAY_SECONDS - 1e-9 for a, b in itertools.pairwise(started)) <= refusals


def test_families_take_turns_and_the_first_one_begins() -> None:
    six = [(V6, (f"2001:db8::{i}", 1)) for i in range(3)]
    four = [(V4, ("192.0.2.1", 1))]
    assert interleave(six + four) == [six[0], four[0], six[1], six[2]]
    assert interleave(four + six + four) == [four[0], *six]


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("silent", [SILENT_V4, SILENT_V6])
def test_a_peer_is_reached_past_a_silent_address(silent: str, loop: Callable[[Any], None]) -> None:
    async def main() -> None:
        there, here = Told("there"), Told("here")
        port = await there.table.listen("", 0)
        hosts = ("127.0.0.1", "::1")
        info = NodeInfo(node="there", role="actor", host=silent, port=port, further=hosts)
        begun = time.monotonic()
        here.table.dial(info)
        await until(lambda: here.up)
        assert ATTEMPT_DELAY_SECONDS <= time.monotonic() - begun < 2
        await asyncio.gather(here.table.close(), there.table.close())

    inside(lambda: loop(main()), [*LINK, *SILENCE])


@pytest.mark.root
@needs_root
def test_a_peer_whose_every_address_is_silent_or_refuses_is_a_failed_dial() -> None:
    async def main() -> None:
        here = Told("here")
        info = NodeInfo(node="there", role="actor", host="127.0.0.1", port=9, further=("::1", "fd00::1"))
        here.table.dial(info)
        await until(lambda: here.failed)
        await here.table.close()

    inside(lambda: asyncio.run(main()))
