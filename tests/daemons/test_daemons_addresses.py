"""Daemons in networks of one family and of both; and others can use the printed URLs."""

from __future__ import annotations

import re
import shlex

import pytest
from checkpoint_parts import Model
from daemon_parts import Process, Swarm
from private_network import LINK, NO_IPV4, OWN_V4, OWN_V6, inside, needs_root

pytestmark = [pytest.mark.root, needs_root]


def printed(process: Process) -> str:
    """The line that tells of the hub."""
    return str(process.wait_for("Note", message=lambda m: m.startswith("hub at "))["message"])


def test_a_swarm_lives_on_a_machine_without_ipv4(swarm: Swarm) -> None:
    def live() -> None:
        hub = swarm.hub(host="")
        port = re.search(r":(\d+)$", printed(hub))
        assert port is not None
        swarm.url = f"http://[::1]:{port[1]}"
        trainer = swarm.trainer(hub=False, host="::1")
        place = ("--store", swarm.place / "relay", "--join", swarm.url, "--trust", swarm.public)
        relay = swarm.run("actor", "--relay", *place, "--json", "-", "--host", "[::1]")
        version = swarm.publish(Model(rows=64), trainer)
        actor = swarm.actor("a", host="")
        swarm.converged(actor, "a", version)
        relay.wait_for("Committed", version=version)
        relay.wait_for("PeerUp")

    inside(live, [NO_IPV4])


def test_actors_of_either_family_join_by_the_url_of_a_trainer_of_both(swarm: Swarm) -> None:
    def live() -> str:
        trainer = swarm.trainer(host="", hub_port=0)
        line = printed(trainer)
        version = swarm.publish(Model(rows=64), trainer)
        command = shlex.split(line.split("; actors: ", 1)[1])
        assert command[:2] == ["p2psync", "actor"]
        pasted = [str(swarm.place / "four") if word == "DIR" else word for word in command[1:]]
        four = swarm.run(*pasted, "--json", "-", "--host", OWN_V4)
        six = swarm.actor("six", join=f"http://[{OWN_V6}]:{swarm.port}", host=OWN_V6)
        swarm.converged(four, "four", version)
        swarm.converged(six, "six", version)
        return line

    assert f"--join http://{OWN_V4}:" in inside(live, LINK)


def test_a_hub_without_an_address_for_others_warns_and_its_url_is_refused_plainly(swarm: Swarm) -> None:
    def live() -> tuple[str, str]:
        hub = swarm.run("hub", "--trust", swarm.public, "--port", 0, "--json", "-")
        line = printed(hub)
        pasted = swarm.run("status", line.removeprefix("hub at "))
        assert pasted.exit_code() == 2
        return line, pasted.stderr

    line, refusal = inside(live)
    assert line.startswith("hub at http://<address of this machine>:")
    assert "is not a hub's address" in refusal


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--host", "127.0.0.1:7071", "give a host name or an address without a port"),
        ("--host", "::g", "give a host name or an address without a port"),
        ("--host", "no.such.invalid", "give an address of this machine with --host"),
        ("--advertise", "fe80::1%eth0", "a zone names an interface of this machine only"),
        ("--advertise", "0.0.0.0", "no address that reaches this machine"),
        ("--advertise", "192.0.2.1:7071", "give a host name or an address without a port"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_in_one_line(
    swarm: Swarm, flag: str, value: str, message: str
) -> None:
    actor = swarm.actor("a", flag, value, join="http://127.0.0.1:9")
    assert actor.exit_code() in (1, 2)
    lines = [line for line in actor.stderr.splitlines() if line.startswith("p2psync: ")]
    assert len(lines) == 1 and message in lines[0] and value in lines[0]


def test_brackets_are_missed_by_name(swarm: Swarm) -> None:
    status = swarm.run("status", "http://::1:7070")
    assert status.exit_code() == 2
    assert "in brackets: http://[::1]:7070" in status.stderr
