"""A delta file is complete or absent, and every byte of it is checked."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from store_parts import make_pack

from p2psync.errors import FormatError, StoreError
from p2psync.store.deltafile import DeltaFile, DeltaFileWriter

SIZES = [100, 4000, 1]


def _write(path: Path) -> list[bytes]:
    signed, manifest, chunks = make_pack(1, SIZES)
    with DeltaFileWriter(path) as writer:
        for chunk in chunks:
            writer.append(chunk)
        writer.finish(manifest, signed)
    return chunks


def test_delta_file_round_trips(tmp_path: Path) -> None:
    chunks = _write(tmp_path / "d")
    signed, manifest, _ = make_pack(1, SIZES)
    with DeltaFile(tmp_path / "d") as file:
        assert (file.manifest, file.signed) == (manifest, signed)
        assert [bytes(file.chunk(i)) for i in range(3)] == chunks


def test_unsigned_delta_file_has_no_signature(tmp_path: Path) -> None:
    _, manifest, _ = make_pack(1, [])
    with DeltaFileWriter(tmp_path / "d") as writer:
        writer.finish(manifest)
    with DeltaFile(tmp_path / "d") as file:
        assert file.signed is None
        assert file.manifest == manifest


def test_failed_writer_leaves_only_the_old_file(tmp_path: Path) -> None:
    chunks = _write(tmp_path / "d")
    with pytest.raises(RuntimeError), DeltaFileWriter(tmp_path / "d", force=True) as writer:
        writer.append(b"new")
        raise RuntimeError
    _, manifest, _ = make_pack(2, SIZES)
    with pytest.raises(StoreError, match="0 bytes of chunks"), DeltaFileWriter(tmp_path / "d", force=True) as writer:
        writer.finish(manifest)
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    with DeltaFile(tmp_path / "d") as file:
        assert bytes(file.chunk(1)) == chunks[1]


def test_missing_directory_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        DeltaFileWriter(tmp_path / "no" / "d")
    with pytest.raises(StoreError, match="No such file"):
        DeltaFile(tmp_path / "no" / "d")


def test_delta_file_detects_every_flipped_or_missing_byte(tmp_path: Path) -> None:
    _write(tmp_path / "d")
    whole = (tmp_path / "d").read_bytes()
    rng = random.Random(1)
    damaged = [whole[:n] for n in (0, 7, 20, len(whole) - 1, len(whole) // 2)] + [whole + b"x"]
    places = rng.sample(range(len(whole)), 300)
    damaged += [whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :] for at in places]
    for data in damaged:
        (tmp_path / "e").write_bytes(data)
        with pytest.raises(FormatError), DeltaFile(tmp_path / "e") as file:
            for index in range(file.manifest.chunks):
                file.chunk(index)


def test_delta_file_refuses_a_fifo_or_directory_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    for name in ("fifo", "directory"):
        with pytest.raises(FormatError, match="not a plain file"):
            DeltaFile(tmp_path / name)
