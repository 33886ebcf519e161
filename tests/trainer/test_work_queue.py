"""An actor's work queue: work leased ahead of need, results handed in in the background, weights already there."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from trainer_parts import KEY

from p2psync.actor.node import ActorConfig
from p2psync.actor.subscriber import Subscriber
from p2psync.actor.work_queue import ClaimedItem, WorkQueue, items_ahead
from p2psync.observe.events import Committed, Event, Fetching, Note
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.publisher import Publisher
from p2psync.trainer.rollouts import Rollouts

LIMIT = 30.0


def module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(64, 64, bias=False).to(torch.bfloat16)


@pytest.fixture
def rollouts() -> Rollouts:
    return Rollouts()


@pytest.fixture
def publisher(tmp_path: Path, rollouts: Rollouts) -> Iterator[Publisher]:
    config = TrainerConfig(store=tmp_path / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0)
    with Publisher(module(), config, rollouts=rollouts) as made:
        made.publish(announced=True)
        yield made


def subscribe(publisher: Publisher, place: Path, policy: nn.Module, heard: list[Event]) -> Subscriber:
    trusted = frozenset({KEY.public_key().public_bytes_raw()})
    config = ActorConfig(hub_url=publisher.hub_url, trusted=trusted, store=place, host="127.0.0.1")
    return Subscriber(policy, config, on_event=heard.append, adopt=True)


@pytest.fixture
def subscriber(publisher: Publisher, tmp_path: Path) -> Iterator[Subscriber]:
    with subscribe(publisher, tmp_path / "actor", module(), []) as made:
        made.wait_for(0, LIMIT)
        yield made


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def taken(queue: WorkQueue) -> ClaimedItem:
    work = queue.take(LIMIT)
    assert work is not None
    return work


def test_work_queue_holds_as_many_items_as_slots_free_during_a_lease() -> None:
    assert items_ahead(8, deque(), deque()) == 1
    ten_a_second = deque(i / 10 for i in range(16))
    assert items_ahead(8, ten_a_second, deque([0.5, 0.15, 3.0])) == 1 + 3  # the slow leases waited for work
    assert items_ahead(2, ten_a_second, deque([5.0])) == 8
    assert items_ahead(8, deque([1.0, 1.0]), deque([0.1])) == 1


def test_the_next_item_is_there_before_the_last_result_is_acknowledged(
    subscriber: Subscriber, rollouts: Rollouts
) -> None:
    rollouts.put(0, [(f"{i}", b"") for i in range(4)])
    with subscriber.work_queue(slots=1) as queue:
        first = taken(queue)
        until(lambda: rollouts.service.ledger.claimed == 2)  # one in the making, one ahead, and no more
        second = queue.take(timeout=0)
        assert second is not None and second.item.item != first.item.item
        with subscriber.serving() as position:
            queue.hand_in(first, b"1", position, 10)
            queue.hand_in(second, b"2", position, 10)
            for _ in range(2):
                queue.hand_in(taken(queue), b"more", position, 10)
    assert queue.outcomes == {"accepted": 4}  # leaving waits for results in flight
    assert {done.item.item: done.result for done in rollouts.collect(0, 4, LIMIT)}["0"] == b"1"


def test_void_items_are_reported(subscriber: Subscriber, publisher: Publisher, rollouts: Rollouts) -> None:
    rollouts.put(0, [("a", b""), ("b", b"")])
    rollouts.put(1, [("c", b"")])
    with subscriber.work_queue(slots=3) as queue, subscriber.serving() as position:
        a, b, c = (taken(queue) for _ in range(3))
        publisher.call(lambda: rollouts.service.ledger.drop_before(1))
        assert not queue.needless(a)
        queue.hand_in(c, b"", position)
        until(lambda: queue.needless(a) and queue.needless(b))
        queue.drop(a)
        queue.hand_in(b, b"", position)
    assert queue.outcomes == {"accepted": 1, "late": 1}


def test_work_queue_is_empty_without_work_and_fills_when_work_comes(subscriber: Subscriber, rollouts: Rollouts) -> None:
    with subscriber.work_queue(slots=2) as queue:
        assert queue.take(timeout=0) is None
        rollouts.put(0, [("a", b"x")])
        assert taken(queue).item.payload == b"x"


def test_weights_that_match_a_version_are_not_fetched(publisher: Publisher, tmp_path: Path) -> None:
    heard: list[Event] = []
    with subscribe(publisher, tmp_path / "same", module(), heard) as subscriber:
        subscriber.wait_for(0, LIMIT)
        assert any(isinstance(event, Note) for event in heard)  # it wakes waiters for a version
        with subscriber.serving() as position:
            assert position == publisher.position
    assert not any(isinstance(event, Fetching | Committed) for event in heard)
    with subscribe(publisher, tmp_path / "other", module(seed=1), heard) as subscriber, subscriber.serving():
        pass
    assert any(isinstance(event, Committed) for event in heard)
