"""Calls on all cores: results in order, a bounded number under way, nothing running afterwards."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from p2psync.parallel import InOrder, in_parallel, limit_threads, thread_count


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    limit_threads(2)
    yield
    limit_threads(None)


@pytest.mark.skipif(thread_count() < 2, reason="needs a second core")
def test_results_come_in_the_order_of_submission_though_a_later_call_ends_first() -> None:
    second_ended = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_ended.wait(10)
        if item == 1:
            second_ended.set()
        return item

    assert list(in_parallel(work, range(5))) == [0, 1, 2, 3, 4]


def test_only_a_bounded_number_of_items_is_taken_ahead() -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    results = in_parallel(lambda item: item, items())
    assert next(results) == 0
    assert len(taken) <= 2 * 2 + 2
    results.close()  # type: ignore[attr-defined]


def test_the_first_failure_is_raised_and_no_call_runs_afterwards() -> None:
    begun, running = [], [0]

    def work(item: int) -> int:
        begun.append(item)
        running[0] += 1
        try:
            if item == 3:
                raise ValueError("three")
            return item
        finally:
            running[0] -= 1

    with pytest.raises(ValueError, match="three"):
        list(in_parallel(work, range(100)))
    assert running == [0] and len(begun) < 20


def test_a_call_given_up_is_waited_for() -> None:
    seen: list[int] = []
    calls = InOrder(seen.append)
    ended = []
    for number in range(3):
        calls.ask(lambda number=number: ended.append(number) or number)  # type: ignore[misc,func-returns-value]
    calls.give_up()
    before = list(ended)
    calls.finish()
    assert ended == before


def test_fewer_than_one_thread_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        limit_threads(0)


def test_a_forked_child_has_threads_of_its_own() -> None:
    assert list(in_parallel(abs, [-1, -2])) == [1, 2]
    child = os.fork()
    if not child:
        signal.alarm(10)  # a child that waits for its parent's threads would wait for ever
        os._exit(0 if list(in_parallel(abs, [-3, -4])) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0
