"""Deltas between checkpoints on disk: exact for everything, and OUT is whole or as it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offline_parts import Files, Tensor, checkpoints, contents, safetensors, scratch, successors, write
from safetensors.numpy import save_file

from p2psync.delta.tensors import DTYPE_BITS, Kind, Row, TensorSpec
from p2psync.engines import offline
from p2psync.engines.layout import Layout
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

exactly = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


def bf16(*bits: int) -> Tensor:
    return Tensor("BF16", (len(bits),), np.array(bits, "<u2").tobytes())


def bump(tensor: Tensor, every: int, seed: int = 0) -> Tensor:
    """The tensor with one unit in `every` changed by a small step."""
    units = np.frombuffer(tensor.data, "<u2").copy()
    where = np.random.default_rng(seed).choice(units.size, max(1, units.size // every), replace=False)
    units[where] += np.random.default_rng(seed + 1).choice(np.array([1, 65535, 2, 900], "<u2"), where.size)
    return tensor._replace(data=units.tobytes())


def model(units: int = 300_000, seed: int = 0) -> Files:
    """A matrix of several blocks, a scalar, an empty tensor, and a configuration."""
    data = np.random.default_rng(seed).integers(0, 1 << 16, units, np.uint16).tobytes()
    tensors = {
        "w": Tensor("BF16", (units,), data),
        "scale": Tensor("F32", (), b"\0\0\x80\x3f"),
        "none": Tensor("F16", (0, 4), b""),
    }
    return {"model.safetensors": tensors, "config.json": b'{"a": 1}'}


def step(files: Files, seed: int = 0) -> Files:
    weights = files["model.safetensors"]
    assert isinstance(weights, dict)
    return {**files, "model.safetensors": {**weights, "w": bump(weights["w"], 100, seed)}}


def round_trip(place: Path, old: Files, new: Files) -> offline.DiffReport:
    a, b = write(place / "a", old), write(place / "b", new)
    report = offline.diff(a, b, place / "d")
    offline.apply(a, place / "d", place / "out")
    assert contents(place / "out") == contents(b)
    return report


# ---- exactness


@exactly
@given(st.data())
def test_applying_the_diff_gives_every_byte_of_every_file(data: st.DataObject) -> None:
    old = data.draw(checkpoints())
    with scratch() as place:
        round_trip(place, old, data.draw(successors(old)))


@exactly
@given(st.data())
def test_a_squashed_chain_is_byte_for_byte_the_diff_of_its_ends(data: st.DataObject) -> None:
    chain = [data.draw(checkpoints())]
    for _ in range(data.draw(st.integers(1, 3))):
        chain.append(data.draw(successors(chain[-1])))
    with scratch() as place:
        paths = [write(place / str(i), files) for i, files in enumerate(chain)]
        deltas = [place / f"d{i}" for i in range(len(chain) - 1)]
        for i, delta in enumerate(deltas):
            offline.diff(paths[i], paths[i + 1], delta)
        offline.squash(deltas, place / "squashed")
        offline.diff(paths[0], paths[-1], place / "ends")
        assert (place / "squashed").read_bytes() == (place / "ends").read_bytes()


@exactly
@given(st.data())
def test_an_inverted_delta_is_byte_for_byte_the_diff_the_other_way(data: st.DataObject) -> None:
    old = data.draw(checkpoints())
    with scratch() as place:
        a, b = write(place / "a", old), write(place / "b", data.draw(successors(old)))
        offline.diff(a, b, place / "there")
        offline.diff(b, a, place / "back")
        offline.invert(place / "there", place / "inverted")
        assert (place / "inverted").read_bytes() == (place / "back").read_bytes()


def test_a_delta_squashed_with_its_inverse_changes_nothing(place: Path) -> None:
    round_trip(place, model(), step(model()))
    offline.invert(place / "d", place / "undo")
    report = offline.squash([place / "d", place / "undo"], place / "both")
    assert (report.changed, report.chunks) == (0, 0)
    offline.apply(place / "a", place / "both", place / "same")
    assert contents(place / "same") == contents(place / "a")


def test_a_long_chain_of_large_tensors_squashes_to_the_diff_of_its_ends(place: Path) -> None:
    files = model(700_000)
    paths = [write(place / "0", files)]
    for i in range(1, 5):
        files = step(files, i)
        paths.append(write(place / str(i), files))
        offline.diff(paths[-2], paths[-1], place / f"d{i}")
    offline.squash([place / f"d{i}" for i in range(1, 5)], place / "squashed")
    offline.diff(paths[0], paths[-1], place / "ends")
    assert (place / "squashed").read_bytes() == (place / "ends").read_bytes()
    offline.apply(paths[0], place / "squashed", place / "out")
    assert contents(place / "out") == contents(paths[-1])


@pytest.mark.parametrize("dtype", list(DTYPE_BITS))
def test_every_dtype_over_several_windows_is_exact(place: Path, dtype: str) -> None:
    count = 9 << 20 if dtype == "U8" else 300_000
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, count, np.uint8)
    other = data.copy()
    other[rng.integers(0, count, count // 50)] ^= 0x81
    shape = (count * 8 // DTYPE_BITS[dtype],)
    old: Files = {"m.safetensors": {"odd": Tensor("U8", (3,), b"abc"), "t": Tensor(dtype, shape, data.tobytes())}}
    new: Files = {"m.safetensors": {"odd": Tensor("U8", (3,), b"abd"), "t": Tensor(dtype, shape, other.tobytes())}}
    round_trip(place, old, new)


def test_nan_payloads_signed_zeros_infinities_and_subnormals_are_kept(place: Path) -> None:
    old = bf16(0x0000, 0x8000, 0x7FC0, 0x7F81, 0xFFC1, 0x7F80, 0x0001, 0x3F80)
    new = bf16(0x8000, 0x0000, 0x7FC1, 0x7FFF, 0x7FC1, 0xFF80, 0x8001, 0x3F80)
    report = round_trip(place, {"m.safetensors": {"t": old}}, {"m.safetensors": {"t": new}})
    assert report.changed == 7


def test_real_files_of_the_safetensors_library_in_one_file_and_in_shards(place: Path) -> None:
    rng = np.random.default_rng(2)
    tensors = {f"layer.{i}": rng.standard_normal((64, 33)).astype(np.float16) for i in range(4)}
    for name in "ab":
        (place / name).mkdir()
    save_file(tensors, place / "a/model.safetensors", {"format": "pt"})
    tensors["layer.2"] = tensors["layer.2"] + np.float16(0.001)
    for shard in range(2):
        part = {f"layer.{i}": tensors[f"layer.{i}"] for i in (shard, shard + 2)}
        save_file(part, place / f"b/model-{shard}.safetensors", {"format": "pt"})
    (place / "b/model.safetensors.index.json").write_text("{}")
    report = offline.diff(place / "a", place / "b", place / "d")
    offline.apply(place / "a", place / "d", place / "out")
    assert contents(place / "out") == contents(place / "b")
    assert (report.added, report.removed) == (0, 0)
    assert report.payload_bytes < 8_000


def test_single_files_are_told_by_their_content_and_not_by_their_names(place: Path) -> None:
    old, new, moved = (place / f"{name}.safetensors" for name in ("old", "new", "moved"))
    old.write_bytes(safetensors({"t": bf16(1, 2, 3)}))
    new.write_bytes(safetensors({"t": bf16(1, 9, 3), "u": bf16(4)}))
    offline.diff(old, new, place / "d")
    shutil.copy(old, moved)
    report = offline.apply(moved, place / "d", place / "out.safetensors")
    assert (place / "out.safetensors").read_bytes() == new.read_bytes()
    assert report.digest == offline.info(place / "d").digest


def test_hidden_files_are_no_part_of_a_checkpoint(place: Path) -> None:
    a, b = write(place / "a", model()), write(place / "b", step(model()))
    (b / ".cache").mkdir()
    (b / ".cache/x").write_bytes(b"x")
    offline.diff(a, b, place / "d")
    offline.apply(a, place / "d", place / "out")
    shutil.rmtree(b / ".cache")
    assert contents(place / "out") == contents(b)


def test_equal_inputs_make_equal_files(place: Path) -> None:
    round_trip(place, model(), step(model()))
    offline.diff(place / "a", place / "b", place / "again")
    assert (place / "again").read_bytes() == (place / "d").read_bytes()


def test_the_report_counts_what_changed(place: Path) -> None:
    new = step(model())
    new["extra.json"] = b"{}"
    report = round_trip(place, model(), new)
    assert (report.changed, report.tensors, report.files, report.added) == (3002, 3, 3, 0)
    assert report.file_bytes == (place / "d").stat().st_size
    assert report.model_bytes == sum(map(len, contents(place / "b").values()))
    assert msgspec.structs.asdict(offline.info(place / "d")).items() <= msgspec.structs.asdict(report).items()


def test_progress_rises_to_the_whole(place: Path) -> None:
    a, b = write(place / "a", model()), write(place / "b", step(model()))
    told: list[tuple[int, int]] = []
    offline.diff(a, b, place / "d", progress=lambda done, total: told.append((done, total)))
    offline.apply(a, place / "d", place / "out", progress=lambda done, total: told.append((done, total)))
    assert all(0 <= done <= total for done, total in told)
    assert told[-1][0] == told[-1][1]


# ---- refusals: one line, OUT as it was, nothing left behind


def refused(place: Path, kind: type[P2PSyncError], *arguments: Path, **options: bool) -> str:
    """Apply, which must fail; returns the message."""
    before = contents(place)
    with pytest.raises(kind) as caught:
        offline.apply(*arguments, **options)
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


def test_a_second_apply_is_told_that_there_is_nothing_to_apply(place: Path) -> None:
    round_trip(place, model(), step(model()))
    assert "already" in refused(place, BaseMismatchError, place / "out", place / "d", place / "o")


def test_a_second_apply_of_a_delta_that_adds_files_is_told_so_too(place: Path) -> None:
    round_trip(place, model(), {**step(model()), "added.txt": b"x"})
    assert "already" in refused(place, BaseMismatchError, place / "out", place / "d", place / "o")


def test_other_tensors_are_refused_before_anything_is_read(place: Path) -> None:
    round_trip(place, model(), step(model()))
    write(place / "small", model(1000))
    message = refused(place, BaseMismatchError, place / "small", place / "d", place / "o")
    assert "'model.safetensors'" in message
    assert "digest" not in message


def test_a_wrong_base_with_a_header_of_the_same_size_is_still_called_a_wrong_base(place: Path) -> None:
    one = {"x": bf16(1), "y": bf16(2)}
    round_trip(place, {"m.safetensors": one}, {"m.safetensors": {**one, "z": bf16(3)}})
    write(place / "swapped", {"m.safetensors": {"y": bf16(2), "x": bf16(1)}})
    refused(place, BaseMismatchError, place / "swapped", place / "d", place / "o")


def test_an_existing_target_is_refused_unless_forced(place: Path) -> None:
    round_trip(place, model(), step(model()))
    write(place / "o", {"m.safetensors": {"t": bf16(1)}, "stale.txt": b"x"})
    refused(place, StoreError, place / "a", place / "d", place / "o")
    offline.apply(place / "a", place / "d", place / "o", force=True)
    assert contents(place / "o") == contents(place / "b")
    assert sorted(path.name for path in place.iterdir()) == ["a", "b", "d", "o", "out"]


def test_force_does_not_replace_a_directory_by_a_delta(place: Path) -> None:
    a, b = write(place / "a", model()), write(place / "b", step(model()))
    (place / "d").mkdir()
    with pytest.raises(StoreError):
        offline.diff(a, b, place / "d", force=True)
    assert (place / "d").is_dir()


def test_force_does_not_replace_what_is_no_checkpoint(place: Path) -> None:
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
        offline.diff(a / "model.safetensors", a, place / "d")
    with pytest.raises(UsageError):
        offline.diff(a, a / "model.safetensors", place / "d")


def test_a_delta_that_leads_to_a_directory_is_not_applied_to_a_single_file(place: Path) -> None:
    tensors = {"t": bf16(1)}
    round_trip(place, {"model.safetensors": tensors}, {"model.safetensors": tensors, "config.json": b"{}"})
    refused(place, BaseMismatchError, place / "a/model.safetensors", place / "d", place / "o.safetensors")


def test_deltas_that_do_not_meet_are_not_squashed(place: Path) -> None:
    paths = [write(place / str(i), step(model(), i)) for i in range(3)]
    offline.diff(paths[0], paths[1], place / "d0")
    offline.diff(paths[1], paths[2], place / "d1")
    with pytest.raises(BaseMismatchError, match="does not start where"):
        offline.squash([place / "d1", place / "d0"], place / "s")
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
            offline.diff(a, b, place / "d")
        with pytest.raises(FormatError):
            offline.diff(b, a, place / "d")
    assert not [path for path in place.iterdir() if path.name.endswith("tmp") or path.name == "d"]


def test_a_delta_with_any_byte_flipped_is_refused_by_every_command(place: Path) -> None:
    round_trip(place, model(3000), step(model(3000)))
    data = (place / "d").read_bytes()
    for at in [*range(0, len(data), max(1, len(data) // 150)), *range(len(data) - 50, len(data))]:
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        (place / "bad").write_bytes(damaged)
        refused(place, FormatError, place / "a", place / "bad", place / "o")
        for command in (lambda: offline.info(place / "bad"), lambda: offline.invert(place / "bad", place / "o")):
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
    "a path that leads outside": TensorSpec(Kind.FILE, "../evil", "U8", (4,)),
    "an absolute path": TensorSpec(Kind.FILE, "/evil", "U8", (4,)),
    "a header of a terabyte": TensorSpec(Kind.HEADER, "z.safetensors", "U8", (1 << 40,)),
    "a file of a terabyte": TensorSpec(Kind.FILE, "z", "U8", (1 << 40,)),
    "a tensor that no header describes": TensorSpec(Kind.TENSOR, "z", "F64", (1 << 50,)),
    "a header of zeros": TensorSpec(Kind.HEADER, "z.safetensors", "U8", (100,)),
}


@pytest.mark.parametrize("spec", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_table_is_refused(place: Path, spec: TensorSpec) -> None:
    round_trip(place, model(3000), step(model(3000)))
    rows = sorted([*manifest_of(place / "d").rows(), Row(spec, False, True)], key=lambda row: row.spec)
    forged = forge(place, table=pack_table(rows))
    refused(place, P2PSyncError, place / "a", forged, place / "o")


def test_a_delta_that_states_another_outcome_is_refused(place: Path) -> None:
    round_trip(place, model(), step(model()))
    refused(place, DigestMismatchError, place / "a", forge(place, digest=bytes(16)), place / "o")


def test_an_anchor_is_described_but_not_applied(place: Path) -> None:
    round_trip(place, model(), step(model()))
    anchor = forge(place, base=None)
    assert offline.info(anchor).kind == "anchor"
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
    done = subprocess.run([sys.executable, "-c", script, str(place)], capture_output=True, check=False)
    assert done.returncode != 0
    assert not (place / "o").exists()
    if number == signal.SIGINT:
        assert sorted(path.name for path in place.iterdir()) == ["a", "b", "d", "out"]
    offline.apply(place / "a", place / "d", place / "o")
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
        lambda: offline.apply(place / "a", place / "d", small_disk / "o"),
        lambda: offline.diff(place / "a", place / "b", small_disk / "o"),
        lambda: offline.invert(place / "d", small_disk / "o"),
        lambda: offline.squash([place / "d"], small_disk / "o"),
    ):
        with pytest.raises(StoreError, match="free"):
            work()
        assert list(small_disk.iterdir()) == []


@pytest.mark.root
def test_a_disk_that_fills_up_midway_leaves_nothing(
    place: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_trip(place, model(900_000), model(900_000, seed=1))

    def unreserved(files: dict[str, Path], plan: Layout, where: Path) -> None:
        for path in files.values():
            path.touch()

    monkeypatch.setattr("p2psync.engines.rebuild._create", unreserved)
    with pytest.raises(StoreError, match="full"):
        offline.apply(place / "a", place / "d", small_disk / "o")
    assert list(small_disk.iterdir()) == []
