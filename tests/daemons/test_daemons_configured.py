"""Options from a file and from the environment, and an actor that cannot be reached from outside."""

from __future__ import annotations

import json

import pytest
from checkpoint_parts import Model
from daemon_parts import Swarm


def test_options_come_from_flags_over_the_environment_over_a_file(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.fresh = swarm.plans = True  # as people start them
    trainer = swarm.trainer()
    version = swarm.publish(Model(rows=64), trainer)
    file = swarm.place / "p2psync.toml"
    file.write_text(
        f'[actor]\njoin = "{swarm.url}"\ntrust = ["{swarm.public}"]\nregion = "of-the-file"\nlisten = false\n'
        f'host = "127.0.0.1"\njson = "-"\n'
    )
    command = ("--config", file, "actor", "--into")
    by_file = swarm.run(*command, swarm.place / "a")
    monkeypatch.setenv("P2PSYNC_ACTOR_REGION", "of-the-environment")
    by_environment = swarm.run(*command, swarm.place / "b")
    by_flag = swarm.run(*command, swarm.place / "c", "--region", "of-the-flag")
    for actor, name in ((by_file, "a"), (by_environment, "b"), (by_flag, "c")):
        swarm.converged(actor, name, version)
    status = swarm.run("status", swarm.url, "--json", swarm.place / "status")
    assert status.exit_code() == 0
    members = [m["info"] for m in json.loads((swarm.place / "status").read_text())["view"]["members"]]
    actors = [info for info in members if info["role"] == "actor"]
    assert {info["region"] for info in actors} == {"of-the-file", "of-the-environment", "of-the-flag"}
    assert all(info.get("port", 0) == 0 for info in actors), "none of them can be dialled; all of them got it"
