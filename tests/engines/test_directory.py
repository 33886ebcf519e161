"""`current` is always byte-identical to a published checkpoint, and a step costs O(changed)."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from engine_parts import Files, Run, Weights, commit_path, perturb, position, put_all, tensor, tree, write_files

from p2psync.delta.tensors import TensorSpec
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.directory.engine import DirectoryEngine
from p2psync.errors import BaseMismatchError, DigestMismatchError, EngineError

BIG: Weights = {"big": tensor(0, "BF16", 150_000), "scale": tensor(1, "F8_E4M3", 70_000)}
SMALL: Weights = {
    "norm": tensor(2, "F32", 33),
    "none": tensor(3, "BF16", 0, 4),
    "scalar": tensor(4, "I64"),
    "i8": tensor(5, "I8", 9),
}


def versions(tmp_path: Path, count: int) -> list[Path]:
    """Checkpoints of one layout, each a step after the one before. One of the files is unaligned."""
    big, small = BIG, SMALL
    made = []
    for version in range(count):
        files: Files = {
            "model-1.safetensors": big,
            "sub/model-2.safetensors": small,
            "config.json": b'{"step": %d}' % version,
            "tokenizer.json": b"{}",
            "empty": b"",
        }
        made.append(write_files(tmp_path / f"v{version}", files))
        big, small = perturb(big, version), perturb(small, version)
    return made


def published(tmp_path: Path, count: int) -> tuple[Run, list[Path]]:
    """Version 0 as an anchor, and a delta for each later one."""
    run, made = Run(), versions(tmp_path, count)
    run.anchor(0, made[0])
    for version in range(1, count):
        run.delta(version - 1, version, made[version - 1], made[version])
    return run, made


def current(root: Path) -> dict[str, bytes]:
    return tree((root / "current").resolve())


def test_an_anchor_makes_current_byte_identical(tmp_path: Path) -> None:
    run, made = published(tmp_path, 1)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        assert (engine.position, engine.table()) == (None, ())
        assert not (tmp_path / "dir").exists()
        commit_path(run, engine, run.steps[None, 0])
        assert engine.position == position(run.steps[None, 0])
        with Checkpoint.open(made[0]) as checkpoint:
            assert tuple(engine.table()) == checkpoint.specs
            for spec in checkpoint.specs:
                assert engine.units(spec).tobytes() == checkpoint.units(spec).tobytes()
        assert engine.scrub()
    assert current(tmp_path / "dir") == tree(made[0])
    assert (tmp_path / "dir" / "current").readlink() == Path(".p2psync/slots/a")


@pytest.mark.parametrize("seed", range(5))
def test_chunks_of_an_anchor_may_come_in_any_order(tmp_path: Path, seed: int) -> None:
    run, made = published(tmp_path, 2)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0], run.steps[0, 1], shuffle=seed)
    assert current(tmp_path / "dir") == tree(made[1])


def test_each_step_is_applied_in_place(tmp_path: Path) -> None:
    run, made = published(tmp_path, 6)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        inodes: dict[Path, dict[str, int]] = {}
        for version in range(1, 6):
            commit_path(run, engine, run.steps[version - 1, version], shuffle=version)
            slot = (tmp_path / "dir" / "current").resolve()
            assert tree(slot) == tree(made[version])
            found = {path.name: path.stat().st_ino for path in slot.rglob("*") if path.is_file()}
            assert inodes.setdefault(slot, found) == found
            assert engine.scrub()
        assert len(inodes) == 2


def test_a_chain_is_applied_in_one_commit_whatever_the_order_of_its_chunks(tmp_path: Path) -> None:
    run, made = published(tmp_path, 5)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        path = [run.steps[v, v + 1] for v in range(4)]
        commit_path(run, engine, *path, shuffle=1)
        assert engine.position == position(path[-1])
    assert current(tmp_path / "dir") == tree(made[4])


def test_the_second_slot_catches_up_from_the_chunks_that_are_still_held(tmp_path: Path) -> None:
    run, made = published(tmp_path, 4)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        for step in ((None, 0), (0, 1), (1, 2)):
            commit_path(run, engine, run.steps[step])
        run.read.clear()
        commit_path(run, engine, run.steps[2, 3])
        assert {manifest for manifest, _ in run.read} == {run.steps[1, 2].id}
    assert current(tmp_path / "dir") == tree(made[3])


@pytest.mark.parametrize("lost", ["every chunk", "the last chunk", "a bit of the second slot"])
def test_the_second_slot_is_copied_from_the_live_one_where_the_last_path_cannot_be_applied(
    tmp_path: Path, lost: str
) -> None:
    run, made = published(tmp_path, 4)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        for step in ((None, 0), (0, 1), (1, 2)):
            commit_path(run, engine, run.steps[step])
        chunks = [key for key in run.chunks if key[0] == run.steps[1, 2].id]
        assert len(chunks) > 1
        if lost == "a bit of the second slot":
            with Checkpoint.open(tmp_path / "dir" / ".p2psync" / "slots" / "b", writable=True) as second:
                second.units(TensorSpec(2, "scalar", "I64", ()))[0] ^= 1
        else:
            for key in chunks if lost == "every chunk" else chunks[-1:]:
                del run.chunks[key]
        commit_path(run, engine, run.steps[2, 3])
    assert current(tmp_path / "dir") == tree(made[3])


def test_a_digest_mismatch_changes_nothing(tmp_path: Path) -> None:
    run, made = published(tmp_path, 3)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        # The bits of version 1 with the chunks of another delta: rightly hashed, wrongly made.
        wrong = run.delta(0, 1, made[0], made[2])
        good = run.delta(0, 1, made[0], made[1])
        for index in range(good.manifest.chunks):
            run.chunks[good.id, index] = run.chunks[good.id, 0]
        stage = engine.stage([good])
        put_all(run, stage, [good])
        with pytest.raises(DigestMismatchError, match="version 1"):
            stage.commit()
        assert engine.position == position(run.steps[None, 0])
        assert current(tmp_path / "dir") == tree(made[0])
        assert wrong.manifest.version == 1
        again = run.delta(0, 1, made[0], made[1])
        commit_path(run, engine, again)
    assert current(tmp_path / "dir") == tree(made[1])


def test_a_flipped_bit_under_a_change_is_caught_at_the_commit(tmp_path: Path) -> None:
    run, made = published(tmp_path, 2)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        live = (tmp_path / "dir" / "current").resolve()
        stage = engine.stage([run.steps[0, 1]])
        for slot in live.parent.iterdir():
            with Checkpoint.open(slot, writable=True) as checkpoint:
                checkpoint.units(TensorSpec(2, "scalar", "I64", ()))[0] ^= 1 << 40
        put_all(run, stage, [run.steps[0, 1]])
        with pytest.raises(DigestMismatchError):
            stage.commit()
        assert not engine.scrub()
        assert engine.position is None, "wrong bits are no version"
        run.anchor(1, made[1])
        commit_path(run, engine, run.steps[None, 1])
        assert engine.scrub()
    assert current(tmp_path / "dir") == tree(made[1])


def test_a_bit_that_rotted_is_not_copied_into_the_other_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second slot is empty, so the stage copies the live one; it must not carry a wrong bit along."""
    monkeypatch.setattr("p2psync.engines.directory.seals.seal_of", lambda slot: "a disk that rots changes no time")
    run, _ = published(tmp_path, 2)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        with Checkpoint.open((tmp_path / "dir" / "current").resolve(), writable=True) as live:
            live.units(TensorSpec(2, "scalar", "I64", ()))[0] ^= 1 << 40
        with pytest.raises(DigestMismatchError, match="no longer version 0"):
            engine.stage([run.steps[0, 1]])


