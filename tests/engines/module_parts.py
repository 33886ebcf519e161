"""Small torch modules of all dtypes, and versions of them."""

from __future__ import annotations

import numpy as np
import torch
from engine_parts import Run

from p2psync.delta.digest import digest_bytes, digest_units
from p2psync.delta.tensors import TableRow, TensorKind, TensorSpec, Units
from p2psync.engines.base import PathStep
from p2psync.engines.module.engine import canonical_header, host_units, module_rows

DTYPES = [
    torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8,
    torch.uint8, torch.bool, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64,
    torch.complex64,
]  # fmt: skip


class Policy(torch.nn.Module):
    """Tied embeddings, a buffer, a scalar, an empty tensor, a strided one, and one tensor of every dtype."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        table = torch.randn(300, 32, generator=generator).bfloat16()
        self.embed = torch.nn.Embedding.from_pretrained(table, freeze=False)
        self.head = torch.nn.Linear(32, 300, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.big = torch.nn.Parameter(torch.randn(70, 1000, generator=generator).bfloat16())
        self.scalar = torch.nn.Parameter(torch.tensor(float(seed)))
        self.register_buffer("none", torch.zeros(0, 4))
        strided = torch.randn(300, 257, generator=generator).bfloat16().t()[1:, ::2]
        self.strided = torch.nn.Parameter(strided)
        for dtype in DTYPES:
            bits = torch.randint(0, 2 if dtype == torch.bool else 256, (33, 8), generator=generator, dtype=torch.uint8)
            self.register_buffer("all_" + str(dtype).removeprefix("torch."), bits.view(dtype))


Version = dict[TensorSpec, Units]


def version_of(module: torch.nn.Module, **files: bytes) -> Version:
    """Returns the version that a publisher of the module makes: copies of its bits, the header, further files."""
    rows = module_rows(module)
    found: Version = {spec: host_units(tensor).copy() for spec, tensor in rows.items()}
    blobs = {(TensorKind.HEADER, "model.safetensors"): canonical_header(rows)} | {
        (TensorKind.FILE, name): data for name, data in files.items()
    }
    for (kind, name), data in blobs.items():
        found[TensorSpec(int(kind), name, "U8", (len(data),))] = np.frombuffer(data, np.uint8)
    return dict(sorted(found.items()))


def stepped(version: Version, seed: int, share: float = 0.01) -> Version:
    """The version after a step: a share of all weights' bits changed."""
    rng = np.random.default_rng(seed)
    after: Version = {}
    for spec, units in version.items():
        after[spec] = units.copy()
        if spec.kind == TensorKind.TENSOR and units.size:
            where = rng.integers(0, units.size, max(1, int(units.size * share)))
            if spec.dtype == "BOOL":
                after[spec][where] ^= 1
            else:
                after[spec][where] = rng.integers(0, 1 << 8 * spec.width, where.size, np.uint64).astype(spec.unit)
    return after


def anchor(run: Run, number: int, version: Version) -> PathStep:
    """Publish a version whole."""
    rows = [TableRow(spec, False, True, digest_bytes(digest_units(spec, units))) for spec, units in version.items()]
    return run._publish(None, number, rows, {}, version)


def bits(module: torch.nn.Module) -> dict[str, bytes]:
    """Every tensor of a module's state_dict, also doubled ones."""
    return {name: host_units(tensor).tobytes() for name, tensor in module.state_dict().items()}


def weights(version: Version) -> dict[str, bytes]:
    """The TENSOR rows of a version."""
    return {spec.name: units.tobytes() for spec, units in version.items() if spec.kind == TensorKind.TENSOR}
