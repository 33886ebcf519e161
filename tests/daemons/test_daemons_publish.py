"""`p2psync publish` to a hub that runs by itself: each publish is a process that comes, seeds and goes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from checkpoint_parts import Model, sums
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from daemon_parts import LOCAL, Process, Swarm

from p2psync.membership.records import NodeInfo
from p2psync.net.hub_client import HubClient
from p2psync.protocol.keys import private_text, public_text


def publishing(swarm: Swarm, place: Path, *more: object) -> Process:
    flags = ["--to", swarm.url, "--key", swarm.key_file, "--store", swarm.place / "store"]
    return swarm.run("publish", place, *flags, *LOCAL, *more)


def test_publish_seeds_until_the_actors_have_it_and_goes(swarm: Swarm) -> None:
    hub = swarm.hub()
    model, place = Model(), swarm.place / "checkpoint"
    actors = {name: swarm.actor(name) for name in ("one", "two")}
    for version in range(2):
        swarm.sums[version] = model.step().write(place if version == 0 else swarm.place / "next")
        done = publishing(swarm, place if version == 0 else swarm.place / "next", "--actors", 2)
        assert done.exit_code() == 0, done.stderr
        assert [event["version"] for event in done.find("Published")] == [version]
        for name, actor in actors.items():
            swarm.converged(actor, name, version)
    again = publishing(swarm, swarm.place / "next", "--actors", 2)
    late = swarm.actor("late", until=1)
    assert again.exit_code() == 0
    assert again.find("Note", message=lambda m: "nothing to publish" in m) and not again.find("Published")
    assert late.exit_code() == 0
    alone = swarm.actor("alone", until=1)  # no trainer is there any more: the swarm has it
    assert alone.exit_code() == 0
    assert swarm.current("alone") == swarm.sums[1]
    assert hub.stop(signal.SIGINT) == 130
    assert "Traceback" not in hub.stderr


def test_a_version_signed_by_another_key_is_not_committed(swarm: Swarm, tmp_path: Path) -> None:
    """A hub that also trusts another key announces the run of that key; the actor trusts its own key alone."""
    untrusted = tmp_path / "untrusted"
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    untrusted.write_text(private_text(other))
    theirs = public_text(other.public_key().public_bytes_raw())
    hub = swarm.run("hub", "--trust", swarm.public, "--trust", theirs, "--port", 0, *LOCAL)
    swarm.found(hub)
    model, place = Model(), swarm.place / "checkpoint"
    swarm.sums[0] = model.write(place)
    actor = swarm.actor("actor")
    assert publishing(swarm, place).exit_code() == 0
    swarm.converged(actor, "actor", 0)
    model.step().write(tmp_path / "forged")
    flags = ["--to", swarm.url, "--key", untrusted, "--store", tmp_path / "rival-store"]
    rival = swarm.run("publish", tmp_path / "forged", *flags, *LOCAL)
    actor.wait_for("Trouble", message=lambda m: "a key that is not trusted" in m)
    assert sums(swarm.place / "actor" / "current") == swarm.sums[0]
    rival.kill()
    assert actor.stop() == 0
    assert [event["version"] for event in actor.find("Committed")] == [0]


def test_publish_reports_that_no_actor_came(swarm: Swarm) -> None:
    swarm.hub()
    Model(rows=64).write(swarm.place / "checkpoint")
    done = publishing(swarm, swarm.place / "checkpoint", "--timeout", 0.5)
    assert done.exit_code() == 1
    said = done.stderr.splitlines()[-1]
    assert said == "p2psync: no actor came for it within 0.5 s; it stays announced: publish again to seed it"


async def silent(swarm: Swarm) -> HubClient:
    """A member that renews its lease now and then, and never acknowledges anything."""
    client = HubClient(swarm.url)
    await client.join(NodeInfo(node="5" * 32, role="actor", host="127.0.0.1", port=0))
    return client


async def test_publish_does_not_wait_for_ever_for_a_member_that_never_acknowledges(swarm: Swarm) -> None:
    swarm.hub(ttl=60)
    Model(rows=64).write(swarm.place / "checkpoint")
    async with await silent(swarm):
        actor = swarm.actor("one")
        done = publishing(swarm, swarm.place / "checkpoint", "--actors", 1, "--straggler-timeout", 1)
        assert await asyncio.to_thread(done.exit_code) == 0, done.stderr
        told = done.find("Trouble", message=lambda m: "not waiting any longer: 1 of 2 actors run version 0" in m)
        assert told and "55555555 at 127.0.0.1 (runs nothing)" in told[0]["message"]
        assert actor.find("Committed", version=0)


async def test_publish_names_the_missing_actors_at_its_timeout(swarm: Swarm) -> None:
    swarm.hub(ttl=60)
    Model(rows=64).write(swarm.place / "checkpoint")
    async with await silent(swarm):
        done = publishing(swarm, swarm.place / "checkpoint", "--timeout", 1.5)
        assert await asyncio.to_thread(done.exit_code) == 1
    said = done.stderr.splitlines()[-1]
    assert said.startswith("p2psync: after 1.5 s 0 of 1 actors run version 0; missing: 55555555 at 127.0.0.1 (runs no")
