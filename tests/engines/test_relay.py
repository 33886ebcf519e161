"""The relay's engine keeps a position without weights, and believes it only while the store has its chunks."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec
from p2psync.engines.relay import RelayEngine
from p2psync.errors import BaseMismatchError, EngineError
from p2psync.protocol.manifest import Manifest, pack_table, sign
from p2psync.protocol.versions import PathStep, Position
from p2psync.store.packs import Store

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SPEC = TensorSpec(TensorKind.TENSOR, "w", "U8", (100,))


def digest(version: int) -> bytes:
    """Returns the digest of a version."""
    return bytes([version + 1]) * 16


def add(store: Store, version: int, base: int | None, *, epoch: int = 1, whole: bool = True) -> PathStep:
    """A manifest of two chunks in the store; not `whole`: without the second one."""
    parts = [random.Random(repr((version, i))).randbytes(50) for i in range(2)]
    manifest = Manifest(
        run="1" * 32,
        epoch=epoch,
        version=version,
        base=base,
        digest=digest(version),
        base_digest=bytes(16) if base is None else digest(base),
        profile="fast",
        block_units=1 << 16,
        table=pack_table([TableRow(SPEC, base is not None, True)]),
        sizes=[len(part) for part in parts],
        hashes=b"".join(blake3(part).digest() for part in parts),
        first_rows=[0, 0],
        changed=7,
        total=100,
        created=0.0,
    )
    signed = sign(manifest, KEY)
    pack = store.add(signed, manifest)
    for index in range(2 if whole else 1):
        pack.write(index, parts[index])
    return PathStep(signed.id, manifest)


def commit_path(engine: RelayEngine, *path: PathStep) -> None:
    """Commits a path whose chunks the store holds."""
    stage = engine.stage(path)
    for i in range(len(path)):
        assert list(stage.wanted(i)) == [0, 1]
        stage.put(i, {0: b"", 1: b""})
    assert stage.commit().changed == 7 * len(path)


def reopened(place: Path) -> RelayEngine:
    """The engine of the next start."""
    with Store(place / "packs") as store:
        return RelayEngine(place / "relay.json", store)


def test_a_relay_keeps_its_position_over_a_restart(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        engine = RelayEngine(tmp_path / "relay.json", store)
        assert engine.position is None
        assert engine.table() == []
        commit_path(engine, add(store, 0, None), add(store, 1, 0))
        commit_path(engine, add(store, 2, 1))
        assert engine.table() == [SPEC]
    assert reopened(tmp_path).position == Position(run="1" * 32, epoch=1, version=2, digest=digest(2))


def test_packs_that_were_retired_since_are_not_missed(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        first, second = add(store, 0, None), add(store, 1, 0)
        commit_path(RelayEngine(tmp_path / "relay.json", store), first, second)
        store.remove(first.id)
    assert reopened(tmp_path).position is not None


def test_a_position_with_missing_chunks_is_not_believed(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        commit_path(RelayEngine(tmp_path / "relay.json", store), add(store, 0, None), add(store, 1, 0, whole=False))
    assert reopened(tmp_path).position is None


def test_a_stage_must_start_at_the_relays_position(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        engine = RelayEngine(tmp_path / "relay.json", store)
        with pytest.raises(BaseMismatchError):
            engine.stage([add(store, 1, 0)])
        commit_path(engine, add(store, 0, None))
        with pytest.raises(BaseMismatchError):
            engine.stage([add(store, 3, 2)])
        engine.stage([add(store, 5, None)]).abandon()
        assert engine.position is not None
        assert engine.position.version == 0


def test_a_relay_adopts_the_same_weights_under_a_later_epoch_only(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        engine = RelayEngine(tmp_path / "relay.json", store)
        later = Position(run="1" * 32, epoch=2, version=0, digest=digest(0))
        assert not engine.adopt(later)
        commit_path(engine, add(store, 0, None))
        assert not engine.adopt(msgspec.structs.replace(later, digest=digest(9)))
        assert engine.adopt(later)
    assert reopened(tmp_path).position == later


def test_a_relay_has_no_weights_to_show_or_roll_back(tmp_path: Path) -> None:
    with Store(tmp_path / "packs") as store:
        engine = RelayEngine(tmp_path / "relay.json", store)
        with pytest.raises(EngineError, match="keeps no weights"):
            engine.units(SPEC)
        with pytest.raises(EngineError, match="keeps no weights"):
            engine.roll_back()
        assert engine.scrub()


def test_a_record_that_a_power_loss_left_empty_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "note").write_bytes(b"")
    with Store(tmp_path / "packs") as store:
        assert RelayEngine(tmp_path / "note", store).position is None


def test_a_damaged_record_is_reported_once_and_written_again(tmp_path: Path) -> None:
    (tmp_path / "relay.json").write_text("{")
    with Store(tmp_path / "packs") as store:
        engine = RelayEngine(tmp_path / "relay.json", store)
        assert engine.position is None
        (line,) = engine.inspect()
        assert "relay.json.damaged" in line
        assert "\n" not in line
        assert engine.inspect() == []
        commit_path(engine, add(store, 0, None))
    assert reopened(tmp_path).position is not None
