"""Live modules followed through deltas of profile tight: one at a time, and several in one commit."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from trainer_parts import KEY

from p2psync.actor.node import ActorConfig
from p2psync.actor.subscriber import Subscriber
from p2psync.observe.events import Committed, Event, Fetching
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.publisher import Publisher

LIMIT = 30.0
TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})


def module(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.Linear(512, 300)).to(torch.bfloat16)


def train(policy: nn.Module) -> None:
    """Move about 2 % of the elements by one unit in the last place, small ones far more often, as in training."""
    with torch.no_grad():
        for weight in policy.parameters():
            bits, likely = weight.view(torch.int16), torch.where(weight.abs() < 0.005, 0.15, 0.002)
            moved = torch.rand(bits.shape) < likely
            bits.add_((moved * torch.randint(0, 2, bits.shape).mul(2).sub(1)).to(torch.int16))


def same(one: nn.Module, two: nn.Module) -> bool:
    theirs = two.state_dict()
    return all(
        torch.equal(bits.view(torch.int16), theirs[name].view(torch.int16)) for name, bits in one.state_dict().items()
    )


def test_a_module_follows_tight_deltas_one_by_one_and_as_a_chain(tmp_path: Path) -> None:
    policy, mirror = module(1), module(2)
    config = TrainerConfig(
        store=tmp_path / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0, profile="tight", squash=False
    )
    events: list[Event] = []
    with Publisher(policy, config) as publisher:
        publisher.publish(announced=True)
        actor = ActorConfig(hub_url=publisher.hub_url, trusted=TRUSTED, store=tmp_path / "actor", host="127.0.0.1")
        with Subscriber(mirror, actor, on_event=events.append) as subscriber:
            for version in range(1, 4):
                subscriber.wait_for(version - 1, LIMIT)
                assert same(policy, mirror)
                train(policy)
                publisher.publish(announced=True)
            subscriber.wait_for(3, LIMIT)
            with subscriber.serving():  # no commit meanwhile
                for _ in range(5):
                    train(policy)
                    publisher.publish(announced=True)
            subscriber.wait_for(8, LIMIT)
            assert same(policy, mirror)
        packs = publisher.node.runner.store.packs()
        chunks = [pack.read(0) for pack in packs if pack.manifest.base is not None]
        assert len(chunks) == 8 and all(chunk is not None and chunk[1] == 2 for chunk in chunks), "coded as tight"
    assert max(event.steps for event in events if isinstance(event, Fetching)) >= 4
    assert [event.version for event in events if isinstance(event, Committed)][:4] == [0, 1, 2, 3]
