"""A checkpoint directory is read as tensors, every byte of it, without copies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from engine_parts import Files, header_of, safetensors, tensor, write_files

from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.engines.checkpoint.layout import MAX_FILE_BYTES, check_rows, compute_layout
from p2psync.errors import FormatError

FILES: Files = {
    "model-00001-of-00002.safetensors": {"b": tensor(1, "BF16", 5, 3), "a": tensor(2, "F8_E4M3", 7)},
    "model-00002-of-00002.safetensors": {
        "c": tensor(3, "F32", 2),
        "none": tensor(4, "BF16", 0, 4),
        "one": tensor(5, "I64"),
    },
    "config.json": b'{"x": 1}',
    "empty.txt": b"",
    "tokenizer/vocab.txt": b"hello\n",
}


def test_a_checkpoint_has_every_file_as_tensors_headers_or_blobs(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    with Checkpoint.open(tmp_path) as checkpoint:
        kinds = [(TensorKind(spec.kind).name, spec.name) for spec in checkpoint.specs]
        assert kinds == [
            ("HEADER", "model-00001-of-00002.safetensors"),
            ("HEADER", "model-00002-of-00002.safetensors"),
            ("FILE", "config.json"),
            ("FILE", "empty.txt"),
            ("FILE", "tokenizer/vocab.txt"),
            *(("TENSOR", name) for name in ("a", "b", "c", "none", "one")),
        ]
        found = {spec.name: checkpoint.units(spec) for spec in checkpoint.specs}
        for name, content in FILES.items():
            if isinstance(content, bytes):
                assert found[name].tobytes() == content
            else:
                assert found[name].tobytes() == header_of(content)
                assert all(found[tensor].tobytes() == bits for tensor, (_, _, bits) in content.items())
        assert sum(spec.nbytes for spec in checkpoint.specs) == sum(p.stat().st_size for p in tmp_path.rglob("*.*"))
        assert not any(units.flags.writeable for units in found.values() if units.size)


def test_a_single_file_is_a_checkpoint_too(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(safetensors({"w": tensor(1, "F16", 4)}))
    with Checkpoint.open(tmp_path / "m.safetensors") as checkpoint:
        assert [spec.name for spec in checkpoint.specs] == ["m.safetensors", "w"]


def test_unaligned_tensors_are_read_where_they_are(tmp_path: Path) -> None:
    weights = {"odd": tensor(1, "I8", 3), "f": tensor(2, "F32", 1000), "d": tensor(3, "F64", 9)}
    (tmp_path / "m.safetensors").write_bytes(safetensors(weights, pad=1))
    with Checkpoint.open(tmp_path) as checkpoint:
        for spec in checkpoint.specs[1:]:
            assert checkpoint.units(spec).tobytes() == weights[spec.name][2]


def test_arrays_stay_valid_after_the_checkpoint_is_closed(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    with Checkpoint.open(tmp_path) as checkpoint:
        units = checkpoint.units(checkpoint.specs[-4])
    assert units.tobytes() == FILES["model-00001-of-00002.safetensors"]["b"][2]  # type: ignore[index]


def test_a_writable_checkpoint_writes_through(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    with Checkpoint.open(tmp_path, writable=True) as checkpoint:
        checkpoint.units(TensorSpec(2, "c", "F32", (2,)))[1] = 7
    with Checkpoint.open(tmp_path) as checkpoint:
        assert checkpoint.units(TensorSpec(2, "c", "F32", (2,)))[1] == 7


def test_a_name_in_two_files_is_qualified_everywhere(tmp_path: Path) -> None:
    files: Files = {f"{n}/m.safetensors": {"w": tensor(n, "U8", 4), n: tensor(n, "U8", 1)} for n in ("x", "y")}
    write_files(tmp_path, files)
    with Checkpoint.open(tmp_path) as checkpoint:
        names = [spec.name for spec in checkpoint.specs if spec.kind == TensorKind.TENSOR]
        assert names == ["x", "x/m.safetensors#w", "y", "y/m.safetensors#w"]
        spec = TensorSpec(2, "y/m.safetensors#w", "U8", (4,))
        assert checkpoint.units(spec).tobytes() == files["y/m.safetensors"]["w"][2]  # type: ignore[index]


def test_hidden_files_are_no_part_and_linked_files_are(tmp_path: Path) -> None:
    write_files(tmp_path / "blobs", {"data": b"linked"})
    root = write_files(tmp_path / "c", {".git/config": b"", ".DS_Store": b"", "config.json": b"{}"})
    (root / "tokenizer.json").symlink_to(tmp_path / "blobs" / "data")
    with Checkpoint.open(root) as checkpoint:
        assert [spec.name for spec in checkpoint.specs] == ["config.json", "tokenizer.json"]
        assert checkpoint.blobs() == {"config.json": b"{}", "tokenizer.json": b"linked"}


@pytest.mark.parametrize("what", ["dangling link", "linked directory", "pipe"])
def test_unpublishable_tensors_are_refused_by_name(tmp_path: Path, what: str) -> None:
    root = write_files(tmp_path / "c", {"config.json": b"{}"})
    if what == "pipe":
        os.mkfifo(root / "thing")
    else:
        (root / "thing").symlink_to(tmp_path / ("nowhere" if what == "dangling link" else "."))
    with pytest.raises(FormatError, match="thing"):
        Checkpoint.open(root)


def test_a_file_cut_short_or_too_long_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    whole = safetensors({"w": tensor(1, "BF16", 100)})
    for data in (whole[:-1], whole + b"\0", whole[:20], whole[:5], b""):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"m\.safetensors"):
            Checkpoint.open(tmp_path)


def test_an_invalid_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"")
    for path in (tmp_path / "x.bin", tmp_path / "nothing", tmp_path / "no.safetensors"):
        with pytest.raises(FormatError, match=str(path)):
            Checkpoint.open(path)


def test_weights_in_other_formats_are_not_shipped_as_files() -> None:
    with pytest.raises(FormatError, match=r"'big\.bin': convert weights to safetensors"):
        compute_layout({}, {"big.bin": MAX_FILE_BYTES, "config.json": 1})
    with pytest.raises(FormatError, match="over the limit"):
        check_rows([TensorSpec(1, "big.bin", "U8", (MAX_FILE_BYTES + 1,))])


@pytest.mark.parametrize(
    ("headers", "files"),
    [
        (["a.safetensors"], ["a.safetensors"]),
        (["a"], []),
        ([], ["x.safetensors"]),
        ([], ["a", "a/b"]),
        (["a.safetensors"], ["a.safetensors/x"]),
        ([], ["../x"]),
        (["/a.safetensors"], []),
    ],
)
def test_conflicting_files_are_refused(headers: list[str], files: list[str]) -> None:
    with pytest.raises(FormatError):
        compute_layout({name: header_of({}) for name in headers}, dict.fromkeys(files, 1))


def test_a_qualified_name_that_is_taken_is_refused() -> None:
    one, two = {"w": tensor(1, "U8", 1)}, {"w": tensor(1, "U8", 1), "a.safetensors#w": tensor(2, "U8", 1)}
    with pytest.raises(FormatError, match="not unique"):
        compute_layout({"a.safetensors": header_of(one), "b.safetensors": header_of(two)})


def test_the_layout_follows_from_the_headers_alone(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    headers = {name: header_of(content) for name, content in FILES.items() if isinstance(content, dict)}
    sizes = {name: len(content) for name, content in FILES.items() if isinstance(content, bytes)}
    with Checkpoint.open(tmp_path) as checkpoint:
        plan = compute_layout(headers, sizes)
        assert plan == checkpoint.layout
        assert list(plan.offsets) == sorted(plan.offsets)
        place = plan.offsets[TensorSpec(2, "one", "I64", ())]
        data = (tmp_path / place.file).read_bytes()
        assert data[place.offset :] == checkpoint.units(TensorSpec(2, "one", "I64", ())).tobytes()


def test_the_digest_covers_every_byte_of_every_file(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    with Checkpoint.open(tmp_path) as checkpoint:
        digest = checkpoint.digest()
    rng = np.random.default_rng(1)
    for path in [p for p in tmp_path.rglob("*.*") if p.stat().st_size]:
        whole = path.read_bytes()
        at = int(rng.integers(0, len(whole))) if path.suffix != ".safetensors" else len(whole) - 1
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with Checkpoint.open(tmp_path) as checkpoint:
            assert checkpoint.digest() != digest
        path.write_bytes(whole)
