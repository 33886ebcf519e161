"""Small bf16 checkpoints in the Hugging Face layout, and steps of training that change about 1 % of their bits."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np

MARKER = "COMPLETE"


class Model:
    """Tensors over a few shards, and the files beside them. All of it follows from the seed."""

    def __init__(self, seed: int = 0, shards: int = 3, rows: int = 256, columns: int = 256) -> None:
        self.rng = np.random.default_rng(seed)
        self.shards: dict[str, dict[str, np.ndarray]] = {}
        for shard in range(shards):
            name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            self.shards[name] = {
                f"layers.{shard}.weight": self.tensor(rows, columns),
                f"layers.{shard}.norm": self.tensor(1, columns)[0],
            }
        self.files: dict[str, bytes] = {
            "config.json": b'{"hidden_size": 256}\n',
            "tokenizer/tokenizer.json": json.dumps({str(i): i for i in range(300)}).encode(),
            "empty.txt": b"",
        }

    def tensor(self, rows: int, columns: int) -> np.ndarray:
        """Bits of bf16 numbers as weights have them."""
        floats = self.rng.normal(0, 0.02, (rows, columns)).astype(np.float32)
        return (floats.view(np.uint32) >> 16).astype(np.uint16)

    def step(self, share: float = 0.01) -> Model:
        """Change about `share` of the elements by one unit in the last place."""
        for tensors in self.shards.values():
            for bits in tensors.values():
                flat = bits.reshape(-1)
                where = self.rng.random(flat.size) < share
                flat[where] += self.rng.choice(np.array([1, 0xFFFF], np.uint16), int(where.sum()))
        return self

    def contents(self) -> dict[str, bytes]:
        """Every file of the checkpoint."""
        found = dict(self.files)
        for name, tensors in self.shards.items():
            found[name] = serialize(tensors)
        weight_map = {key: name for name, tensors in self.shards.items() for key in tensors}
        found["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
        return found

    def write(self, place: Path) -> dict[str, str]:
        """Write the checkpoint to `place`, which appears by a rename; returns the sha256 of each file."""
        contents = self.contents()
        temporary = place.with_name(f".{place.name}.writing")
        write_files(temporary, contents)
        temporary.replace(place)
        return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def serialize(tensors: dict[str, np.ndarray]) -> bytes:
    """A safetensors file of bf16 tensors."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        table[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [end, end + bits.nbytes]}
        end += bits.nbytes
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + b"".join(bits.tobytes() for bits in tensors.values())


def write_files(place: Path, contents: dict[str, bytes]) -> None:
    """Write files under a directory."""
    for name, data in contents.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)


def sums(place: Path) -> dict[str, str]:
    """The sha256 of every file under a directory, by path within it; {} if there is none."""
    place = place.resolve()
    files = [path for path in sorted(place.rglob("*")) if path.is_file()]
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def copy_of(place: Path, target: Path) -> Path:
    """A copy of a checkpoint."""
    shutil.copytree(place, target)
    return target