def test_a_path_that_does_not_start_at_the_live_version_is_refused(tmp_path: Path) -> None:
    run, made = published(tmp_path, 3)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        with pytest.raises(BaseMismatchError, match="nothing is live"):
            engine.stage([run.steps[0, 1]])
        commit_path(run, engine, run.steps[None, 0])
        for path in ([run.steps[1, 2]], [], [run.steps[None, 0], run.steps[1, 2]]):
            with pytest.raises(BaseMismatchError):
                engine.stage(path)
    assert current(tmp_path / "dir") == tree(made[0])


def test_a_commit_before_all_chunks_is_refused_and_can_be_made_later(tmp_path: Path) -> None:
    run, made = published(tmp_path, 2)
    step = run.steps[0, 1]
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        stage = engine.stage([step])
        stage.put(0, {0: run.chunks[step.id, 0]})
        with pytest.raises(EngineError, match=f"{step.manifest.chunks - 1} chunks were not put"):
            stage.commit()
        for _ in range(2):  # a chunk that was put is passed over
            for index in range(step.manifest.chunks):
                stage.put(0, {index: run.chunks[step.id, index]})
        stage.commit()
        with pytest.raises(EngineError, match="stage again"):
            stage.commit()
    assert current(tmp_path / "dir") == tree(made[1])


def test_an_abandoned_or_replaced_stage_does_no_harm(tmp_path: Path) -> None:
    run, made = published(tmp_path, 3)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        first = engine.stage([run.steps[0, 1]])
        first.put(0, {0: run.chunks[run.steps[0, 1].id, 0]})
        first.abandon()
        squashed = run.delta(0, 2, made[0], made[2])
        second = engine.stage([squashed])
        with pytest.raises(EngineError, match="stage again"):
            first.put(0, {1: run.chunks[run.steps[0, 1].id, 1]})
        put_all(run, second, [squashed])
        second.commit()
    assert current(tmp_path / "dir") == tree(made[2])


