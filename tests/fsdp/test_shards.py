"""Shards have the names of the inner module, whatever wraps it; modules not sharded by FSDP2 are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard

from p2psync.engines.module.table import module_specs
from p2psync.errors import ModuleError, UsageError
from p2psync.trainer.fsdp.shards import Shards, publishing_group


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Layers(nn.Module):
    """Two layers and a tie."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = (nn.Linear(4, 4) for _ in range(3))
        self.head.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(x)))


def wrapped() -> nn.Module:
    """Wrapped inside of the shards and outside."""
    module = Layers()
    module.two = checkpoint_wrapper(torch.compile(module.two, backend="eager"))
    fully_shard(module.two)
    return torch.compile(fully_shard(module), backend="eager")  # type: ignore[return-value]


def test_shards_have_the_inner_modules_names_before_and_after_a_forward_pass() -> None:
    module, expected = wrapped(), module_specs(Layers())
    group = publishing_group(module)
    assert list(Shards(module, group, None, {}).specs) == expected
    module._orig_mod(torch.ones(1, 4))  # leaves the parameters of the outermost gathered
    shards = Shards(module, group, None, {})
    assert list(shards.specs) == expected
    assert [shards.units(spec).size for spec in expected] == [spec.count for spec in expected]


def test_names_are_mapped() -> None:
    module = wrapped()
    shards = Shards(module, publishing_group(module), None, {}, lambda key: f"model.{key}")
    assert [spec.name for spec in shards.specs] == [f"model.{spec.name}" for spec in module_specs(Layers())]


def test_a_module_that_is_not_sharded_by_fsdp2_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameter is sharded"):
        publishing_group(Layers())
    zero = Layers()
    for parameter in zero.parameters():
        parameter.ds_id, parameter.data = 0, torch.empty(0)  # type: ignore[attr-defined]
    with pytest.raises(ModuleError, match="DeepSpeed ZeRO-3 keeps a placeholder here"):
        publishing_group(zero)
