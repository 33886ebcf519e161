"""Deltas between checkpoints on disk, and deltas made of them, are exact: every file, every bit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offline_parts import (
    Files,
    Tensor,
    bf16,
    checkpoints,
    contents,
    model,
    round_trip,
    safetensors,
    scratch,
    step,
    successors,
    write,
)
from safetensors.numpy import save_file

from p2psync.delta.tensors import DTYPE_BITS
from p2psync.engines.offline import delta_commands
from p2psync.store import encoding

exactly = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def place() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


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
            delta_commands.diff(paths[i], paths[i + 1], delta)
        delta_commands.squash(deltas, place / "squashed")
        delta_commands.diff(paths[0], paths[-1], place / "ends")
        assert (place / "squashed").read_bytes() == (place / "ends").read_bytes()


@exactly
@given(st.data())
def test_an_inverted_delta_is_byte_for_byte_the_diff_the_other_way(data: st.DataObject) -> None:
    old = data.draw(checkpoints())
    with scratch() as place:
        a, b = write(place / "a", old), write(place / "b", data.draw(successors(old)))
        delta_commands.diff(a, b, place / "there")
        delta_commands.diff(b, a, place / "back")
        delta_commands.invert(place / "there", place / "inverted")
        assert (place / "inverted").read_bytes() == (place / "back").read_bytes()


def test_a_delta_squashed_with_its_inverse_changes_nothing(place: Path) -> None:
    round_trip(place, model(), step(model()))
    delta_commands.invert(place / "d", place / "undo")
    report = delta_commands.squash([place / "d", place / "undo"], place / "both")
    assert (report.changed, report.chunks) == (0, 0)
    delta_commands.apply(place / "a", place / "both", place / "same")
    assert contents(place / "same") == contents(place / "a")


def test_a_long_chain_of_large_tensors_squashes_to_the_diff_of_its_ends(place: Path) -> None:
    files = model(700_000)
    paths = [write(place / "0", files)]
    for i in range(1, 5):
        files = step(files, i)
        paths.append(write(place / str(i), files))
        delta_commands.diff(paths[-2], paths[-1], place / f"d{i}")
    delta_commands.squash([place / f"d{i}" for i in range(1, 5)], place / "squashed")
    delta_commands.diff(paths[0], paths[-1], place / "ends")
    assert (place / "squashed").read_bytes() == (place / "ends").read_bytes()
    delta_commands.apply(paths[0], place / "squashed", place / "out")
    assert contents(place / "out") == contents(paths[-1])


ZEROS, FEW, MOST, ALL = (np.zeros(1000, "<u2") for _ in range(4))
FEW[::10], MOST[:600:1], ALL[:] = 3, 4, 5
HALF_BACK = np.where(np.arange(1000) < 500, ZEROS, ALL)


@pytest.mark.parametrize(
    "chain",
    [
        pytest.param([ZEROS, ALL, HALF_BACK], id="all change, half go back"),
        pytest.param([ZEROS, HALF_BACK, ALL], id="half change, then all"),
        pytest.param([ALL, HALF_BACK, ZEROS], id="half change, then the rest"),
        pytest.param([None, FEW, MOST], id="comes with few, then most are not zero"),
        pytest.param([None, MOST, FEW], id="comes with most, then few are not zero"),
        pytest.param([FEW, MOST, None], id="goes from few by way of most"),
        pytest.param([MOST, None, FEW], id="goes and comes back"),
        pytest.param([None, MOST, None], id="comes and goes"),
        pytest.param([MOST, ALL, MOST], id="there and back"),
        pytest.param([ZEROS, None, None], id="zeros go"),
    ],
)
def test_a_squashed_block_is_dense_just_where_the_diff_of_the_ends_is(
    place: Path, chain: list[np.ndarray[tuple[int], np.dtype[np.uint16]] | None]
) -> None:
    for i, units in enumerate(chain):
        stays = {"stays": bf16(i)}
        more = {} if units is None else {"t": Tensor("BF16", (units.size,), units.tobytes())}
        write(place / str(i), {"m.safetensors": stays | more})
    for old, new in ((0, 1), (1, 2), (0, 2)):
        delta_commands.diff(place / str(old), place / str(new), place / f"d{old}{new}")
    delta_commands.squash([place / "d01", place / "d12"], place / "squashed")
    assert (place / "squashed").read_bytes() == (place / "d02").read_bytes()
    delta_commands.diff(place / "2", place / "0", place / "back")
    delta_commands.invert(place / "squashed", place / "inverted")
    assert (place / "inverted").read_bytes() == (place / "back").read_bytes()


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


def test_deltas_of_other_block_sizes_squash_and_invert_alike(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = [model(), step(model(), 1), step(step(model(), 1), 2)]
    a, b, c = (write(place / str(i), files) for i, files in enumerate(chain))
    with monkeypatch.context() as patched:
        patched.setattr(encoding, "DELTA_BLOCK_UNITS", 1 << 16)
        delta_commands.diff(a, b, place / "small")
    delta_commands.diff(b, c, place / "d")
    delta_commands.squash([place / "small", place / "d"], place / "squashed")
    delta_commands.diff(a, c, place / "ends")
    assert (place / "squashed").read_bytes() == (place / "ends").read_bytes()
    delta_commands.invert(place / "small", place / "inverted")
    delta_commands.diff(b, a, place / "back")
    assert (place / "inverted").read_bytes() == (place / "back").read_bytes()


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
    report = delta_commands.diff(place / "a", place / "b", place / "d")
    delta_commands.apply(place / "a", place / "d", place / "out")
    assert contents(place / "out") == contents(place / "b")
    assert (report.added, report.removed) == (0, 0)
    assert report.payload_bytes < 8_000


def test_single_files_are_told_by_their_content_and_not_by_their_names(place: Path) -> None:
    old, new, moved = (place / f"{name}.safetensors" for name in ("old", "new", "moved"))
    old.write_bytes(safetensors({"t": bf16(1, 2, 3)}))
    new.write_bytes(safetensors({"t": bf16(1, 9, 3), "u": bf16(4)}))
    delta_commands.diff(old, new, place / "d")
    shutil.copy(old, moved)
    report = delta_commands.apply(moved, place / "d", place / "out.safetensors")
    assert (place / "out.safetensors").read_bytes() == new.read_bytes()
    assert report.digest == delta_commands.info(place / "d").digest


def test_hidden_files_are_no_part_of_a_checkpoint(place: Path) -> None:
    a, b = write(place / "a", model()), write(place / "b", step(model()))
    (b / ".cache").mkdir()
    (b / ".cache/x").write_bytes(b"x")
    delta_commands.diff(a, b, place / "d")
    delta_commands.apply(a, place / "d", place / "out")
    shutil.rmtree(b / ".cache")
    assert contents(place / "out") == contents(b)


def test_equal_inputs_make_equal_files(place: Path) -> None:
    round_trip(place, model(), step(model()))
    delta_commands.diff(place / "a", place / "b", place / "again")
    assert (place / "again").read_bytes() == (place / "d").read_bytes()


def test_the_report_counts_changed_units(place: Path) -> None:
    new = step(model())
    new["extra.json"] = b"{}"
    report = round_trip(place, model(), new)
    assert (report.changed, report.tensors, report.files, report.added) == (6002, 3, 3, 0)
    assert report.file_bytes == (place / "d").stat().st_size
    assert report.model_bytes == sum(map(len, contents(place / "b").values()))
    assert msgspec.structs.asdict(delta_commands.info(place / "d")).items() <= msgspec.structs.asdict(report).items()


def test_progress_rises_to_the_whole(place: Path) -> None:
    a, b = write(place / "a", model()), write(place / "b", step(model()))
    told: list[tuple[int, int]] = []
    delta_commands.diff(a, b, place / "d", progress=lambda done, total: told.append((done, total)))
    delta_commands.apply(a, place / "d", place / "out", progress=lambda done, total: told.append((done, total)))
    assert all(0 <= done <= total for done, total in told)
    assert told[-1][0] == told[-1][1]
