"""Settings that cannot be meant are refused by name, in one line, where they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync import ActorConfig, LedgerConfig, Rollouts, TrainerConfig, UsageError
from p2psync.protocol.keys import private_text, public_text

KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes_raw()


def actor(**settings: Any) -> ActorConfig:
    return ActorConfig(**({"hub_url": "http://127.0.0.1:7070", "trusted": PUBLIC, "store": "actor"} | settings))


def trainer(**settings: Any) -> TrainerConfig:
    return TrainerConfig(**({"store": "run", "key": KEY} | settings))


def test_a_trusted_key_is_text_bytes_an_object_or_a_file_one_or_several(tmp_path: Path) -> None:
    public = tmp_path / "public"
    public.write_text(public_text(PUBLIC) + "\n")
    given: list[Any] = [PUBLIC, public_text(PUBLIC), KEY.public_key(), public, str(public)]
    for one in (*given, given):
        assert actor(trusted=one).trusted == frozenset({PUBLIC})


def test_a_private_key_in_place_of_a_public_one_is_refused_and_not_shown(tmp_path: Path) -> None:
    text = private_text(KEY)
    ours, foreign = tmp_path / "trainer.key", tmp_path / "id_ed25519"
    ours.write_text(text)
    foreign.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n")
    given: list[Any] = [KEY, text, text.encode(), ours, str(ours), [PUBLIC, ours], foreign, text[:40]]
    for one in given:
        with pytest.raises(UsageError, match=r"^trusted: .* is a private key, .*: give the public key, ") as refused:
            actor(trusted=one)
        message = str(refused.value)
        assert "\n" not in message and text[30:40] not in message
        assert (public_text(PUBLIC) in message) == (one not in (foreign, text[:40]))
    with pytest.raises(UsageError, match=r"trainer\.key' is a private key"):
        actor(trusted=ours)


def test_a_public_key_in_place_of_the_private_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trainer.pub"
    file.write_text(public_text(PUBLIC) + "\n")
    with pytest.raises(UsageError, match="key: a public key, which signs nothing; give the file that `p2psync keys"):
        trainer(key=file)


def test_a_private_key_is_an_object_a_file_or_its_text(tmp_path: Path) -> None:
    file = tmp_path / "trainer.key"
    file.write_text(private_text(KEY))
    for one in (KEY, file, str(file), private_text(KEY)):
        assert trainer(key=one).key.public_key().public_bytes_raw() == PUBLIC


def test_paths_are_paths_or_text(tmp_path: Path) -> None:
    assert actor(store=str(tmp_path)).store == trainer(store=tmp_path).store == tmp_path
    assert Rollouts(journal=str(tmp_path / "ledger.db"))._journal == tmp_path / "ledger.db"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hub_url": "nonsense"}, "'nonsense' is not a hub's address"),
        ({"trusted": "nonsense"}, "trusted: 'nonsense' is not a public key"),
        ({"trusted": Path("nowhere")}, "trusted: the key file 'nowhere' cannot be read"),
        ({"trusted": []}, "trusted=[]: give the publisher's public key"),
        ({"store": 3}, "store=3: give a directory"),
        ({"port": "7071"}, "port='7071': give a whole number from 0 to 65535"),
        ({"port": 99999}, "port=99999: give a whole number from 0 to 65535"),
        ({"streams": -1}, "streams=-1: give a whole number from 0 to 16"),
        ({"scrub_share": 2}, "scrub_share=2: give a number from 0 to 1"),
        ({"role": "rely"}, "role='rely': did you mean relay?"),
        ({"role": "x"}, "role='x': choose actor or relay"),
        ({"region": 3}, "region=3: give text"),
        ({"probe": "yes"}, "probe='yes': give True or False"),
        ({"follow_run": "newst"}, "follow_run wants newest, any or"),
    ],
)
def test_an_actors_setting_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        actor(**settings)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key": None}, "key=NoneType: give an Ed25519PrivateKey"),
        ({"key": "nowhere"}, "key: the key file 'nowhere' cannot be read"),
        ({"hub_url": "nonsense"}, "'nonsense' is not a hub's address"),
        ({"profile": "fst"}, "profile='fst': did you mean fast?"),
        ({"ttl": -1}, "ttl=-1: give a number of 0.1 or more"),
        ({"keep": 0.5}, "keep=0.5: give a whole number of 0 or more"),
        ({"anchor_ratio": True}, "anchor_ratio=True: give a number of 0 or more"),
        ({"squash": 1}, "squash=1: give True or False"),
    ],
)
def test_a_trainers_setting_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        trainer(**settings)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_a_ledgers_setting_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="max_items='3': give a whole number"):
        LedgerConfig(max_items="3")  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    assert "open-sesame" not in repr(actor(token="open-sesame")) + repr(trainer(token="open-sesame"))
    assert "key=" not in repr(trainer())
