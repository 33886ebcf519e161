"""Commands on deltas that fail report one line and leave OUT as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from child_signals import heed_interrupts
from offline_parts import Files, bf16, contents, model, round_trip, safetensors, scratch, step, write

from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.engines.checkpoint.layout import CheckpointLayout
from p2psync.engines.offline import delta_commands
from p2psync.errors import (
    BaseMismatchError,
    DigestMismatchError,
    FormatError,
    P2PSyncError,
    StoreError,
    UsageError,
)
from p2psync.protocol.manifest import Manifest, pack_table
from p2psync.store.deltafile import DeltaFile, DeltaFileWriter


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


# ---- refusals: one line, OUT as it was, nothing left behind


def refused(place: Path, kind: type[P2PSyncError], *arguments: Path, **options: bool) -> str:
    """Apply, which must fail; returns the message."""
    before = contents(place)
    with pytest.raises(kind) as caught:
        delta_commands.apply(*arguments, **options)
    assert contents(place) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_that_are_not_the_base_are_refused(place: Path) -> None:
    round_trip(place, model(), step(model()))
    other = step(model(), 7)
    write(place / "other", other)
    assert "not the base" in refused(place, BaseMismatchError, place / "other", place / "d", place / "o")


def test_one_flipped_bit_outside_the_change_is_a_wrong_base(place: Path) -> None:
    old: Files = {"m.safetensors": {"t": bf16(1, 2, 3), "rest": bf16(*range(100))}}
    new: Files = {"m.safetensors": {"t": bf16(1, 2, 4), "rest": bf16(*range(100))}}
    round_trip(place, old, new)
    path = place / "a/m.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(place, BaseMismatchError, place / "a", place / "d", place / "o")


def test_a_second_apply_is_refused_as_already_applied(place: Path) -> None:
    round_trip(place, model(), step(model()))
    assert "already" in refused(place, BaseMismatchError, place / "out", place / "d", place / "o")


def test_a_second_apply_of_a_delta_that_adds_files_is_refused_too(place: Path) -> None:
    round_trip(place, model(), {**step(model()), "added.txt": b"x"})
    assert "already" in refused(place, BaseMismatchError, place / "out", place / "d", place / "o")


def test_other_tensors_are_refused_before_anything_is_read(place: Path) -> None:
    round_trip(place, model(), step(model()))
    write(place / "small", model(1000))
    message = refused(place, BaseMismatchError, place / "small", place / "d", place / "o")
    assert "'model.safetensors'" in message
    assert "digest" not in message


def test_a_wrong_base_with_a_header_of_the_same_size_is_still_called_a_wrong_base(place: Path) -> None:
    x, y = bf16(1), bf16(2)
    round_trip(place, {"m.safetensors": {"x": x, "y": y}}, {"m.safetensors": {"x": x, "z": y}})
    # Patched as if it were the base's, this header would name y twice.
    write(place / "swapped", {"m.safetensors": {"y": y, "x": x}})
    refused(place, BaseMismatchError, place / "swapped", place / "d", place / "o")


def test_an_existing_target_is_refused_unless_forced(place: Path) -> None:
    round_trip(place, model(), step(model()))
    write(place / "o", {"m.safetensors": {"t": bf16(1)}, "stale.txt": b"x"})
    refused(place, StoreError, place / "a", place / "d", place / "o")
    delta_commands.apply(place / "a", place / "d", place / "o", force=True)
    assert contents(place / "o") == contents(place / "b")
    assert sorted(path.name for path in place.iterdir()) == ["a", "b", "d", "o", "out"]


def test_force_does_not_replace_a_directory_by_a_delta(place: Path) -> None:
    a, b = write(place / "a", model()), write(place / "b", step(model()))
    (place / "d").mkdir()
    with pytest.raises(StoreError):
        delta_commands.diff(a, b, place / "d", force=True)
    assert (place / "d").is_dir()


def test_force_replaces_checkpoints_only(place: Path) -> None:
    round_trip(place, model(), step(model()))
    write(place / "o", {"precious.safetensors": b"not weights"})
    refused(place, StoreError, place / "a", place / "d", place / "o", force=True)


@pytest.mark.parametrize("target", ["a", "a/below", ".", "d"])
def test_an_input_is_never_written_over_even_by_force(place: Path, target: str) -> None:
    round_trip(place, model(), step(model()))
    refused(place, UsageError, place / "a", place / "d", place / target, force=True)


def test_a_file_and_a_directory_do_not_go_together(place: Path) -> None:
    a = write(place / "a", model())
    with pytest.raises(UsageError):
        delta_commands.diff(a / "model.safetensors", a, place / "d")
    with pytest.raises(UsageError):
        delta_commands.diff(a, a / "model.safetensors", place / "d")


def test_a_delta_that_leads_to_a_directory_is_not_applied_to_a_single_file(place: Path) -> None:
    tensors = {"t": bf16(1)}
    round_trip(place, {"model.safetensors": tensors}, {"model.safetensors": tensors, "config.json": b"{}"})
    refused(place, BaseMismatchError, place / "a/model.safetensors", place / "d", place / "o.safetensors")


def test_deltas_that_are_not_consecutive_are_not_squashed(place: Path) -> None:
    paths = [write(place / str(i), step(model(), i)) for i in range(3)]
    delta_commands.diff(paths[0], paths[1], place / "d0")
    delta_commands.diff(paths[1], paths[2], place / "d1")
    with pytest.raises(BaseMismatchError, match="does not start where"):
        delta_commands.squash([place / "d1", place / "d0"], place / "s")
    assert not (place / "s").exists()


# ---- hostile input


def test_truncated_and_hostile_safetensors_are_refused(place: Path) -> None:
    whole = safetensors({"t": bf16(1, 2, 3)})
    a = write(place / "a", {"m.safetensors": {"t": bf16(1, 2, 3)}})
    broken = [whole[:n] for n in range(0, len(whole), 7)]
    broken += [(1 << 62).to_bytes(8, "little") + whole[8:], whole + b"x", whole.replace(b"BF16", b"BF17")]
    for index, data in enumerate(broken):
        b = write(place / str(index), {"m.safetensors": data})
        with pytest.raises(FormatError):
            delta_commands.diff(a, b, place / "d")
        with pytest.raises(FormatError):
            delta_commands.diff(b, a, place / "d")
    assert not [path for path in place.iterdir() if path.name.endswith("tmp") or path.name == "d"]


def test_a_delta_with_any_byte_flipped_is_refused_by_every_command(place: Path) -> None:
    round_trip(place, model(3000), step(model(3000)))
    data = (place / "d").read_bytes()
    for at in [*range(0, len(data), max(1, len(data) // 150)), *range(len(data) - 50, len(data))]:
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        (place / "bad").write_bytes(damaged)
        refused(place, FormatError, place / "a", place / "bad", place / "o")
        for command in (
            lambda: delta_commands.info(place / "bad"),
            lambda: delta_commands.invert(place / "bad", place / "o"),
        ):
            with pytest.raises(FormatError):
                command()
        assert not (place / "o").exists()


def test_a_delta_cut_short_anywhere_is_refused(place: Path) -> None:
    round_trip(place, model(3000), step(model(3000)))
    data = (place / "d").read_bytes()
    for end in range(0, len(data), max(1, len(data) // 100)):
        (place / "bad").write_bytes(data[:end])
        refused(place, FormatError, place / "a", place / "bad", place / "o")


def forge(place: Path, **fields: object) -> Path:
    """The delta at `place / "d"` with other fields in its manifest, its chunks as they are."""
    with DeltaFile(place / "d") as good, DeltaFileWriter(place / "forged", force=True) as writer:
        for index in range(good.manifest.chunks):
            writer.append(good.chunk(index))
        writer.finish(msgspec.structs.replace(good.manifest, **fields))
    return place / "forged"


def manifest_of(path: Path) -> Manifest:
    with DeltaFile(path) as delta:
        return delta.manifest


HOSTILE = {
    "a path that leads outside": TensorSpec(TensorKind.FILE, "../evil", "U8", (4,)),
    "an absolute path": TensorSpec(TensorKind.FILE, "/evil", "U8", (4,)),
    "a header of a terabyte": TensorSpec(TensorKind.HEADER, "z.safetensors", "U8", (1 << 40,)),
    "a file of a terabyte": TensorSpec(TensorKind.FILE, "z", "U8", (1 << 40,)),
    "a tensor that no header describes": TensorSpec(TensorKind.TENSOR, "z", "F64", (1 << 50,)),
    "a header of zeros": TensorSpec(TensorKind.HEADER, "z.safetensors", "U8", (100,)),
}


@pytest.mark.parametrize("spec", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_table_is_refused(place: Path, spec: TensorSpec) -> None:
    round_trip(place, model(3000), step(model(3000)))
    rows = sorted([*manifest_of(place / "d").rows(), TableRow(spec, False, True)], key=lambda row: row.spec)
    forged = forge(place, table=pack_table(rows))
    refused(place, P2PSyncError, place / "a", forged, place / "o")


def test_a_delta_that_states_another_outcome_is_refused(place: Path) -> None:
    round_trip(place, model(), step(model()))
    refused(place, DigestMismatchError, place / "a", forge(place, digest=bytes(16)), place / "o")


def test_an_anchor_is_described_but_not_applied(place: Path) -> None:
    round_trip(place, model(), step(model()))
    anchor = forge(place, base=None)
    assert delta_commands.info(anchor).kind == "anchor"
    refused(place, FormatError, place / "a", anchor, place / "o")


# ---- crashes and full disks


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("command", ["diff", "apply", "squash"])
def test_a_process_that_ends_midway_leaves_no_target(place: Path, number: int, command: str) -> None:
    round_trip(place, model(), step(model()))
    arguments = {"diff": "p/'a', p/'b'", "apply": "p/'a', p/'d'", "squash": "[p/'d']"}[command]
    script = (
        "import os, sys; from pathlib import Path; from p2psync.engines import offline; p = Path(sys.argv[1])\n"
        f"stop = lambda done, total: os.kill(os.getpid(), {int(number)})\n"
        f"offline.{command}({arguments}, p/'o', progress=stop)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(place)], capture_output=True, check=False, preexec_fn=heed_interrupts
    )
    assert done.returncode != 0
    assert not (place / "o").exists()
    if number == signal.SIGINT:
        assert sorted(path.name for path in place.iterdir()) == ["a", "b", "d", "out"]
    delta_commands.apply(place / "a", place / "d", place / "o")
    assert contents(place / "o") == contents(place / "b")
    left = sorted(path.name for path in place.iterdir())
    assert left == ["a", "b", "d", "o", "out"], "what the killed process left was not removed"


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    disk = place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.root
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(place: Path, small_disk: Path) -> None:
    old, new = model(900_000), model(900_000, seed=1)
    round_trip(place, old, new)
    for work in (
        lambda: delta_commands.apply(place / "a", place / "d", small_disk / "o"),
        lambda: delta_commands.diff(place / "a", place / "b", small_disk / "o"),
        lambda: delta_commands.invert(place / "d", small_disk / "o"),
        lambda: delta_commands.squash([place / "d"], small_disk / "o"),
    ):
        with pytest.raises(StoreError, match="free"):
            work()
        assert list(small_disk.iterdir()) == []


@pytest.mark.root
def test_a_disk_that_fills_up_midway_leaves_nothing(
    place: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_trip(place, model(900_000), model(900_000, seed=1))

    def unreserved(files: dict[str, Path], plan: CheckpointLayout, where: Path) -> None:
        for path in files.values():
            path.touch()

    monkeypatch.setattr("p2psync.engines.offline.rebuild._create", unreserved)
    with pytest.raises(StoreError, match="full"):
        delta_commands.apply(place / "a", place / "d", small_disk / "o")
    assert list(small_disk.iterdir()) == []
