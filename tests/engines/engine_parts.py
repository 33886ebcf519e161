"""Checkpoints on disk, runs of versions made of them, and comparing directories byte for byte."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3

from p2psync.delta.container import ChunkEncoder
from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.tensors import DTYPE_BITS, TableRow, TensorSpec, Units
from p2psync.engines.base import Engine, PathStep, Position, Stage
from p2psync.engines.checkpoint.files import Checkpoint
from p2psync.protocol.manifest import Manifest, pack_table

RUN = "0" * 31 + "1"

#: dtype, shape, bits.
Tensor = tuple[str, tuple[int, ...], bytes]
Weights = dict[str, Tensor]
#: Path within the checkpoint → its tensors, or its bytes.
Files = dict[str, Weights | bytes]


def tensor(seed: object, dtype: str, *shape: int) -> Tensor:
    """A tensor of random bits."""
    size = int(np.prod(shape, dtype=np.int64)) * DTYPE_BITS[dtype] // 8
    return dtype, shape, random.Random(repr((seed, dtype, shape))).randbytes(size)


def header_of(weights: Weights, *, note: str = "", pad: int = 8) -> bytes:
    """A header, length field included, that lays the tensors out in the order given."""
    table: dict[str, object] = {"__metadata__": {"note": note}} if note else {}
    end = 0
    for name, (dtype, shape, data) in weights.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % pad)
    return len(text).to_bytes(8, "little") + text


def safetensors(weights: Weights, *, note: str = "", pad: int = 8) -> bytes:
    """A whole safetensors file. pad=1: tensors begin at any byte."""
    return header_of(weights, note=note, pad=pad) + b"".join(data for _, _, data in weights.values())


def write_files(root: Path, files: Files) -> Path:
    """Write a checkpoint directory."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else safetensors(content))
    return root


def perturb(weights: Weights, seed: int, share: float = 0.01) -> Weights:
    """The tensors after a step: a share of the units changed, at least one in each tensor that has any."""
    rng = np.random.default_rng(seed)
    after: Weights = {}
    for name, (dtype, shape, data) in weights.items():
        units = np.frombuffer(data, TensorSpec(2, name, dtype, shape).unit).copy()
        if units.size:
            where = rng.integers(0, units.size, max(1, int(units.size * share)))
            units[where] += rng.integers(1, 4, where.size).astype(units.dtype)
        after[name] = (dtype, shape, units.tobytes())
    return after


def tree(root: Path) -> dict[str, bytes]:
    """Returns every file under `root`, hidden ones too, and links as links."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            found[path.relative_to(root).as_posix()] = b"-> " + bytes(path.readlink())
        elif path.is_file():
            found[path.relative_to(root).as_posix()] = path.read_bytes()
    return found


class Run:
    """Versions published one after the other; keeps every chunk, and reads them for engines (`reader`)."""

    def __init__(self, *, block_units: int = 1 << 16, chunk_bytes: int = 4096) -> None:
        self.chunks: dict[tuple[bytes, int], bytes] = {}
        self.steps: dict[tuple[int | None, int], PathStep] = {}
        self._block_units, self._chunk_bytes = block_units, chunk_bytes
        #: (manifest id, chunk) of each chunk read back through `reader`.
        self.read: list[tuple[bytes, int]] = []

    def reader(self, manifest_id: bytes, chunk: int) -> bytes | None:
        self.read.append((manifest_id, chunk))
        return self.chunks.get((manifest_id, chunk))

    def anchor(self, version: int, checkpoint: Checkpoint | Path) -> PathStep:
        """Publishes a version whole."""
        with _opened(checkpoint) as new:
            rows = [
                TableRow(spec, False, True, digest_bytes(digest_units(spec, new.units(spec)))) for spec in new.specs
            ]
            return self._publish(None, version, rows, {}, {spec: new.units(spec) for spec in new.specs})

    def delta(self, base: int, version: int, old: Checkpoint | Path, new: Checkpoint | Path) -> PathStep:
        """Publishes the delta from one checkpoint to another."""
        with _opened(old) as a, _opened(new) as b:
            before, after = ({spec: c.units(spec) for spec in c.specs} for c in (a, b))
            return self.delta_of(base, version, before, after)

    def delta_of(
        self, base: int, version: int, before: Mapping[TensorSpec, Units], after: Mapping[TensorSpec, Units]
    ) -> PathStep:
        """Publishes the delta from some tensors to others."""
        rows = [TableRow(spec, spec in before, spec in after) for spec in sorted(before.keys() | after.keys())]
        return self._publish(base, version, rows, before, after)

    def data(self, step: PathStep) -> list[bytes]:
        """All chunks of a step."""
        return [self.chunks[step.id, index] for index in range(step.manifest.chunks)]

    def _publish(
        self,
        base: int | None,
        version: int,
        rows: list[TableRow],
        before: Mapping[TensorSpec, Units],
        after: Mapping[TensorSpec, Units],
    ) -> PathStep:
        encoder = ChunkEncoder(rows, block_units=self._block_units, chunk_bytes=self._chunk_bytes)
        made = [c for i, row in enumerate(rows) for c in encoder.add(i, before.get(row.spec), after.get(row.spec))]
        made += encoder.finish()
        manifest = Manifest(
            run=RUN,
            epoch=1,
            version=version,
            base=base,
            digest=digest_of(after),
            base_digest=digest_of(before) if base is not None else bytes(16),
            profile="fast",
            block_units=self._block_units,
            table=pack_table(rows),
            sizes=[len(chunk.data) for chunk in made],
            hashes=b"".join(blake3(chunk.data).digest() for chunk in made),
            first_rows=[chunk.first_row for chunk in made],
            changed=encoder.changed,
            total=encoder.total,
            created=0.0,
        )
        step = PathStep(blake3(f"{base}>{version}".encode() + manifest.digest).digest(), manifest)
        self.chunks |= {(step.id, index): chunk.data for index, chunk in enumerate(made)}
        self.steps[base, version] = step
        return step


def digest_of(tensors: Mapping[TensorSpec, Units]) -> bytes:
    """The digest over some tensors."""
    return digest_bytes(sum(digest_units(spec, units) for spec, units in tensors.items()) % MODULUS)


def position(step: PathStep) -> Position:
    """Returns where a step leads."""
    m = step.manifest
    return Position(run=m.run, epoch=m.epoch, version=m.version, digest=m.digest)


def put_all(run: Run, stage: Stage, path: Sequence[PathStep], *, shuffle: int | None = None) -> int:
    """Puts every wanted chunk: one by one in order, or shuffled over all steps, some at once; returns how many."""
    wanted = [(index, chunk) for index in range(len(path)) for chunk in stage.wanted(index)]
    dice = random.Random(shuffle)
    if shuffle is not None:
        dice.shuffle(wanted)
    left = list(wanted)
    while left:
        size = 1 if shuffle is None else dice.choice([1, 1, 4, 50])
        batch, left = left[:size], left[size:]
        for step in {step for step, _ in batch}:
            stage.put(step, {chunk: run.chunks[path[step].id, chunk] for s, chunk in batch if s == step})
    return len(wanted)


def commit_path(run: Run, engine: Engine, *path: PathStep, shuffle: int | None = None) -> int:
    """Stage, put and commit a path; returns how many chunks were wanted."""
    stage = engine.stage(path)
    count = put_all(run, stage, path, shuffle=shuffle)
    stage.commit()
    return count


def _opened(checkpoint: Checkpoint | Path) -> Checkpoint:
    return Checkpoint.open(checkpoint) if isinstance(checkpoint, Path) else checkpoint
