"""Bad input: one clear line on stderr, exit 1 (2 for wrong usage), nothing changed on disk, nothing committed."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkpoint_parts import Model, copy_of, sums
from child_signals import ignore_interrupts
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from daemon_parts import LOCAL, Process, Swarm

from p2psync.cli.main import main
from p2psync.protocol.keys import private_text, public_text

UNTRUSTED_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def running(shared: Swarm) -> Swarm:
    """A hub that wants a token, with version 0 at one actor, "held"."""
    shared.hub(token=TOKEN)
    trainer = shared.trainer(hub=False, token=TOKEN)
    version = shared.publish(Model(rows=64), trainer)
    actor = shared.actor("held", token=TOKEN)
    shared.converged(actor, "held", version)
    return shared


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refused(process: Process, code: int = 1) -> str:
    """Checks that a process was refused; returns its one line."""
    assert process.exit_code() == code, process.stderr
    lines = [line for line in process.stderr.splitlines() if line.startswith("p2psync: ")]
    assert len(lines) == 1 and "Traceback" not in process.stderr, process.stderr
    assert not process.find("Committed") and not process.find("Published")
    return lines[0]


def test_an_actor_that_trusts_another_key_is_refused(running: Swarm) -> None:
    untrusted = public_text(UNTRUSTED_KEY.public_key().public_bytes_raw())
    actor = running.actor("untrusted", trust=untrusted, token=TOKEN)
    assert "a key that is not trusted" in refused(actor)
    assert running.current("untrusted") == {}


def test_a_wrong_join_token_is_refused(running: Swarm) -> None:
    assert "token" in refused(running.actor("tokenless", token="guess"))
    assert "token" in refused(running.run("status", running.url))


def test_a_port_in_use_is_refused_in_one_line(running: Swarm, tmp_path: Path) -> None:
    with taken_port() as port:
        assert f"port {port} on" in (
            told := refused(running.run("hub", "--trust", running.public, *LOCAL, "--port", port))
        )
        assert told.endswith("choose another port with --port")
        assert str(port) in refused(running.actor("portless", port=port, token=TOKEN))
        epoch = (running.place / "store" / "run.json").read_text()
        store = copy_of(running.place / "store", tmp_path / "store")
        assert str(port) in refused(running.trainer(hub=False, store=store, port=port, token=TOKEN))
        assert (store / "run.json").read_text() == epoch, "the run was not taken over"


def test_publishing_without_a_hub_is_refused(running: Swarm, tmp_path: Path) -> None:
    with taken_port() as port:
        pass
    place = next(running.watch.iterdir())
    flags = ["--to", f"http://127.0.0.1:{port}", "--key", running.key_file, "--store", tmp_path / "store"]
    assert "cannot be reached" in refused(running.run("publish", place, *flags, *LOCAL))


def test_a_trainer_whose_key_the_hub_does_not_trust_is_refused(running: Swarm, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(private_text(UNTRUSTED_KEY))
    rival = running.trainer(hub=False, store=tmp_path / "store", key=key, token=TOKEN)
    assert "does not trust" in refused(rival)
    join = ["--join", running.url, "--trust", running.public, "--token", TOKEN]
    assert running.run("verify", running.place / "held" / "current", *join).exit_code() == 0


def test_a_second_actor_in_one_directory_is_refused(running: Swarm, tmp_path: Path) -> None:
    before = sums(running.place / "held" / "current")
    told = refused(running.actor("held", token=TOKEN))
    assert "in use by another process: stop that one, or give this one a directory of its own" in told
    apart = running.actor("held", store=tmp_path / "store", token=TOKEN)
    assert "kept by another process" in refused(apart)
    assert sums(running.place / "held" / "current") == before


def test_a_second_trainer_with_one_store_is_refused(running: Swarm) -> None:
    assert "in use by another process" in refused(running.trainer(hub=False, token=TOKEN))


def test_a_directory_with_a_foreign_current_is_refused(running: Swarm) -> None:
    place = running.place / "foreign" / "current"
    place.mkdir(parents=True)
    (place / "precious.txt").write_text("mine")
    assert "move it away" in refused(running.actor("foreign", token=TOKEN))
    assert [path.name for path in (running.place / "foreign").iterdir()] == ["current"]


def test_a_store_that_cannot_be_made_is_refused(running: Swarm, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused(running.actor("storeless", store=tmp_path / "file" / "x", token=TOKEN))
    trainer = running.trainer(hub=False, store=tmp_path / "file" / "x", token=TOKEN)
    assert str(tmp_path / "file") in refused(trainer)


def test_a_store_signed_with_another_key_is_refused(running: Swarm, tmp_path: Path) -> None:
    store = copy_of(running.place / "store", tmp_path / "store")
    key = tmp_path / "key"
    key.write_text(private_text(UNTRUSTED_KEY))
    assert "were signed with" in refused(running.trainer(hub=False, store=store, key=key, token=TOKEN))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainer", "--watch", "/nonexistent/dir"], "is not a directory"),
        (["actor", "--join", "http://h:1", "--trust", "no key"], "is not a public key"),
        (["actor", "--join", "http://h:1", "--trust", "x" * 5000], "is not a public key"),
        (["actor", "--join", "http://h:1", "--trust", "ab" * 32, "--base", "/no"], "does not exist"),
        (["actor", "--join", "127.0.0.1:7070", "--trust", "ab" * 32], "is not a hub's address"),
        (["actor", "--join", "ftp://127.0.0.1:1", "--trust", "ab" * 32], "is not a hub's address"),
        (["actor", "--join", "http://127.0.0.1", "--trust", "ab" * 32], "is not a hub's address"),
        (["actor", "--join", "http://h:1/path", "--trust", "ab" * 32], "is not a hub's address"),
        (["status", "http://h"], "is not a hub's address"),
        (["actor", "--join", "http://h:1", "--trust", "ab" * 32, "--port", "70000"], "--port"),
        (["hub", "--trust", "ab" * 32, "--ttl", "0"], "--ttl"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    into = ["--into", str(tmp_path / "into")] if arguments[0] == "actor" else []
    monkeypatch.setattr("sys.argv", ["p2psync", *arguments, *into])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert message in told and "Traceback" not in told
    assert not (tmp_path / "into").exists()


def test_a_hub_that_is_not_there_yet_is_waited_for(swarm: Swarm) -> None:
    swarm.hub()
    hub = swarm.processes[-1]
    assert hub.stop() == 0
    actor = swarm.actor("patient", until=0)
    actor.wait_for("HubUnreachable")
    swarm.hub(swarm.port)
    trainer = swarm.trainer(hub=False)
    swarm.converged(actor, "patient", swarm.publish(Model(rows=64), trainer))
    assert actor.exit_code() == 0


def test_a_trainer_too_waits_for_a_hub_of_its_own(swarm: Swarm) -> None:
    swarm.hub()
    assert swarm.processes[-1].stop() == 0
    trainer = swarm.trainer(hub=False)
    trainer.wait_for("HubUnreachable")
    swarm.hub(swarm.port)
    actor = swarm.actor("patient", until=0)
    swarm.converged(actor, "patient", swarm.publish(Model(rows=64), trainer))


def test_a_trainer_says_that_it_made_a_key_that_did_not_exist(swarm: Swarm, tmp_path: Path) -> None:
    key = tmp_path / "misspelt.key"
    made = swarm.trainer(key=key)
    made.wait_for("Watching")
    assert [note for note in made.find("Note") if str(key) in str(note["message"])]
    again = Path(key).read_text()
    assert made.stop() == 0 and key.read_text() == again


def test_a_second_trainer_fences_the_first(swarm: Swarm) -> None:
    swarm.hub()
    first = swarm.trainer(hub=False)
    model = Model(rows=64)
    swarm.publish(model, first)
    actor = swarm.actor("actor")
    swarm.converged(actor, "actor", 0)
    store = copy_of(swarm.place / "store", swarm.place / "store-2")
    (swarm.place / "more").mkdir()
    second = swarm.trainer(hub=False, store=store, watch=swarm.place / "more")
    assert "took this run over" in refused_later(first)
    swarm.watch = swarm.place / "more"
    version = swarm.publish(model.step(), second)
    assert version == 1
    swarm.converged(actor, "actor", version)


def test_a_new_run_takes_a_held_hub_only_with_take_over(swarm: Swarm) -> None:
    swarm.hub()
    first = swarm.trainer(hub=False)
    swarm.publish(Model(rows=64), first)
    Model(rows=64, seed=2).write(swarm.place / "other")
    flags = ["--to", swarm.url, "--key", swarm.key_file, "--store", swarm.place / "store-2", "--actors", 0]
    told = refused(swarm.run("publish", swarm.place / "other", *flags, *LOCAL))
    assert "is at work" in told and "--take-over" in told and first.process.poll() is None
    second = swarm.run("publish", swarm.place / "other", *flags, *LOCAL, "--take-over")
    assert second.exit_code() == 0, second.stderr
    last = refused_later(first)
    assert "another run took the hub over: trainer" in last and "with --take-over" in last


def refused_later(process: Process) -> str:
    """The line with which a daemon ends that was at work."""
    assert process.exit_code() == 1, process.stderr
    return process.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["hub", "actor"])
def test_a_daemon_in_the_background_ignores_interrupts_and_ends_at_sigterm(running: Swarm, command: str) -> None:
    words: dict[str, list[object]] = {
        "hub": ["--port", 0],
        "actor": ["--join", running.url, "--into", running.place / "background", "--token", TOKEN],
    }
    process = running.run(command, "--trust", running.public, *words[command], *LOCAL, signals=ignore_interrupts)
    process.wait_for("Note" if command == "hub" else "HubJoined")
    process.process.send_signal(signal.SIGINT)
    assert process.stop(signal.SIGTERM) == 0, "130 would be the answer to the interrupt"
