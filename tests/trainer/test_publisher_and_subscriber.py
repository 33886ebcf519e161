"""Publishers and subscribers of torch modules: their arguments, and the errors a waiting program gets."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from trainer_parts import KEY

from p2psync.actor.node import ActorConfig
from p2psync.actor.obstacle import Obstacle
from p2psync.actor.subscriber import Subscriber
from p2psync.errors import MisfitError, ModuleError, P2PSyncError, UsageError, WaitTimeoutError
from p2psync.observe.events import (
    CodecCompiled,
    CodecCompiling,
    Committed,
    Event,
    Fetching,
    HubJoined,
    HubUnreachable,
    Trouble,
)
from p2psync.observe.log_events import EventLog
from p2psync.protocol.keys import private_text, public_text
from p2psync.protocol.versions import Position
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.publisher import Publisher

LIMIT = 120.0
PUBLIC = public_text(KEY.public_key().public_bytes_raw())
#: Nothing listens at this port.
NOWHERE = "http://127.0.0.1:9"


def layers(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 8)).to(torch.bfloat16)


def publish_from(place: Path, module: nn.Module, **options: Any) -> Publisher:
    config = TrainerConfig(store=place / "trainer", key=KEY, host="127.0.0.1", hub_port=0, port=0)
    return Publisher(module, config, **options)


def subscribe_to(hub_url: str, place: Path, module: nn.Module, **options: Any) -> Subscriber:
    config = ActorConfig(hub_url=hub_url, trusted=frozenset({PUBLIC}), store=place, host="127.0.0.1")  # type: ignore[arg-type]
    return Subscriber(module, config, **options)


def train(module: nn.Module) -> None:
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * (torch.rand_like(weight) < 0.2))


@pytest.fixture
def policy() -> nn.Module:
    return layers()


@pytest.fixture
def publisher(tmp_path: Path, policy: nn.Module) -> Iterator[Publisher]:
    with publish_from(tmp_path, torch.compile(policy, backend="eager")) as made:
        made.publish(announced=True)
        yield made


def test_wrapped_modules_on_either_side_compute_the_same(
    publisher: Publisher, policy: nn.Module, tmp_path: Path
) -> None:
    inner = [layers(), layers()]
    renamed = nn.ModuleDict({"first": inner[1][0], "second": inner[1][2]})
    names = {"first.weight": "0.weight", "first.bias": "0.bias", "second.weight": "2.weight", "second.bias": "2.bias"}
    rows = torch.randn(5, 8).bfloat16()
    with (
        subscribe_to(publisher.hub_url, tmp_path / "a", nn.DataParallel(inner[0])) as wrapped,
        subscribe_to(publisher.hub_url, tmp_path / "b", renamed, names=names) as mapped,
    ):
        for version in range(3):
            for subscriber, module in ((wrapped, inner[0]), (mapped, inner[1])):
                subscriber.wait_for(version, LIMIT)
                with subscriber.serving():
                    assert torch.equal(module(rows), policy(rows))
            policy[0].weight.data = policy[0].weight.data.clone()  # as an optimizer or `.to` may
            inner[0][2].bias.data = inner[0][2].bias.data.clone()
            train(policy)
            publisher.publish(announced=True)


def test_an_unfit_version_raises_at_wait_for_and_is_logged_once(
    publisher: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line = r"version 0 does not fit the module: '0\.bias' is \(BF16, \[8\]\) in it, and \(BF16, \[4\]\) in the module"
    warned = threading.Event()
    caplog.handler.addFilter(lambda record: record.levelno < logging.WARNING or not warned.set())
    with subscribe_to(publisher.hub_url, tmp_path / "actor", layers(4)) as subscriber:
        with pytest.raises(MisfitError, match=line):
            subscriber.wait_for(0, LIMIT)
        assert warned.wait(LIMIT)
        with pytest.raises(MisfitError, match=line), subscriber.serving():
            pass
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.name for record in warnings] == ["p2psync.subscriber"]
    assert "does not fit" in warnings[0].message


def test_a_later_unfit_version_leaves_the_live_one_served(tmp_path: Path) -> None:
    with publish_from(tmp_path, layers()) as publisher:
        publisher.publish(announced=True)
        port = publisher.hub_url.rsplit(":", 1)[1]
        with subscribe_to(publisher.hub_url, tmp_path / "actor", layers()) as subscriber:
            subscriber.wait_for(0, LIMIT)
            publisher.close()
            config = TrainerConfig(store=tmp_path / "trainer", key=KEY, host="127.0.0.1", hub_port=int(port), port=0)
            with Publisher(layers(4), config) as other:
                other.publish(announced=True)
                with pytest.raises(MisfitError, match=r"version 1 (does not fit|adds or removes)"):
                    subscriber.wait_for(1, LIMIT)
                subscriber.wait_for(0, LIMIT)
                with subscriber.serving() as position:
                    assert position.version == 0


def test_a_module_changed_under_a_subscriber_raises_at_wait_for(
    publisher: Publisher, policy: nn.Module, tmp_path: Path
) -> None:
    module = layers()
    with subscribe_to(publisher.hub_url, tmp_path / "actor", module, on_event=lambda event: None) as subscriber:
        subscriber.wait_for(0, LIMIT)
        module.float()
        train(policy)
        publisher.publish(announced=True)
        with pytest.raises(ModuleError, match="no longer those it had at first"):
            subscriber.wait_for(1, LIMIT)


def test_publisher_refuses_a_module_whose_tensors_changed(publisher: Publisher, policy: nn.Module) -> None:
    policy.float()
    with pytest.raises(ModuleError, match="no longer those it had at first"):
        publisher.publish()


def test_a_silent_hub_is_logged_and_named_at_wait_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with subscribe_to(NOWHERE, tmp_path, layers()) as subscriber:
        with pytest.raises(
            WaitTimeoutError, match=r"version 3 is not live after 0\.5 s: nothing is live yet; the hub at"
        ):
            subscriber.wait_for(3, 0.5)
        with pytest.raises(TimeoutError):  # as before there was one of our own
            subscriber.wait_for(0, 0.01)
    assert [record.levelname for record in caplog.records if "cannot be reached" in record.message] == ["WARNING"]


def test_a_subscriber_warns_that_it_compiles_the_codec(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("p2psync.net.codec_compiler.compiled", lambda widths: False)
    with subscribe_to(NOWHERE, tmp_path, layers()):
        pass
    assert [record.levelname for record in caplog.records if "compiling the codec" in record.message] == ["WARNING"]


def test_a_timeout_names_the_awaited_event() -> None:
    obstacle, live = Obstacle("http://hub"), Position(run="0" * 32, epoch=1, version=4, digest=bytes(16))
    committed = Committed(5, "", 0, 0, 0, 0.0, 0.0, 0.0, 0.0)
    assert obstacle.line(None) == "nothing is live yet; the hub at http://hub has not answered yet"
    obstacle.hear(HubUnreachable("gone"))
    assert obstacle.line(None) == "nothing is live yet; gone"
    obstacle.hear(HubJoined("http://hub"))
    assert obstacle.line(live) == "version 4 is live; the hub at http://hub has announced nothing newer"
    obstacle.hear(CodecCompiling())
    assert "the codec is still being compiled; `p2psync warm`" in obstacle.line(live)
    obstacle.hear(CodecCompiled(30.0))
    obstacle.hear(Fetching(5, 1, False, 0))
    assert obstacle.line(live) == "version 4 is live; version 5 is being fetched"
    obstacle.hear(Trouble("the disk is full"))
    assert obstacle.line(live) == "version 4 is live; the disk is full"
    obstacle.hear(committed)
    assert obstacle.line(live) == "version 4 is live; the hub at http://hub has announced nothing newer"


def test_a_repeated_warning_is_logged_again_only_after_a_success(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog("p2psync.test")
    events: list[Event] = [Trouble("a"), Trouble("a"), Trouble("b"), HubJoined("u"), Trouble("a")]
    with caplog.at_level(logging.INFO):
        for event in events:
            log(event)
    assert [record.message for record in caplog.records] == ["a", "b", "joined the hub at u", "a"]


def test_publishers_and_subscribers_start_and_close_without_a_with_block(tmp_path: Path) -> None:
    policy, mirror = layers(), layers()
    publisher = publish_from(tmp_path, policy)
    for call in (publisher.publish, lambda: publisher.hub_url, lambda: publisher.wait_for_actors(1, 1)):
        with pytest.raises(UsageError, match="the publisher is not started"):
            call()
    publisher.close()
    assert publisher.start() is publisher
    publisher.publish(announced=True)
    subscriber = subscribe_to(publisher.hub_url, tmp_path / "actor", mirror)
    uses: list[Callable[[], object]] = [
        lambda: subscriber.wait_for(0, 1), lambda: subscriber.serving().__enter__(), lambda: subscriber.node,
        subscriber.lease_work,
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(UsageError, match="the subscriber is not started"):
            use()
    subscriber.close()
    assert subscriber.start() is subscriber
    subscriber.wait_for(0, LIMIT)
    subscriber.close()
    subscriber.close()
    publisher.close()
    publisher.close()
    for again in (subscriber.start, publisher.start):
        with pytest.raises(UsageError, match="was started already"):
            again()
    with pytest.raises(UsageError, match="closed"):
        publisher.publish()
    assert not [t.name for t in threading.enumerate() if t.name in ("p2psync-trainer", "p2psync-actor")]


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = TrainerConfig(store=tmp_path / "file" / "store", key=KEY, host="127.0.0.1", hub_port=0, port=0)
    with pytest.raises(P2PSyncError):
        Publisher(layers(), config).start()
    actor = ActorConfig(hub_url=NOWHERE, trusted=PUBLIC, store=tmp_path / "file" / "store", host="127.0.0.1")  # type: ignore[arg-type]
    with pytest.raises(P2PSyncError):
        Subscriber(layers(), actor).start()
    assert not [t.name for t in threading.enumerate() if t.name in ("p2psync-trainer", "p2psync-actor")]


def test_a_port_in_use_is_named_by_its_parameter(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config = TrainerConfig(store=tmp_path, key=KEY, host="127.0.0.1", hub_port=port, port=0)
        with pytest.raises(P2PSyncError, match=rf"port {port} on .* is in use; .* another port with hub_port$"):
            Publisher(layers(), config).start()
        actor = ActorConfig(hub_url=NOWHERE, trusted=PUBLIC, store=tmp_path / "actor", host="127.0.0.1", port=port)  # type: ignore[arg-type]
        with pytest.raises(P2PSyncError, match=r"choose another port with port$"):
            Subscriber(layers(), actor).start()


def test_a_store_in_use_is_refused_without_naming_an_option(tmp_path: Path) -> None:
    with subscribe_to(NOWHERE, tmp_path, layers()), pytest.raises(P2PSyncError, match="in use by another") as refused:
        subscribe_to(NOWHERE, tmp_path, layers()).start()
    assert str(refused.value).endswith("stop that one, or give this one a directory of its own")


def test_paths_and_keys_may_be_text_or_objects(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(private_text(KEY))
    for key in (KEY, file, str(file), private_text(KEY)):
        config = TrainerConfig(store=str(tmp_path), key=key)  # type: ignore[arg-type]
        assert config.store == tmp_path
        assert config.key.private_bytes_raw() == KEY.private_bytes_raw()
    raw = KEY.public_key().public_bytes_raw()
    for trusted in (PUBLIC, raw, [PUBLIC], {raw}, (PUBLIC.encode(),), raw.hex()):
        actor = ActorConfig(hub_url=NOWHERE, trusted=trusted, store=str(tmp_path))  # type: ignore[arg-type]
        assert (actor.trusted, actor.store) == (frozenset({raw}), tmp_path)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"key": None}, "key=NoneType: give an Ed25519PrivateKey, or a key file"),
        ({"key": "missing"}, "key: the key file 'missing' cannot be read"),
        ({"key": PUBLIC + "\n"}, "cannot be read"),
        ({"store": None}, "store=None: give a directory"),
        ({"store": ""}, "store='': give a directory"),
    ],
)
def test_invalid_trainer_settings_are_refused(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line) as caught:
        TrainerConfig(**({"store": "run", "key": KEY} | wrong))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"trusted": None}, "trusted=None: give the publisher's public key"),
        ({"trusted": ()}, "give the publisher's public key"),
        ({"trusted": "ed25519:12"}, "is not a public key"),
        ({"trusted": b"short"}, "is not a public key"),
        ({"store": 3}, "store=3: give a directory"),
        ({"hub_url": None}, "hub_url=None: give the hub's address"),
    ],
)
def test_invalid_actor_settings_are_refused(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        ActorConfig(**({"hub_url": NOWHERE, "trusted": PUBLIC, "store": "run"} | wrong))


def test_a_wrong_config_type_is_refused() -> None:
    with pytest.raises(UsageError, match="give a TrainerConfig"):
        Publisher(layers(), None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give an ActorConfig"):
        Subscriber(layers(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("resident", [False, True])
def test_masters_have_the_keys_of_the_wrapped_module_and_its_published_names(tmp_path: Path, resident: bool) -> None:
    policy, mirror = layers(), layers()
    wrapped = torch.compile(policy, backend="eager")
    masters = {key: weight.detach().float() for key, weight in wrapped.named_parameters()}
    with publish_from(tmp_path, wrapped, masters=masters, resident=resident, names=lambda key: f"m.{key}") as publisher:
        publisher.publish(announced=True)
        with subscribe_to(publisher.hub_url, tmp_path / "actor", mirror, names=lambda key: f"m.{key}") as subscriber:
            for version in range(1, 3):
                if version == 2:
                    policy[0].weight.data = policy[0].weight.data.clone()
                for master in masters.values():
                    master.mul_(1.01)
                publisher.publish(announced=True)
                subscriber.wait_for(version, LIMIT)
                for key, weight in mirror.named_parameters():
                    assert torch.equal(weight, masters[f"_orig_mod.{key}"].bfloat16())
                    assert not resident or torch.equal(weight, policy.get_parameter(key))


def test_a_timeout_of_waiting_for_actors_names_the_missing_ones(publisher: Publisher) -> None:
    with pytest.raises(WaitTimeoutError, match=r"1 actors were asked for: after 0.3 s 0 of 0 actors"):
        publisher.wait_for_actors(1, 0.3)
