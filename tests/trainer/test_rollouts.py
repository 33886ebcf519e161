"""Generation goes on while the next version is fetched and staged, and its results count: one step off policy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from trainer_parts import KEY

from p2psync.actor.node import ActorConfig
from p2psync.actor.subscriber import Subscriber
from p2psync.errors import UsageError, WaitTimeoutError
from p2psync.observe.events import Committed, Event, Fetching
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.publisher import Publisher
from p2psync.trainer.rollouts import Rollouts

LIMIT = 30.0


def module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8, bias=False)).to(torch.bfloat16)


def train(policy: nn.Module) -> None:
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn_like(weight) * (torch.rand_like(weight) < 0.02))


def config(place: Path) -> TrainerConfig:
    return TrainerConfig(store=place / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0)


class EventWaiter:
    """The actor's events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def fetching(self, version: int) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: any(isinstance(e, Fetching) and e.version == version for e in self.events), LIMIT
            )


@pytest.fixture
def rollouts(tmp_path: Path) -> Rollouts:
    return Rollouts(journal=tmp_path / "ledger.db")


@pytest.fixture
def publisher(tmp_path: Path, rollouts: Rollouts) -> Iterator[Publisher]:
    with Publisher(module(), config(tmp_path), rollouts=rollouts) as made:
        made.publish(announced=True)
        yield made


def subscribe(publisher: Publisher, place: Path, policy: nn.Module, heard: EventWaiter) -> Subscriber:
    trusted = frozenset({KEY.public_key().public_bytes_raw()})
    actor = ActorConfig(hub_url=publisher.hub_url, trusted=trusted, store=place, host="127.0.0.1")
    return Subscriber(policy, actor, on_event=heard)


def test_an_actor_generates_while_a_version_is_staged_and_its_results_count(
    publisher: Publisher, rollouts: Rollouts, tmp_path: Path
) -> None:
    policy, mirror, heard = publisher._module, module(seed=1), EventWaiter()
    prompt = torch.randn(4, 64, dtype=torch.bfloat16)
    with subscribe(publisher, tmp_path / "actor", mirror, heard) as subscriber:
        subscriber.wait_for(0, LIMIT)
        rollouts.put(0, [("a", b""), ("b", b""), ("c", b"")])
        grant = subscriber.lease_work(3)
        with subscriber.serving() as old:
            before = mirror(prompt)
            train(policy)
            publisher.publish(announced=True)
            assert heard.fetching(1)
            deadline = time.monotonic() + LIMIT
            while not subscriber._commit_lock.write_requested:  # fetched, staged and checked: only the pause is left
                assert time.monotonic() < deadline
                assert torch.equal(mirror(prompt), before)  # generation goes on meanwhile
            assert torch.equal(mirror(prompt), before) and old.version == 0
            assert not any(isinstance(event, Committed) and event.version == 1 for event in heard.events)
        assert subscriber.complete_work(grant.work, "a", b"A", old, 10) == "accepted"  # 1 is the newest
        subscriber.wait_for(1, LIMIT)
        with subscriber.serving() as new:
            assert new.version == 1 and not torch.equal(mirror(prompt), before)
        train(policy)
        publisher.publish(announced=True)
        assert subscriber.complete_work(grant.work, "b", b"B", old, 10) == "stale"  # 2 is the newest
        assert subscriber.complete_work(grant.work, "c", b"C", new, 10) == "accepted"
        subscriber.wait_for(2, LIMIT)
        again = subscriber.lease_work(1)
        assert [item.item for item in again.items] == ["b"]
        with subscriber.serving() as live:
            assert subscriber.complete_work(again.work, "b", b"B again", live, 10) == "accepted"
    results = rollouts.collect(0, 3, timeout=LIMIT)
    assert [(done.item.item, done.version, done.result) for done in results] == [
        ("a", 0, b"A"),
        ("b", 2, b"B again"),
        ("c", 1, b"C"),
    ]


def test_max_staleness_0_admits_only_the_newest_version(tmp_path: Path) -> None:
    rollouts = Rollouts(max_staleness=0)
    policy, mirror = module(), module(seed=1)
    with Publisher(policy, config(tmp_path), rollouts=rollouts) as publisher:
        publisher.publish(announced=True)
        with subscribe(publisher, tmp_path / "actor", mirror, EventWaiter()) as subscriber:
            subscriber.wait_for(0, LIMIT)
            rollouts.put(0, [("a", b"")])
            grant = subscriber.lease_work(1)
            with subscriber.serving() as old:
                pass
            train(policy)
            publisher.publish(announced=True)
            assert subscriber.complete_work(grant.work, "a", b"", old) == "stale"


def test_a_restarted_loop_gets_the_results_of_unsaved_steps_again(tmp_path: Path) -> None:
    policy = module()
    for life in range(3):
        rollouts = Rollouts(journal=tmp_path / "ledger.db")
        with (
            Publisher(policy, config(tmp_path), rollouts=rollouts) as publisher,
            subscribe(publisher, tmp_path / f"actor-{life}", module(seed=1), EventWaiter()) as subscriber,
        ):
            publisher.publish(announced=True)
            # The second life comes after a step that was not saved, the third after one that was, but not told.
            assert rollouts.resume(committed=0 if life == 2 else None) == (2 if life == 1 else 0)
            assert rollouts.put(0, [("0/a", b""), ("0/b", b"")]) == (2 if life == 0 else 0)
            if life == 0:
                subscriber.wait_for(0, LIMIT)
                grant = subscriber.lease_work(2)
                with subscriber.serving() as live:
                    for item in grant.items:
                        subscriber.complete_work(grant.work, item.item, item.item.encode(), live)
            if life < 2:
                results = rollouts.collect(0, 2, timeout=LIMIT)
                assert [done.result for done in results] == [b"0/a", b"0/b"]
            else:
                with pytest.raises(WaitTimeoutError, match="0 of 2"):
                    rollouts.collect(0, 2, timeout=0.05)


def test_rollouts_need_a_publisher_with_a_hub_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="belong to a publisher"):
        Rollouts().put(0, [])
    elsewhere = TrainerConfig(store=tmp_path, key=KEY, hub_url="http://127.0.0.1:1")
    with pytest.raises(UsageError, match="own hub"):
        Publisher(module(), elsewhere, rollouts=Rollouts())
