"""A watching trainer on a real directory publishes checkpoints, reports faults, and remembers both."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from trainer_parts import KEY

from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.observe.events import Event, Note, Published, Trouble, Watching
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.daemon import WatchConfig, WatchDaemon, publish_checkpoint
from p2psync.trainer.node import TrainerNode
from p2psync.trainer.versions.source import CheckpointReadError
from p2psync.trainer.watch.locations import CheckpointRules
from p2psync.trainer.watch.memory import PendingPublish, WatchMemory
from p2psync.trainer.watch.memory_store import load_memory, save_memory

#: No test waits longer for an event (seconds).
LIMIT = 60.0


def write(place: Path, value: float, count: int = 8) -> Path:
    """A checkpoint that appears whole."""
    hidden = place.with_name(f".{place.name}")
    hidden.mkdir(parents=True)
    save_file({"w": torch.full((count,), value, dtype=torch.bfloat16)}, hidden / "model.safetensors")
    hidden.rename(place)
    return place


class Trainer:
    """A trainer and its daemon on this loop; events are awaited, not polled for."""

    def __init__(self, place: Path, **rules: object) -> None:
        self.watched = place / "watched"
        self.watched.mkdir(exist_ok=True)
        config = TrainerConfig(
            store=place / "store", key=KEY, host="127.0.0.1", hub_port=0, port=0, probe=False, plan=False
        )
        self.events: list[Event] = []
        self.heard = asyncio.Event()
        self.node = TrainerNode(config, self.hear)
        self.rules = CheckpointRules(**rules)  # type: ignore[arg-type]

    def hear(self, event: Event) -> None:
        self.events.append(event)
        self.heard.set()

    async def until(self, holds: Callable[[Event], bool]) -> Event:
        """Wait for the first event for which `holds` is true."""
        async with asyncio.timeout(LIMIT):
            while not (found := [event for event in self.events if holds(event)]):
                self.heard.clear()
                await self.heard.wait()
        return found[0]

    async def published(self, name: str) -> Published:
        """Wait for the version made of this checkpoint."""
        event = await self.until(lambda e: isinstance(e, Published) and Path(e.checkpoint).name == name)
        assert isinstance(event, Published)
        return event

    async def said(self, text: str) -> Event:
        """Wait for the first event whose line contains `text`."""
        return await self.until(lambda e: text in e.line())

    async def run(self, script: Callable[[Trainer], Awaitable[None]]) -> list[Event]:
        """Watch while a script runs."""
        await self.node.start()
        daemon = WatchDaemon(
            self.node, self.watched, config=WatchConfig(rules=self.rules, settle=0), on_event=self.hear
        )
        running = asyncio.create_task(daemon.run())
        try:
            await script(self)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.node.stop()
        return self.events


def run(place: Path, script: Callable[[Trainer], Awaitable[None]], **rules: object) -> list[Event]:
    """Returns the events of a trainer that watched `place/watched` while a script ran."""

    async def main() -> list[Event]:
        return await Trainer(place, **rules).run(script)

    return asyncio.run(main())


def versions(events: list[Event]) -> list[tuple[str, int]]:
    return [(Path(e.checkpoint).name, e.version) for e in events if isinstance(e, Published) and e.checkpoint]


def test_daemon_names_the_live_checkpoint_and_version_also_after_a_restart(tmp_path: Path) -> None:
    async def first(trainer: Trainer) -> None:
        write(trainer.watched / "step-1", 1)
        assert "published version 0 from" in (await trainer.published("step-1")).line()

    async def second(trainer: Trainer) -> None:
        for path in (trainer.watched / "step-1").iterdir():
            os.utime(path)
        await trainer.until(lambda e: isinstance(e, Watching))
        write(trainer.watched / "step-2", 2)
        await trainer.published("step-2")

    assert isinstance(run(tmp_path, first)[0], Event)
    (tmp_path / "spelled").symlink_to(tmp_path)
    events = run(tmp_path / "spelled", second)
    assert [e for e in events if isinstance(e, Watching)] == [Watching(str(tmp_path / "watched"), "step-1", 0)]
    assert versions(events) == [("step-2", 1)]


def test_an_older_step_never_becomes_the_newest_version(tmp_path: Path) -> None:
    async def script(trainer: Trainer) -> None:
        for step in (1, 2):
            write(trainer.watched / f"step-{step}", step)
            await trainer.published(f"step-{step}")
        (trainer.watched / "step-1" / "eval.json").write_text("{}")
        os.utime(trainer.watched / "step-1" / "model.safetensors")
        write(trainer.watched / "step-0", 0)
        await trainer.said("step-0 is left out: it is older than step-2")
        (trainer.watched / "step-2").rename(trainer.watched / ".gone")
        os.utime(trainer.watched / "step-1" / "model.safetensors")
        write(trainer.watched / "step-3", 3)
        await trainer.published("step-3")

    assert versions(run(tmp_path, script)) == [("step-1", 0), ("step-2", 1), ("step-3", 2)]


def test_only_weights_and_the_files_to_run_them_are_published(tmp_path: Path) -> None:
    async def script(trainer: Trainer) -> None:
        place = write(trainer.watched / ".new", 1)
        (place / "config.json").write_text("{}")
        torch.save({"state": torch.zeros(1000)}, place / "optimizer.pt")
        place.rename(trainer.watched / "checkpoint-1")
        event = await trainer.published("checkpoint-1")
        with Checkpoint.open(trainer.watched / "checkpoint-1" / "model.safetensors") as checkpoint:
            assert event.full_bytes == checkpoint.layout.nbytes + 2
        note = await trainer.said("checkpoint-1: optimizer.pt (")
        assert isinstance(note, Note)

    run(tmp_path, script)


def test_a_link_out_of_the_directory_is_refused_by_name_and_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("secret")

    async def script(trainer: Trainer) -> None:
        place = write(trainer.watched / ".new", 2)
        (place / "x.json").symlink_to(tmp_path / "secret.json")
        place.rename(trainer.watched / "step-2")
        write(trainer.watched / "step-1", 1)
        await trainer.said("step-2 is not taken: x.json is a link out of the watched directory")
        await trainer.published("step-1")

    assert versions(run(tmp_path, script)) == [("step-1", 0)]


def test_undecodable_names_do_not_stop_the_daemon_or_its_restart(tmp_path: Path) -> None:
    bad = write(Path(os.fsdecode(os.fsencode(tmp_path / "watched") + b"/step-0\xff")), 0)
    (bad / os.fsdecode(b"\xfe.json")).write_text("{}")
    for number in (1, 2):

        async def script(trainer: Trainer, name: str = f"step-{number}", value: float = number) -> None:
            await trainer.said("step-0\\udcff is not taken: its name is not UTF-8: rename it")
            write(trainer.watched / name, value)
            await trainer.published(name)

        run(tmp_path, script)


def test_an_invalid_checkpoint_is_refused_and_the_one_before_published(tmp_path: Path) -> None:
    async def script(trainer: Trainer) -> None:
        place = write(trainer.watched / ".new", 2)
        (place / "a").mkdir()
        (place / "a" / "x.txt").write_text("")
        (place / "a\\b").write_text("")
        place.rename(trainer.watched / "step-2")
        write(trainer.watched / "step-1", 1)
        await trainer.published("step-1")
        await trainer.said("step-2 is not taken: file name")

    run(tmp_path, script)


@pytest.mark.parametrize("change", ["replaced", "removed", "written to"])
def test_a_checkpoint_that_changes_while_it_is_read_is_never_published_half(tmp_path: Path, change: str) -> None:
    """The change comes as soon as the first tensor has been read; the two halves belong to different policies."""

    async def script(trainer: Trainer) -> None:
        await trainer.until(lambda e: isinstance(e, Watching))
        hidden = trainer.watched / ".new"
        hidden.mkdir()
        for name, value in (("a", 1.0), ("b", 1.0)):
            save_file({name: torch.full((8,), value)}, hidden / f"{name}.safetensors")
        save_file({"b": torch.full((8,), 2.0)}, trainer.watched / ".b")
        read = trainer.node.versions.make

        def make(source: object, **options: object) -> object:
            units = source.units  # type: ignore[attr-defined]

            def change_between(spec: object) -> object:
                found = units(spec)
                if spec.name == "a" and (trainer.watched / ".b").exists():  # type: ignore[attr-defined]
                    target = trainer.watched / "step-1" / "b.safetensors"
                    if change == "replaced":
                        (trainer.watched / ".b").replace(target)
                    elif change == "removed":
                        target.unlink()
                        (trainer.watched / ".b").unlink()
                    else:
                        target.write_bytes((trainer.watched / ".b").read_bytes())
                        (trainer.watched / ".b").unlink()
                return found

            source.units = change_between  # type: ignore[attr-defined]
            return read(source, **options)  # type: ignore[arg-type]

        trainer.node.versions.make = make  # type: ignore[method-assign, assignment]
        hidden.rename(trainer.watched / "step-1")
        await trainer.until(lambda e: isinstance(e, Trouble) and "step-1 is not published yet" in e.message)
        if change == "removed":
            write(trainer.watched / "step-2", 5)
            await trainer.published("step-2")
        else:
            await trainer.published("step-1")

    assert versions(run(tmp_path, script)) == [("step-2" if change == "removed" else "step-1", 0)]


def test_a_checkpoint_published_while_stopping_is_not_published_again(tmp_path: Path) -> None:
    async def script(trainer: Trainer) -> None:
        write(trainer.watched / "step-1", 1)
        await trainer.published("step-1")

    run(tmp_path, script)
    live = load_memory(tmp_path / "store", tmp_path / "watched").live
    assert live is not None and (live.path, live.version) == ("step-1", 0)


def test_a_crash_between_a_version_and_its_memory_counts_the_version(tmp_path: Path) -> None:
    async def first(trainer: Trainer) -> None:
        write(trainer.watched / "step-2", 2)
        await trainer.published("step-2")

    async def second(trainer: Trainer) -> None:
        await trainer.until(lambda e: isinstance(e, Watching))
        await trainer.said("step-1 is left out: it is older than step-2, which was live")

    run(tmp_path, first)
    memory = load_memory(tmp_path / "store", tmp_path / "watched")
    assert memory.live is not None
    cut = WatchMemory(pending=PendingPublish(memory.live, None, {}))
    save_memory(tmp_path / "store", msgspec.json.encode(cut))
    (tmp_path / "watched" / "step-2").rename(tmp_path / ".gone")
    write(tmp_path / "watched" / "step-1", 1)
    for path in (tmp_path / "watched" / "step-1").iterdir():
        os.utime(path, (1, 1))
    events = run(tmp_path, second)
    assert Watching(str(tmp_path / "watched"), "step-2", 0) in events and not versions(events)


def test_a_failed_read_is_repeated_and_reported_with_its_reason(tmp_path: Path) -> None:
    failures = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")]

    async def script(trainer: Trainer) -> None:
        await trainer.until(lambda e: isinstance(e, Watching))
        make = trainer.node.versions.make

        def failing(*given: object, **options: object) -> object:
            if failures:
                raise CheckpointReadError(f"x: {failures.pop(0).strerror} while it was read")
            return make(*given, **options)  # type: ignore[arg-type]

        trainer.node.versions.make = failing  # type: ignore[method-assign, assignment]
        write(trainer.watched / "step-1", 1)
        await trainer.said("step-1 is not published yet: x: Stale file handle while it was read: trying again")
        await trainer.said("step-1 is not published yet: x: Input/output error while it was read: trying again")
        await trainer.published("step-1")

    assert versions(run(tmp_path, script)) == [("step-1", 0)]


def test_the_memory_file_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path / "watched" / f"step-{step}", step)
    (tmp_path / "store").mkdir()
    done = {}
    for place in (tmp_path / "watched").iterdir():
        status = (place / "model.safetensors").stat()
        done[str(place)] = [["model.safetensors", status.st_ino, status.st_size, status.st_mtime_ns]]
    (tmp_path / "store" / "watched.json").write_text(json.dumps(done))
    memory = load_memory(tmp_path / "store", tmp_path / "watched")
    assert memory.live is not None and memory.live.path == "step-2" and set(memory.paths) == {"step-1", "step-2"}


def test_publish_checkpoint_takes_the_only_policy_and_refuses_several(tmp_path: Path) -> None:
    async def main() -> None:
        trainer = Trainer(tmp_path)
        await trainer.node.start()
        try:
            write(trainer.watched / "actor" / "huggingface", 1)
            event = await publish_checkpoint(trainer.node, trainer.watched)
            assert event is not None and event.checkpoint.endswith("watched/actor/huggingface")
            write(trainer.watched / "other", 2)
            with pytest.raises(Exception, match=r"holds 2 checkpoints \(actor/huggingface, other\): name one of them"):
                await publish_checkpoint(trainer.node, trainer.watched)
        finally:
            await trainer.node.stop()

    asyncio.run(main())


def test_a_damaged_memory_file_is_reported_and_only_the_newest_checkpoint_published(tmp_path: Path) -> None:
    """Earlier ones were published before, and would lead every actor back."""
    for step in range(3):
        write(tmp_path / "watched" / f"step-{step}", step)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "checkpoints.json").write_bytes(b"\xff{")

    async def script(trainer: Trainer) -> None:
        await trainer.said("checkpoints.json.damaged; of the checkpoints that are there only the newest")
        await trainer.published("step-2")

    assert versions(run(tmp_path, script)) == [("step-2", 0)]
    assert (tmp_path / "store" / "checkpoints.json.damaged").read_bytes() == b"\xff{"
    assert set(load_memory(tmp_path / "store", tmp_path / "watched").paths) == {"step-0", "step-1", "step-2"}
