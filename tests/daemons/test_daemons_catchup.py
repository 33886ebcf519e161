"""Profiles and ways of catching up, with real processes: late actors fetch few bytes and get every bit."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
from checkpoint_parts import Model, copy_of
from daemon_parts import Event, Process, Swarm


class Training(Model):
    """A model of which each step changes a part of the same few units, so that squashing pays."""

    def __init__(self, seed: int = 0, rows: int = 4096) -> None:
        super().__init__(seed, rows=rows)
        self.hot = {
            name: self.rng.random(bits.shape) < 0.05
            for tensors in self.shards.values()
            for name, bits in tensors.items()
        }

    def step(self, share: float = 0.5) -> Training:
        """Move about this share of the hot units up or down."""
        for tensors in self.shards.values():
            for name, bits in tensors.items():
                where = self.hot[name] & (self.rng.random(bits.shape) < share)
                bits[where] += self.rng.choice(np.array([1, 0xFFFF], np.uint16), int(where.sum()))
        return self


def published(trainer: Process, version: int) -> Event:
    """The delta (or, for version 0, the anchor) of a version."""
    return trainer.wait_for("Published", version=version, anchor=version == 0)


def known_to_run(swarm: Swarm, version: int, actors: int) -> None:
    """Wait until the hub knows that so many actors run a version."""
    for _ in range(30):
        status = swarm.run("status", swarm.url, "--json", swarm.place / "status")
        assert status.exit_code() == 0
        members = json.loads((swarm.place / "status").read_text())["view"]["members"]
        if sum(member.get("version") == version for member in members if member["info"]["role"] == "actor") == actors:
            return
    pytest.fail(f"the hub did not hear that {actors} actors run version {version}")


@pytest.mark.parametrize("profile", ["fast", "tight"])
def test_an_actor_that_was_away_catches_up_by_a_squash(swarm: Swarm, profile: str) -> None:
    trainer = swarm.trainer(ttl=600, anchor_ratio=50, profile=profile)
    model = Training()
    swarm.publish(model, trainer)
    here, away = swarm.actor("here"), swarm.actor("away")

    def both(version: int) -> None:
        swarm.converged(here, "here", version)
        swarm.converged(away, "away", version)

    both(0)
    both(swarm.publish(model.step(), trainer))
    # Squashes are made for versions that members report; a killed one reports nothing more.
    known_to_run(swarm, 1, actors=2)
    away.kill()  # its lease goes on
    for _ in range(6):
        last = swarm.publish(model.step(), trainer)
        swarm.converged(here, "here", last)
    squash = trainer.wait_for("Squashed", base=1)
    assert squash["profile"] in (profile, "fast"), "a publish that waited has it made without weights"
    away = swarm.actor("away")
    event = swarm.converged(away, "away", last)
    chain = [published(trainer, version) for version in range(2, last + 1)]
    assert {made["profile"] for made in chain} == {profile}
    assert event["fetched_bytes"] < 0.8 * sum(made["payload_bytes"] for made in chain)
    assert squash["payload_bytes"] < 0.8 * squash["chain_bytes"]
    way = away.find("Fetching")[-1]
    assert not way["anchor"] and way["steps"] < len(chain)
    assert len(away.find("Committed")) == 1, "in one go"
    # Once nobody is behind any more, it goes.
    for _ in range(2):
        both(swarm.publish(model.step(), trainer))
    trainer.wait_for("Note", message=f"retired squash {squash['base']} → {squash['version']}")
    assert not here.find("Trouble") and not away.find("Trouble")


def test_a_paused_actor_gets_every_bit_after_squashes(swarm: Swarm) -> None:
    trainer = swarm.trainer(ttl=600, anchor_ratio=50, profile="tight")
    model = Training(rows=8192)
    swarm.publish(model, trainer)
    actor = swarm.actor("one")
    swarm.converged(actor, "one", 0)
    swarm.converged(actor, "one", swarm.publish(model.step(), trainer))
    actor.process.send_signal(signal.SIGSTOP)
    for _ in range(6):
        last = swarm.publish(model.step(), trainer)
    trainer.wait_for("Squashed")
    # It goes on with a view of long ago, and with whatever it was about to do.
    actor.process.send_signal(signal.SIGCONT)
    swarm.converged(actor, "one", last)
    assert not actor.find("Trouble")


def test_squashing_can_be_turned_off(swarm: Swarm) -> None:
    trainer = swarm.trainer("--no-squash", ttl=600, anchor_ratio=50)
    model = Training(rows=1024)
    swarm.publish(model, trainer)
    paused = swarm.actor("paused")
    swarm.converged(paused, "paused", 0)
    paused.process.send_signal(signal.SIGSTOP)
    for _ in range(5):
        last = swarm.publish(model.step(), trainer)
    paused.process.send_signal(signal.SIGCONT)
    event = swarm.converged(paused, "paused", last)
    assert paused.find("Fetching")[-1]["steps"] >= 4 and not trainer.find("Squashed")
    chain = [published(trainer, version) for version in range(event["since"] + 1, last + 1)]
    for figure in ("changed", "total", "payload_bytes"):
        assert event[figure] == sum(made[figure] for made in chain)
    assert event["steps"] == len(chain) and event["fetched_bytes"] >= event["wasted_bytes"]


def test_auto_publishes_tight_over_slow_links_and_fast_over_fast_ones(swarm: Swarm) -> None:
    trainer = swarm.trainer("--link-mbps", 1)
    model = Training(rows=1024)
    swarm.publish(model, trainer)
    actor = swarm.actor("one")
    swarm.converged(actor, "one", 0)
    for version in (1, 2):
        assert published(trainer, swarm.publish(model.step(), trainer))["profile"] == "tight"
        swarm.converged(actor, "one", version)
    chosen = trainer.wait_for("ProfileChosen")
    assert chosen["profile"] == "tight" and "1 Mbit/s" in chosen["why"]
    assert chosen["seconds"]["tight"] < chosen["seconds"]["fast"]
    status = swarm.run("status", swarm.url, "--json", swarm.place / "status")
    assert status.exit_code() == 0 and "profile tight: the slowest link gives 1 Mbit/s" in status.output
    found = json.loads((swarm.place / "status").read_text())
    assert {a["profile"] for a in found["view"]["lineage"] if a.get("base") is not None} == {"tight"}
    assert trainer.stop() == 0
    trainer = swarm.trainer("--link-mbps", 1_000_000)
    for version in (3, 4):
        seen = len(actor.events)
        assert published(trainer, swarm.publish(model.step(), trainer))["profile"] == "fast"
        swarm.converged(actor, "one", version, seen)
    assert trainer.wait_for("ProfileChosen")["profile"] == "fast"


def test_a_late_or_killed_actor_catches_up_along_a_chain_of_tight_deltas(swarm: Swarm) -> None:
    trainer = swarm.trainer("--no-squash", profile="tight", anchor_ratio=50)
    model = Training(rows=1024)
    swarm.publish(model, trainer)
    copy_of(swarm.watch / "step-0", swarm.place / "version-0")
    actor = swarm.actor("one")
    swarm.converged(actor, "one", 0)
    for _ in range(2):
        swarm.converged(actor, "one", swarm.publish(model.step(), trainer))
    actor.kill()
    for _ in range(3):
        last = swarm.publish(model.step(), trainer)
    # The tensors change too, and files.
    model.files["config.json"] = b"{}"
    model.shards[next(iter(model.shards))]["extra"] = model.tensor(20, 256)
    model.hot["extra"] = np.ones((20, 256), np.bool_)
    last = swarm.publish(model.step(), trainer)
    again = swarm.actor("one", scrub=50)
    swarm.converged(again, "one", last)
    late = swarm.actor("late", until=last)
    swarm.converged(late, "late", last)
    based = swarm.actor("based", base=swarm.place / "version-0", until=last)
    swarm.converged(based, "based", last)
    assert not based.find("Fetching", anchor=True)
    assert (late.exit_code(), based.exit_code()) == (0, 0)
    trainer.kill()
    trainer = swarm.trainer(profile="tight", anchor_ratio=50)
    final = swarm.publish(model.step(), trainer)
    swarm.converged(again, "one", final)
    assert published(trainer, final)["profile"] == "tight"
    assert not again.find("Trouble", message=lambda m: "damaged" in m)


def test_a_profile_that_there_is_not_is_wrong_usage(swarm: Swarm) -> None:
    process = swarm.run("trainer", "--watch", swarm.watch, "--profile", "thin")
    assert process.exit_code() == 2
    assert process.stderr.strip() == "p2psync: profile='thin': choose auto, fast or tight"
