"""A model as inference engines hold it: fused, sharded, padded and tied, with a loader that slices; and its engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch
from module_parts import Version, version_of

from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.engines.vllm.commit_handoff import CommitHandoff
from p2psync.engines.vllm.engine import LiveEngine
from p2psync.engines.vllm.live_map import LiveMap
from p2psync.engines.vllm.loader_probe import learn_live_map
from p2psync.engines.vllm.rank_writer import RankWriter
from p2psync.engines.vllm.ranks import EngineRanks
from p2psync.errors import EngineError

HEADS, KV, DIM, HIDDEN, INNER, VOCAB, PADDED = 4, 2, 8, 32, 48, 50, 64
Weights = Iterable[tuple[str, torch.Tensor]]


class Checkpointed(torch.nn.Module):
    """The model that is trained and published."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=generator).bfloat16())

        self.embed = weight(VOCAB, HIDDEN)
        self.q, self.k, self.v = weight(HEADS * DIM, HIDDEN), weight(KV * DIM, HIDDEN), weight(KV * DIM, HIDDEN)
        self.q_bias = weight(HEADS * DIM)
        self.o = weight(HIDDEN, HEADS * DIM)
        self.gate, self.up, self.down = weight(INNER, HIDDEN), weight(INNER, HIDDEN), weight(HIDDEN, INNER)
        self.norm = weight(HIDDEN)
        self.scale = torch.nn.Parameter(torch.randn(3, generator=generator))
        self.head = weight(VOCAB, HIDDEN)


class Fused(torch.nn.Module):
    """One rank's part of it. `head` is tied to `embed` here, and left out by the loader."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        super().__init__()
        self.rank, self.size = rank, size
        heads, self.rep = HEADS // size, max(1, size // KV)
        kv = max(1, KV // size)

        def new_parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.zeros(*shape).bfloat16(), requires_grad=False)

        self.embed = new_parameter(PADDED // size, HIDDEN)
        self.qkv = new_parameter((heads + 2 * kv) * DIM, HIDDEN)
        self.q_bias = new_parameter(heads * DIM)
        self.o = new_parameter(HIDDEN, heads * DIM)
        self.gate_up = new_parameter(2 * INNER // size, HIDDEN)
        self.down = new_parameter(HIDDEN, INNER // size)
        self.norm = new_parameter(HIDDEN)
        self.scale = torch.nn.Parameter(torch.zeros(3), requires_grad=False)
        self.register_buffer("table", torch.arange(7.0))
        self.q_rows, self.kv_rows, self.inner = heads * DIM, kv * DIM, INNER // size

    def load_weights(self, weights: Weights) -> set[str]:
        return {self.load_one(name, tensor) for name, tensor in weights} - {""}

    def load_one(self, name: str, tensor: torch.Tensor) -> str:
        """Load a tensor as vLLM's loaders do; the name of the parameter it went to."""
        rank, q, kv, inner = self.rank, self.q_rows, self.kv_rows, self.inner
        if name == "head":
            return ""
        if name == "embed":
            rows = tensor[rank * PADDED // self.size : (rank + 1) * PADDED // self.size]
            self.embed[: len(rows)].copy_(rows)
            self.embed[len(rows) :].fill_(0)
        elif name in "qkv":
            at, rows, shard = {"q": (0, q, rank), "k": (q, kv, rank // self.rep), "v": (q + kv, kv, rank // self.rep)}[
                name
            ]
            self.qkv.narrow(0, at, rows).copy_(tensor.narrow(0, shard * rows, rows))
            return "qkv"
        elif name in ("gate", "up"):
            self.gate_up.narrow(0, inner * (name == "up"), inner).copy_(tensor.narrow(0, rank * inner, inner))
            return "gate_up"
        elif name in ("o", "down"):
            columns = getattr(self, name).shape[1]
            getattr(self, name).copy_(tensor.narrow(1, rank * columns, columns))
        elif name == "q_bias":
            self.q_bias.copy_(tensor.narrow(0, rank * q, q))
        else:
            getattr(self, name).copy_(tensor)
        return name


def parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def specs_of(version: Version) -> list[TensorSpec]:
    return [spec for spec in version if spec.kind == TensorKind.TENSOR]


def load(model: Fused, trained: torch.nn.Module) -> None:
    with torch.no_grad():
        model.load_weights((name, tensor.detach()) for name, tensor in trained.state_dict().items())


def learned(model: Fused, version: Version, group_units: int = 1 << 25) -> LiveMap:
    return learn_live_map(
        model.load_weights, parameters(model), specs_of(version), version.__getitem__, group_units=group_units
    )


class Served:
    """A fused model and its engine, with a thread that runs commits, as vLLM does in its pause."""

    def __init__(self, trained: Checkpointed | None = None) -> None:
        self.trained = trained or Checkpointed()
        self.version = version_of(self.trained)
        self.model = Fused()
        load(self.model, self.trained)
        self.refused: list[str] = []
        self.pauses = 0
        ranks = EngineRanks(0, 1)
        ranks.writer = RankWriter(learned(self.model, self.version), list(parameters(self.model).values()))
        self.writer = ranks.writer
        self.handoff = CommitHandoff()
        mirror = {spec: self.version[spec].copy() for spec in specs_of(self.version)}
        files = {s.name: u.tobytes() for s, u in self.version.items() if s.kind != TensorKind.TENSOR}
        self.engine = LiveEngine(ranks, mirror, files, self.handoff, self.refused.append)
        self._stopped = False
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped = True
        self.engine.close()
        self._thread.join()

    def holds(self, version: Version) -> bool:
        """Returns whether the live model equals a fresh load of the version."""
        fresh = Fused()
        with torch.no_grad():
            fresh.load_weights(tensors(version))
        live, wanted = parameters(self.model), parameters(fresh)
        return all(same_bits(live[name], wanted[name]) for name in wanted)

    def _take(self) -> None:
        while not self._stopped:
            if self.handoff.wait(0.5):
                self.pauses += 1
                with suppress(EngineError):
                    self.handoff.take()


def tensors(version: Version) -> list[tuple[str, torch.Tensor]]:
    """A version's weights as tensors."""
    from p2psync.engines.vllm.loader_probe import units_to_tensor

    return [(spec.name, units_to_tensor(spec, version[spec].copy())) for spec in specs_of(version)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.contiguous().view(torch.uint8).equal(b.contiguous().view(torch.uint8))


def failing(function: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that runs the given one and then fails."""

    def fail() -> None:
        function()
        raise RuntimeError("the device fell off")

    return fail
