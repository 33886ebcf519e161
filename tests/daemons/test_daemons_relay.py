"""A relay keeps no weights: it fetches announced versions, serves them, and reports its progress."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from checkpoint_parts import Model
from daemon_parts import Process, Swarm


def relay(swarm: Swarm, name: str = "relay") -> Process:
    """A relay with its store at `place/name`."""
    options = ("--join", swarm.url, "--trust", swarm.public, "--store", swarm.place / name)
    return swarm.run("actor", "--relay", "--host", "127.0.0.1", "--json", "-", *options)


def payloads(place: Path) -> dict[str, bytes]:
    """The payload of every sealed pack of a store, by the manifest's id."""
    return {path.parent.name: (path.parent / "payload").read_bytes() for path in place.glob("packs/*/done")}


def test_a_relay_holds_only_published_chunks(swarm: Swarm) -> None:
    trainer = swarm.trainer(anchor_ratio=50)
    daemon = relay(swarm)
    model = Model()
    for version in range(3):
        assert swarm.publish(model.step() if version else model, trainer) == version
        event = daemon.wait_for("Committed", version=version)
        assert event["total"] == trainer.find("Published", version=version)[0]["total"]
    daemon.stop()
    assert payloads(swarm.place / "relay") == payloads(swarm.place / "store")
    assert not list((swarm.place / "relay").rglob("*.safetensors"))


def test_an_actor_gets_everything_from_a_relay_alone(swarm: Swarm) -> None:
    hub = swarm.hub()
    trainer = swarm.trainer(hub=False)
    daemon = relay(swarm)
    swarm.publish(Model(), trainer)
    daemon.wait_for("Committed", version=0)
    trainer.kill()
    actor = swarm.actor("one")
    swarm.converged(actor, "one", 0)
    hub.stop()


def test_a_relay_that_was_killed_goes_on_from_where_it_was(swarm: Swarm) -> None:
    trainer = swarm.trainer(anchor_ratio=50)
    daemon = relay(swarm)
    model = Model()
    swarm.publish(model, trainer)
    daemon.wait_for("Committed", version=0)
    daemon.process.send_signal(signal.SIGKILL)
    daemon.exit_code()
    swarm.publish(model.step(), trainer)
    delta = trainer.find("Published", version=1)[0]
    again = relay(swarm)
    assert again.wait_for("Note", message=lambda m: m.startswith("version 0 is live"))
    fetched = again.wait_for("Committed", version=1)["fetched_bytes"]
    assert fetched == delta["payload_bytes"]


def test_a_relay_whose_last_chunks_were_lost_fetches_them_again(swarm: Swarm) -> None:
    trainer = swarm.trainer(anchor_ratio=50)
    daemon = relay(swarm)
    swarm.publish(Model(rows=1024, columns=512), trainer)  # of several chunks
    daemon.wait_for("Committed", version=0)
    daemon.stop()
    (pack,) = (swarm.place / "relay" / "packs").glob("*/done")
    pack.unlink()  # as after a power loss: not all that was written is on the disk
    with (pack.parent / "payload").open("r+b") as file:
        file.write(bytes(4096))
    again = relay(swarm)
    assert 0 < again.wait_for("Committed", version=0)["fetched_bytes"] < (pack.parent / "payload").stat().st_size
    again.stop()
    assert payloads(swarm.place / "relay") == payloads(swarm.place / "store")


def test_the_hub_knows_a_relay_as_one(swarm: Swarm) -> None:
    trainer = swarm.trainer()
    daemon = relay(swarm)
    swarm.publish(Model(), trainer)
    daemon.wait_for("Committed", version=0)
    status = swarm.run("status", swarm.url, "--json", "-")
    assert status.exit_code() == 0
    members = json.loads(status.output)["view"]["members"]
    assert [m["version"] for m in members if m["info"]["role"] == "relay"] == [0]


def test_wrong_options_are_refused_in_one_line(swarm: Swarm) -> None:
    url, key = "http://127.0.0.1:9", swarm.public
    for options in (
        ("--relay",),
        ("--relay", "--into", swarm.place / "x", "--store", swarm.place / "y"),
        (),
    ):
        tried = swarm.run("actor", "--join", url, "--trust", key, *options)
        assert tried.exit_code() == 2
        assert "--into" in tried.stderr or "--store" in tried.stderr
        assert len(tried.stderr.splitlines()) == 1