def test_a_longer_path_continues_from_the_steps_of_the_shorter_one(tmp_path: Path) -> None:
    run, made = published(tmp_path, 4)
    path = [run.steps[v, v + 1] for v in range(3)]
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        stage = engine.stage(path[:1])
        stage.put(0, {1: run.chunks[path[0].id, 1]})
        stage = engine.stage(path[:2])
        assert 1 not in stage.wanted(0)
        put_all(run, stage, path[:2])
        stage = engine.stage(path)
        assert (stage.wanted(0), stage.wanted(1)) == ([], [])
        put_all(run, stage, path)
        stage.commit()
    assert current(tmp_path / "dir") == tree(made[3])


def test_a_chunk_of_a_later_step_that_left_the_store_is_an_error_and_the_next_stage_works(tmp_path: Path) -> None:
    run, made = published(tmp_path, 3)
    path = [run.steps[0, 1], run.steps[1, 2]]
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        stage = engine.stage(path)
        data = run.chunks.pop((path[1].id, 0))
        stage.put(1, {0: data})
        with pytest.raises(EngineError, match="left the store too early"):
            put_all(run, stage, path)
        run.chunks[path[1].id, 0] = data
        commit_path(run, engine, *path)
    assert current(tmp_path / "dir") == tree(made[2])


def test_rolling_back_gives_the_version_before_once(tmp_path: Path) -> None:
    run, made = published(tmp_path, 3)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        with pytest.raises(EngineError, match="nothing to roll back"):
            engine.roll_back()
        commit_path(run, engine, run.steps[0, 1])
        assert engine.roll_back() == position(run.steps[None, 0])
        assert current(tmp_path / "dir") == tree(made[0])
        with pytest.raises(EngineError, match="nothing to roll back"):
            engine.roll_back()
        commit_path(run, engine, run.steps[0, 1])
        commit_path(run, engine, run.steps[1, 2])
        engine.stage([run.delta(2, 3, made[2], made[1])])
        with pytest.raises(EngineError, match="nothing to roll back"):
            engine.roll_back()
    assert current(tmp_path / "dir") == tree(made[2])


def test_a_restart_continues_at_the_live_version(tmp_path: Path) -> None:
    run, made = published(tmp_path, 4)
    for step in ((None, 0), (0, 1), (1, 2), (2, 3)):
        with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
            commit_path(run, engine, run.steps[step])
            before = engine.position
        with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
            assert engine.position == before
    assert current(tmp_path / "dir") == tree(made[3])


def test_after_a_power_loss_the_live_slot_is_digested_before_it_is_trusted(tmp_path: Path) -> None:
    run, made = published(tmp_path, 4)
    root = tmp_path / "dir"
    with DirectoryEngine(root, run.reader, boot="one") as engine:
        for step in ((None, 0), (0, 1)):
            commit_path(run, engine, run.steps[step])
    with DirectoryEngine(root, run.reader, boot="two") as engine:
        assert engine.position == position(run.steps[0, 1])
        commit_path(run, engine, run.steps[1, 2])
    # The live slot lost a page: the other one is sound, and becomes live.
    _flip((root / "current").resolve() / "model-1.safetensors")
    with DirectoryEngine(root, run.reader, boot="three") as engine:
        assert engine.position == position(run.steps[0, 1])
        assert current(root) == tree(made[1])
        commit_path(run, engine, run.steps[1, 2])
        commit_path(run, engine, run.steps[2, 3])
    # Both lost one: nothing is live, but sound files of the last live slot need not travel again.
    for slot in "ab":
        _flip(root / ".p2psync" / "slots" / slot / "model-1.safetensors")
    run.anchor(3, made[3])
    for boot in ("four", "five"):
        with DirectoryEngine(root, run.reader, boot=boot) as engine:
            assert engine.position is None
            assert not (root / "current").exists()
    with DirectoryEngine(root, run.reader, boot="five") as engine:
        assert 0 < commit_path(run, engine, run.steps[None, 3]) < run.steps[None, 3].manifest.chunks
        assert engine.scrub()
    assert current(root) == tree(made[3])


def test_a_local_copy_saves_the_chunks_of_its_tensors(tmp_path: Path) -> None:
    run, made = published(tmp_path, 2)
    local = shutil.copytree(made[0], tmp_path / "base")
    (local / "config.json").write_text('{"step": 7}')
    with DirectoryEngine(tmp_path / "dir", run.reader, prefill=local) as engine:
        stage = engine.stage([run.steps[None, 0]])
        rows = run.steps[None, 0].manifest
        assert 0 < len(stage.wanted(0)) < rows.chunks
        put_all(run, stage, [run.steps[None, 0]])
        stage.commit()
        assert current(tmp_path / "dir") == tree(made[0])
        commit_path(run, engine, run.steps[0, 1])
    assert current(tmp_path / "dir") == tree(made[1])


