"""The ways of syncing in the loop bench: a board gives versions at no cost, and full broadcast publishes anchors."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

torch = pytest.importorskip("torch")

from p2psync.actor.node import ActorConfig  # noqa: E402
from p2psync.actor.subscriber import Subscriber  # noqa: E402
from p2psync.bench.rl.ways import AnchorVersionBuilder, Board, free_position, rollouts_of  # noqa: E402
from p2psync.trainer.config import TrainerConfig  # noqa: E402
from p2psync.trainer.publisher import Publisher  # noqa: E402

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
LIMIT = 30.0


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 64, bias=False).to(torch.bfloat16)


def trainer(place: Path) -> TrainerConfig:
    return TrainerConfig(store=place / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0)


def subscribe(publisher: Publisher, place: Path, policy: torch.nn.Module) -> Subscriber:
    trusted = frozenset({KEY.public_key().public_bytes_raw()})
    config = ActorConfig(hub_url=publisher.hub_url, trusted=trusted, store=place / "actor", host="127.0.0.1")
    return Subscriber(policy, config, adopt=True)


def test_all_processes_see_the_version_on_the_board(tmp_path: Path) -> None:
    one, other = Board(tmp_path / "board"), Board(tmp_path / "board")
    assert other.version == 0
    one.put_up(7)
    assert other.version == Board(tmp_path / "board").version == 7


def test_at_no_cost_every_actor_counts_as_being_at_the_newest_version(tmp_path: Path) -> None:
    rollouts = rollouts_of(True, tmp_path / "none", staleness=0)
    with Publisher(module(), trainer(tmp_path), rollouts=rollouts) as publisher:
        publisher.publish(announced=True)
        with subscribe(publisher, tmp_path, module()) as subscriber:
            subscriber.wait_for(0, LIMIT)
            with subscriber.serving() as first:
                pass
            for version in (1, 2, 3):
                rollouts.admit(free_position(first, version))
            rollouts.put(3, [("a", b"")])
            grant = subscriber.lease_work(1)  # by its own word at version 0, three behind
            assert [item.item for item in grant.items] == ["a"]
            assert subscriber.complete_work(grant.work, "a", b"", free_position(first, 2)) == "stale"
            grant = subscriber.lease_work(1)
            assert subscriber.complete_work(grant.work, "a", b"", free_position(first, 3)) == "accepted"


def test_every_version_of_a_full_broadcast_is_whole_and_replaces_the_one_before(tmp_path: Path) -> None:
    policy, mirror = module(), module()
    config = trainer(tmp_path)

    def version_builder(store: object, run: str) -> AnchorVersionBuilder:
        return AnchorVersionBuilder(store, config.store / "snapshot", KEY, run)  # type: ignore[arg-type]

    with Publisher(policy, config, version_builder=version_builder) as publisher:
        publisher.publish(announced=True)
        with subscribe(publisher, tmp_path, mirror) as subscriber:
            subscriber.wait_for(0, LIMIT)
            for version in (1, 2):
                with torch.no_grad():
                    policy.weight[0, version] += 1
                event = publisher.publish(announced=True)
                assert event is not None
                assert event.anchor and event.version == version
                subscriber.wait_for(version, LIMIT)
                with subscriber.serving():
                    assert torch.equal(mirror.weight, policy.weight)
