"""A live module published from a training loop, to live modules and to a directory, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from trainer_parts import KEY

from p2psync.actor.directory import open_directory
from p2psync.actor.node import ActorConfig, ActorNode
from p2psync.actor.subscriber import Subscriber
from p2psync.errors import TrustError, UsageError
from p2psync.net.background import BackgroundLoop
from p2psync.observe.events import Committed, Event
from p2psync.store.packs import Store
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.publisher import Publisher

LIMIT = 30.0
TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})


def module(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 3, bias=False)).to(torch.bfloat16)


def train(policy: nn.Module) -> None:
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn_like(weight) * (torch.rand_like(weight) < 0.02))


def same(one: nn.Module, two: nn.Module) -> bool:
    theirs = two.state_dict()
    return all(
        torch.equal(bits.view(torch.int16), theirs[name].view(torch.int16)) for name, bits in one.state_dict().items()
    )


@pytest.fixture
def policy() -> nn.Module:
    return module()


@pytest.fixture
def publisher(tmp_path: Path, policy: nn.Module) -> Iterator[Publisher]:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.json").write_text('{"hidden_size": 64}')
    with make_publisher(tmp_path, policy) as made:
        yield made


def make_publisher(place: Path, policy: nn.Module) -> Publisher:
    config = TrainerConfig(store=place / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0)
    return Publisher(policy, config, files=place / "files")


def subscribe(publisher: Publisher, place: Path, policy: nn.Module, heard: Callable[[Event], None]) -> Subscriber:
    config = ActorConfig(hub_url=publisher.hub_url, trusted=TRUSTED, store=place, host="127.0.0.1")
    return Subscriber(policy, config, on_event=heard)


def test_a_subscriber_gets_every_version_bit_for_bit_and_serving_blocks_commits(
    publisher: Publisher, policy: nn.Module, tmp_path: Path
) -> None:
    mirror = module(seed=9)
    assert publisher.publish(announced=True) is not None
    events: list[Event] = []
    with subscribe(publisher, tmp_path / "actor", mirror, events.append) as subscriber:
        for version in range(1, 4):
            subscriber.wait_for(version - 1, LIMIT)
            with subscriber.serving() as position:
                assert position.version == version - 1
                before = {name: bits.clone() for name, bits in mirror.state_dict().items()}
                train(policy)
                assert publisher.publish(announced=True) is not None
                waiting = threading.Event()
                threading.Timer(0.1, waiting.set).start()
                waiting.wait()  # time for a commit that would be wrong
                assert all(torch.equal(bits, before[name]) for name, bits in mirror.state_dict().items())
            subscriber.wait_for(version, LIMIT)
            assert same(policy, mirror)
        assert publisher.publish() is None, "the same bits again"
        publisher.wait_for_actors(1, LIMIT)
    assert [event.version for event in events if isinstance(event, Committed)] == [0, 1, 2, 3]
    with pytest.raises(UsageError), subscriber.serving():
        pass


def test_a_version_is_told_to_the_swarm_before_it_is_made(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    node = publisher.node
    make = node.versions.make

    def making(*args: Any, **options: Any) -> Any:
        done.append("make")
        return make(*args, **options)

    monkeypatch.setattr(node.runner.monitor, "version_comes", lambda: done.append("tell"))
    monkeypatch.setattr(node.versions, "make", making)
    publisher.publish()
    assert done == ["tell", "make"]


def test_a_restarted_publisher_goes_on_with_its_run(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    policy, mirror = module(), module(seed=2)
    with make_publisher(tmp_path, policy) as first:
        first.publish()
        train(policy)
        first.publish()
        run = first.position
    with make_publisher(tmp_path, policy) as second:
        assert second.position == run
        assert second.publish() is None
        train(policy)
        event = second.publish(announced=True)
        assert event is not None and event.version == 2
        with subscribe(second, tmp_path / "actor", mirror, lambda event: None) as subscriber:
            subscriber.wait_for(2, LIMIT)
            assert same(policy, mirror)
    with pytest.raises(UsageError, match="closed"):
        second.publish()


@pytest.mark.parametrize("on_device", [False, True])
def test_masters_are_published_and_refresh_the_module(tmp_path: Path, on_device: bool) -> None:
    policy, mirror = module(), module(seed=3)
    masters = {name: weight.detach().float() for name, weight in policy.named_parameters()}
    config = TrainerConfig(store=tmp_path / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0)
    with Publisher(policy, config, masters=masters, resident=True, on_device=on_device) as publisher:
        publisher.publish(announced=True)
        with subscribe(publisher, tmp_path / "actor", mirror, lambda event: None) as subscriber:
            for version in range(1, 4):
                for master in masters.values():
                    master.mul_(1.01)
                assert publisher.publish(announced=True) is not None
                assert all(torch.equal(weight, masters[name].bfloat16()) for name, weight in policy.named_parameters())
                subscriber.wait_for(version, LIMIT)
                assert same(policy, mirror)
            assert publisher.publish() is None


def test_a_twin_on_the_device_follows_every_version(tmp_path: Path) -> None:
    policy, mirror = module(), module(seed=4)
    config = TrainerConfig(store=tmp_path / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0)
    with Publisher(policy, config, on_device=True, twin=True) as publisher:
        publisher.publish(announced=True)
        with subscribe(publisher, tmp_path / "actor", mirror, lambda event: None) as subscriber:
            for version in range(1, 4):
                train(policy)
                publisher.publish(announced=True)
                subscriber.wait_for(version, LIMIT)
                assert same(policy, mirror)
        assert publisher._path is not None and publisher._path.twin_position == publisher.position


def test_a_directory_gets_a_file_that_holds_the_modules_state(
    publisher: Publisher, policy: nn.Module, tmp_path: Path
) -> None:
    publisher.publish()
    train(policy)
    publisher.publish(announced=True)
    into = tmp_path / "into"
    config = ActorConfig(hub_url=publisher.hub_url, trusted=TRUSTED, store=tmp_path / "store", host="127.0.0.1")
    loop = BackgroundLoop("test")

    async def follow() -> None:
        def engine(store: Store) -> object:
            return open_directory(into, store, None, 1.0)

        actor = ActorNode(config, engine)  # type: ignore[arg-type]
        await actor.start()
        async with asyncio.timeout(LIMIT):
            await actor.until(1)
        await actor.stop()

    try:
        loop.call(follow())
    finally:
        loop.close()
    loaded = load_file(into / "current" / "model.safetensors")
    state = policy.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(bits.view(torch.int16), state[name].view(torch.int16)) for name, bits in loaded.items())
    assert (into / "current" / "config.json").read_text() == '{"hidden_size": 64}'


def test_a_background_loop_refuses_calls_to_itself_and_cancels_abandoned_ones() -> None:
    loop = BackgroundLoop("test")
    ended = threading.Event()

    async def long() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    async def nested() -> None:
        with pytest.raises(UsageError, match="own thread"):
            loop.call(long())

    with pytest.raises(TimeoutError):
        loop.call(long(), timeout=0.05)
    assert ended.is_set()
    loop.call(nested())
    loop.close()
    loop.close()
    with pytest.raises(UsageError, match="closed"):
        loop.call(long())


def test_a_broken_subscriber_raises_at_wait_for(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(announced=True)
    config = ActorConfig(
        hub_url=publisher.hub_url, trusted=frozenset({bytes(32)}), store=tmp_path / "actor", host="127.0.0.1"
    )
    with Subscriber(module(), config) as subscriber:
        with pytest.raises(TrustError), subscriber.serving():
            pass
        with pytest.raises(TrustError):
            subscriber.wait_for(0, LIMIT)