def test_a_local_copy_that_has_everything_needs_no_chunk(tmp_path: Path) -> None:
    run, made = published(tmp_path, 2)
    with DirectoryEngine(tmp_path / "dir", run.reader, prefill=made[0]) as engine:
        stage = engine.stage([run.steps[None, 0], run.steps[0, 1]])
        assert list(stage.wanted(0)) == []
        put_all(run, stage, [run.steps[None, 0], run.steps[0, 1]])
        stage.commit()
    assert current(tmp_path / "dir") == tree(made[1])


def test_a_new_anchor_takes_unchanged_tensors_from_the_live_version(tmp_path: Path) -> None:
    run, made = published(tmp_path, 1)
    files: Files = {"model-1.safetensors": BIG, "sub/model-2.safetensors": perturb(SMALL, 9), "tokenizer.json": b"{}"}
    later = write_files(tmp_path / "later", files)
    run.anchor(9, later)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        assert commit_path(run, engine, run.steps[None, 9]) < run.steps[None, 9].manifest.chunks // 2
        assert engine.roll_back() == position(run.steps[None, 0])
    assert current(tmp_path / "dir") == tree(made[0])


def test_adopting_takes_a_local_copy_as_the_signed_version_and_only_that(tmp_path: Path) -> None:
    run, made = published(tmp_path, 2)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        assert not engine.adopt(position(run.steps[None, 0]))
    with DirectoryEngine(tmp_path / "dir", run.reader, prefill=made[0]) as engine:
        assert not engine.adopt(position(run.steps[0, 1]))
        assert not (tmp_path / "dir" / "current").exists()
        assert engine.adopt(position(run.steps[None, 0]))
        assert engine.position == position(run.steps[None, 0])
        assert current(tmp_path / "dir") == tree(made[0])
        commit_path(run, engine, run.steps[0, 1])
    assert current(tmp_path / "dir") == tree(made[1])


def test_when_the_state_is_lost_the_live_slot_can_be_adopted(tmp_path: Path) -> None:
    run, made = published(tmp_path, 2)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
    (tmp_path / "dir" / ".p2psync" / "state.json").unlink()
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        assert engine.position is None
        assert engine.adopt(position(run.steps[None, 0]))
        commit_path(run, engine, run.steps[0, 1])
    assert current(tmp_path / "dir") == tree(made[1])


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    run, _ = published(tmp_path, 1)
    for name in ("real", "link"):
        (tmp_path / name).mkdir()
    (tmp_path / "real" / "current").mkdir()
    (tmp_path / "link" / "current").symlink_to(tmp_path)
    for name in ("real", "link"):
        with pytest.raises(EngineError, match="is not a link made by p2psync"):
            DirectoryEngine(tmp_path / name, run.reader)
        assert [path.name for path in (tmp_path / name).iterdir()] == ["current"]


def test_a_second_process_is_refused_while_the_directory_is_in_use(tmp_path: Path) -> None:
    run, _ = published(tmp_path, 1)
    with DirectoryEngine(tmp_path / "dir", run.reader) as engine:
        commit_path(run, engine, run.steps[None, 0])
        with pytest.raises(EngineError, match="kept by another process"):
            DirectoryEngine(tmp_path / "dir", run.reader)


def test_a_slot_is_not_changed_while_a_reader_holds_it(tmp_path: Path) -> None:
    run, made = published(tmp_path, 3)
    with DirectoryEngine(tmp_path / "dir", run.reader, reader_limit=0.0) as engine:
        commit_path(run, engine, run.steps[None, 0])
        reader = os.open(tmp_path / "dir" / "current", os.O_RDONLY)
        fcntl.flock(reader, fcntl.LOCK_SH | fcntl.LOCK_NB)
        commit_path(run, engine, run.steps[0, 1])
        with pytest.raises(EngineError, match=f"slots/a is still read by process {os.getpid()}") as caught:
            engine.stage([run.steps[1, 2]])
        assert "\n" not in str(caught.value)
        assert tree(tmp_path / "dir" / ".p2psync" / "slots" / "a") == tree(made[0])
        os.close(reader)
        stage = engine.stage([run.steps[1, 2]])
        late = os.open(tmp_path / "dir" / ".p2psync" / "slots" / "a", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)
        put_all(run, stage, [run.steps[1, 2]])
        stage.commit()
        fcntl.flock(late, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(late)
    assert current(tmp_path / "dir") == tree(made[2])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
