"""Scans of real directories: headers, links, loops, undecodable names, fingerprints of weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2psync.trainer.watch.candidates import Candidate, find_candidates
from p2psync.trainer.watch.listing import EntryKind
from p2psync.trainer.watch.locations import CheckpointRules
from p2psync.trainer.watch.scanner import LONE_NAME, DirectoryScanner


def shard(bits: bytes, name: str = "w") -> bytes:
    table = {name: {"dtype": "U8", "shape": [len(bits)], "data_offsets": [0, len(bits)]}}
    header = json.dumps(table).encode()
    return len(header).to_bytes(8, "little") + header + bits


def model(place: Path, bits: bytes = b"12345678") -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.safetensors").write_bytes(shard(bits))
    (place / "config.json").write_text("{}")
    return place


def candidates(scanner: DirectoryScanner) -> dict[str, Candidate]:
    return {c.path: c for c in find_candidates(scanner.listing(), scanner.rules).candidates}


def fault(scanner: DirectoryScanner, path: str) -> str:
    found = candidates(scanner)[path].fault
    return found.reason if found else ""


def test_scanner_reads_headers_and_indices_again_only_when_they_change(tmp_path: Path) -> None:
    place = model(tmp_path / "step-1")
    scanner = DirectoryScanner(tmp_path, CheckpointRules())
    assert fault(scanner, "step-1") == ""
    first = scanner.listing().entries["step-1/model.safetensors"].tensors
    assert scanner.listing().entries["step-1/model.safetensors"].tensors is first
    whole = shard(bytes(100))
    (place / "model.safetensors").write_bytes(whole[:-1])
    assert fault(scanner, "step-1") == f"model.safetensors: {len(whole) - 1} bytes, its header describes {len(whole)}"
    (place / "model.safetensors").write_bytes(whole)
    (place / "model.safetensors.index.json").write_text('{"weight_map": {"w": ')
    assert "it is no index of shards" in fault(scanner, "step-1")
    (place / "model.safetensors.index.json").write_text('{"weight_map": {"w": "other.safetensors"}}')
    assert fault(scanner, "step-1") == "other.safetensors of its index is missing"


def test_scanner_tells_optimizer_state_by_its_tensors(tmp_path: Path) -> None:
    place = model(tmp_path / "step-1")
    (place / "adam.safetensors").write_bytes(shard(b"1234", "layers.0.weight.exp_avg_sq"))
    found = candidates(DirectoryScanner(tmp_path, CheckpointRules()))["step-1"]
    assert [name for name, _ in found.left_out] == ["adam.safetensors"]


@pytest.mark.parametrize("path", ["step-1", "inner/../step-1", "link/step-1"])
def test_scanner_resolves_the_path_of_the_watched_directory(tmp_path: Path, path: str) -> None:
    model(tmp_path / "step-1" / "checkpoint-1")
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    scanner = DirectoryScanner(tmp_path / path, CheckpointRules())
    assert scanner.root == tmp_path / "step-1" and list(candidates(scanner)) == ["checkpoint-1"]


def test_bad_links_and_names_spoil_only_their_checkpoint(tmp_path: Path) -> None:
    model(tmp_path / "good-1")
    for name in ("loop-1", "dangling-1", "pipe-1", "text-1", "out-1"):
        model(tmp_path / name)
    (tmp_path / "loop-1" / "x").symlink_to("x")
    (tmp_path / "dangling-1" / "x").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe-1" / "x")
    Path(os.fsdecode(os.fsencode(tmp_path / "text-1") + b"/\xff.json")).write_text("{}")
    (tmp_path / "out-1" / "x").symlink_to("/etc/hostname")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xfe")).mkdir()
    (tmp_path / "latest").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    scanner = DirectoryScanner(tmp_path, CheckpointRules())
    assert fault(scanner, "good-1") == ""
    assert "levels of symbolic links" in fault(scanner, "loop-1")
    assert "leads nowhere" in fault(scanner, "dangling-1")
    assert "neither a file nor a directory" in fault(scanner, "pipe-1")
    assert "not UTF-8" in fault(scanner, "text-1")
    assert "x is a link out of the watched directory, to /" in fault(scanner, "out-1")
    assert "--follow-links" in fault(scanner, "out-1")


def test_scanner_never_publishes_the_store_or_its_keys_through_links(tmp_path: Path) -> None:
    place = model(tmp_path / "step-1")
    store = tmp_path / "store"
    model(store / "slots")
    (store / "trainer.key").write_text("secret")
    (tmp_path / "other").symlink_to(store)
    (place / "x.json").symlink_to(store / "trainer.key")
    status = (store / "trainer.key").stat()
    rules = CheckpointRules(follow_links=True, secrets=frozenset({(status.st_dev, status.st_ino)}))
    scanner = DirectoryScanner(tmp_path, rules, [store])
    assert "never published" in fault(scanner, "step-1")
    assert list(candidates(scanner)) == ["step-1"]
    (place / "x.json").unlink()
    os.link(store / "trainer.key", place / "x.json")
    assert "never published" in fault(scanner, "step-1")


def test_scanner_reads_a_hugging_face_cache_with_follow_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1").write_bytes(shard(b"1234"))
    (snapshot / "model.safetensors").symlink_to("../../blobs/1")
    scanner = DirectoryScanner(tmp_path / "snapshots", CheckpointRules())
    assert "model.safetensors is a link out of the watched directory" in fault(scanner, "abc")
    scanner = DirectoryScanner(tmp_path / "snapshots", CheckpointRules(follow_links=True))
    assert fault(scanner, "abc") == ""
    with scanner.open(candidates(scanner)["abc"]) as checkpoint:
        assert [spec.name for spec in checkpoint.specs] == ["model.safetensors", "w"]
    assert (
        fault(DirectoryScanner(tmp_path, CheckpointRules()), "snapshots/abc") == ""
    )  # watched as a whole, nothing leads out


def test_scanner_follows_directory_links_with_follow_links_and_ends_at_loops(tmp_path: Path) -> None:
    root = tmp_path / "root"
    model(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "self").symlink_to(tmp_path / "elsewhere")
    root.mkdir()
    (root / "current").symlink_to(tmp_path / "elsewhere")
    assert "out of the watched directory" in fault(DirectoryScanner(root, CheckpointRules()), "current")
    scanner = DirectoryScanner(root, CheckpointRules(follow_links=True))
    assert "a link to a directory that it lies in" in fault(scanner, "current")
    (tmp_path / "elsewhere" / "self").unlink()
    assert fault(scanner, "current") == ""


def test_scanner_sees_a_file_replaced_by_one_of_the_same_size_and_time(tmp_path: Path) -> None:
    place = model(tmp_path / "step-1")
    scanner = DirectoryScanner(tmp_path, CheckpointRules())
    before = candidates(scanner)["step-1"].file_states
    assert scanner.state_of("step-1") == before
    times = (place / "config.json").stat()
    (tmp_path / "other").write_text("[]")
    os.utime(tmp_path / "other", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "other").replace(place / "config.json")
    assert scanner.state_of("step-1") != before
    (place / "model.safetensors").unlink()
    assert scanner.state_of("step-1") is None


def test_scanner_gives_the_reason_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    place = model(tmp_path / "step-1")
    (place / "model.safetensors").unlink()
    (place / "model.safetensors").symlink_to("/proc/self/mem")  # reading its first byte is an I/O error
    assert fault(DirectoryScanner(tmp_path, CheckpointRules(follow_links=True)), "step-1") == (
        "model.safetensors: Input/output error: trying again"
    )


def test_deep_directories_and_invalid_indices_spoil_only_their_checkpoint(tmp_path: Path) -> None:
    for name in ("good-1", "deep-1", "bytes-1", "nested-1"):
        model(tmp_path / name)
    (tmp_path / "deep-1" / Path(*["d"] * 600)).mkdir(parents=True)
    (tmp_path / "bytes-1" / "model.safetensors.index.json").write_bytes(b'{"weight_map": {"w": "\xff"}}')
    (tmp_path / "nested-1" / "model.safetensors.index.json").write_text('{"x": ' + "[" * 100_000)
    scanner = DirectoryScanner(tmp_path, CheckpointRules())
    assert fault(scanner, "good-1") == ""
    assert "more than 32 directories deep" in fault(scanner, "deep-1")
    for name in ("bytes-1", "nested-1"):
        assert "it is no index of shards" in fault(scanner, name)


def test_scanner_raises_if_the_watched_directory_is_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        DirectoryScanner(tmp_path / "gone", CheckpointRules()).listing()


def test_scanner_lists_no_ignored_or_hidden_directories(tmp_path: Path) -> None:
    model(tmp_path / "step-1" / "deep")
    model(tmp_path / ".hidden")
    entries = DirectoryScanner(tmp_path, CheckpointRules(ignore=("deep",))).listing().entries
    assert set(entries) == {"step-1", ".hidden"} and entries[".hidden"].kind is EntryKind.DIRECTORY


def test_a_lone_file_is_a_checkpoint_under_one_name(tmp_path: Path) -> None:
    (tmp_path / "policy-7.safetensors").write_bytes(shard(b"1234"))
    (tmp_path / "policy-8.safetensors").write_bytes(shard(b"1235"))
    scanner = DirectoryScanner(tmp_path, CheckpointRules())
    found = candidates(scanner)
    with scanner.open(found["policy-7.safetensors"]) as checkpoint:
        assert list(checkpoint.files) == [LONE_NAME]
    assert len({scanner.fingerprint_of(candidate) for candidate in found.values()}) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8 << 20), st.integers(0, 1 << 30))
def test_fingerprint_depends_on_the_bits_alone(tmp_path_factory: pytest.TempPathFactory, size: int, seed: int) -> None:
    """A small model is read whole; of a large one a page in every 16 KiB or so is read."""
    root = tmp_path_factory.mktemp("prints")
    place = model(root / "step-1", bytes(size))
    scanner = DirectoryScanner(root, CheckpointRules())
    before = scanner.fingerprint_of(candidates(scanner)["step-1"])
    os.utime(place / "model.safetensors", ns=(seed, seed))
    (place / "eval.json").write_text("{}")
    place.rename(root / "other")
    assert scanner.fingerprint_of(candidates(scanner)["other"]) == before
    with (root / "other" / "model.safetensors").open("r+b") as file:
        start = max(0, seed % size - (1 << 15))
        file.seek(len(shard(bytes(size))) - size + start)
        file.write(b"\1" * min(size - start, 1 << 16))
    assert scanner.fingerprint_of(candidates(scanner)["other"]) != before
