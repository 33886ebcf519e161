"""Versions built by finding changes where the tensors are, and from fp32 masters: the packs of a full scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from trainer_parts import KEY, RUN

from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.tensors import TensorKind, TensorSpec
from p2psync.engines.module.live_tensors import host_units
from p2psync.engines.module.table import module_rows
from p2psync.errors import StoreError, UsageError
from p2psync.store.draft import Draft
from p2psync.store.packs import Store
from p2psync.trainer.publisher import Publisher
from p2psync.trainer.versions.builder import BuiltVersion, LocalVersionBuilder
from p2psync.trainer.versions.device_path import DevicePath
from p2psync.trainer.versions.resident import ResidentSnapshot
from p2psync.trainer.versions.snapshot import PublishedState
from p2psync.trainer.versions.tensors import MasterSource, ModuleSource, TensorSource


class Policy(nn.Module):
    """Two matrices and a norm of bf16, a norm of fp32 and a buffer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.up = nn.Parameter((torch.randn(700, 900, generator=generator) * 0.03).bfloat16())
        self.down = nn.Parameter((torch.randn(900, 30, generator=generator) * 0.03).bfloat16())
        self.norm = nn.Parameter(torch.ones(900, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.ones(900))
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))


def masters_of(policy: Policy) -> dict[str, torch.Tensor]:
    """Masters that round to the parameters."""
    return {name: p.detach().float() for name, p in policy.named_parameters() if p.dtype == torch.bfloat16}


def learn(policy: Policy, masters: Mapping[str, torch.Tensor], seed: int) -> None:
    """Makes a step: moves the masters a little, and changes the other tensors in place."""
    generator = torch.Generator().manual_seed(seed)
    for master in masters.values():
        master.add_(torch.randn(master.shape, generator=generator) * 2e-6)
    with torch.no_grad():
        policy.scale[5] += 0.25
        policy.steps += 1


def others(policy: Policy) -> dict[str, torch.Tensor]:
    """The tensors without masters."""
    return {spec.name: tensor for spec, tensor in module_rows(policy).items() if tensor.dtype != torch.bfloat16}


class StoreWithBuilder:
    """A store and its version builder, with the manifests and chunks of the versions it built."""

    def __init__(self, root: Path, published_state: Callable[[], PublishedState] | None = None) -> None:
        self.root, self.published_state = root, published_state
        self.open()

    def open(self) -> None:
        """Open the store and the builder, as a start does."""
        self.store = Store(self.root / "packs")
        self.builder = LocalVersionBuilder(
            self.store, self.root / "snapshot", KEY, RUN, 1, published_state=self.published_state
        )

    def make(self, source: TensorSource) -> tuple[bytes, list[bytes]] | None:
        """Returns the digest and the chunks of the next version."""
        made = self.builder.make(source)
        return None if made is None else content(made)

    def close(self) -> None:
        """Close both, as a stop does."""
        self.builder.snapshot.close()
        self.store.close()


def content(made: BuiltVersion) -> tuple[bytes, list[bytes]]:
    chunks = [made.pack.read(index) for index in range(made.pack.manifest.chunks)]
    return made.position.digest, [chunk for chunk in chunks if chunk is not None]


@pytest.mark.parametrize("twin", [False, True])
def test_device_path_builds_the_versions_of_a_full_scan(tmp_path: Path, twin: bool) -> None:
    path = DevicePath(twin=twin, everywhere=True)
    policy = Policy()
    plain, ours = StoreWithBuilder(tmp_path / "plain"), StoreWithBuilder(tmp_path / "ours")
    for number in range(5):
        if number != 3:
            with torch.no_grad():
                policy.up[number::97] += 0.01
                policy.scale[number] = -0.0
                policy.steps += 1
        made = ours.make(ModuleSource(policy, path=path))
        path.published(ours.builder.position)
        assert made == plain.make(ModuleSource(policy))
        assert (made is None) == (number == 3)
    assert bool(path._twin) == twin
    for spec, bits in path._twin.items():
        assert host_units(bits).tobytes() == ours.builder.snapshot.units(spec).tobytes()
    ours.close()
    plain.close()


def test_device_path_rebuilds_a_twin_that_missed_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DevicePath(twin=True, everywhere=True)
    policy, ours = Policy(), StoreWithBuilder(tmp_path)
    ours.make(ModuleSource(policy, path=path))
    for number in range(5):
        with torch.no_grad():
            policy.up[number::50] -= 0.01
        if number == 1:
            # The twin has followed, but the version is never made.
            with monkeypatch.context() as broken, pytest.raises(StoreError, match="full"):
                broken.setattr(Draft, "seal", full)
                ours.make(ModuleSource(policy, path=path))
        elif number == 3:
            ours.make(ModuleSource(policy))
        else:
            assert ours.make(ModuleSource(policy, path=path)) is not None
            path.published(ours.builder.position)
        if number != 1:
            check(ours, ModuleSource(policy))
    ours.close()


def full(*args: object) -> None:
    raise StoreError("the disk is full")


def check(builder: StoreWithBuilder, source: TensorSource) -> None:
    """Check that the snapshot holds the source's bits, at the position of the newest version."""
    position = builder.builder.position
    assert position is not None
    assert list(builder.builder.snapshot.specs) == list(source.specs)
    for spec in source.specs:
        np.testing.assert_array_equal(builder.builder.snapshot.units(spec), source.units(spec))
    total = sum(digest_units(spec, source.units(spec)) for spec in source.specs)
    assert digest_bytes(total % MODULUS) == position.digest


@pytest.mark.parametrize("everywhere", [False, True])
def test_master_source_builds_the_versions_of_a_refreshed_module(tmp_path: Path, everywhere: bool) -> None:
    policy = Policy()
    masters = masters_of(policy)
    path = DevicePath(everywhere=everywhere)
    plain, ours = StoreWithBuilder(tmp_path / "plain"), StoreWithBuilder(tmp_path / "ours")
    for number in range(4):
        learn(policy, masters, number)
        source = MasterSource(masters, others(policy), path=path)
        before = {name: bits.clone() for name, bits in policy.state_dict().items()}
        made = ours.make(source)
        assert all(torch.equal(bits, before[name]) for name, bits in policy.state_dict().items()), "only read"
        refresh(policy, masters)
        assert made is not None and made == plain.make(ModuleSource(policy))
        check(ours, ModuleSource(policy))
    ours.close()
    plain.close()


def refresh(policy: Policy, masters: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, master in masters.items():
            policy.get_parameter(name).copy_(master)


def resident(policy: Policy) -> Callable[[], PublishedState]:
    names = masters_of(policy)
    return lambda: ResidentSnapshot({name: policy.get_parameter(name) for name in names}, others(policy))


@pytest.mark.parametrize("everywhere", [False, True])
def test_resident_snapshot_keeps_published_bits_in_the_parameters_and_publishing_refreshes_them(
    tmp_path: Path, everywhere: bool
) -> None:
    policy, mirror = Policy(), Policy()
    masters = masters_of(policy)
    path = DevicePath(twin=True, everywhere=everywhere)
    plain, ours = StoreWithBuilder(tmp_path / "plain"), StoreWithBuilder(tmp_path / "ours", resident(policy))
    for number in range(4):
        learn(policy, masters, number)
        made = ours.make(MasterSource(masters, others(policy), path=path))
        path.published(ours.builder.position)
        mirror.load_state_dict(policy.state_dict())
        refresh(mirror, masters)
        assert made is not None and made == plain.make(ModuleSource(mirror))
        assert all(torch.equal(bits, policy.state_dict()[name]) for name, bits in mirror.state_dict().items())
        assert ours.make(MasterSource(masters, others(policy), path=path)) is None
        path.published(ours.builder.position)
        check(ours, ModuleSource(policy))
    assert not (tmp_path / "ours" / "snapshot").exists(), "no copy is kept on disk"
    assert all(spec.name not in masters for spec in path._twin), "nor on the device"
    ours.close()
    plain.close()


def test_resident_snapshot_rebuilds_parameters_that_other_code_refreshed(tmp_path: Path) -> None:
    policy = Policy()
    masters = masters_of(policy)
    ours = StoreWithBuilder(tmp_path, resident(policy))
    ours.make(MasterSource(masters, others(policy)))
    for number in range(3):
        learn(policy, masters, number)
        if number == 1:
            refresh(policy, masters)  # the very mistake: now nothing seems to have changed
        made = ours.make(MasterSource(masters, others(policy)))
        assert made is not None
        assert ours.builder.position is not None and ours.builder.position.version == number + 1
        check(ours, ModuleSource(policy))
    ours.close()


def test_resident_snapshot_is_rebuilt_from_the_store_after_a_crash(tmp_path: Path) -> None:
    policy = Policy()
    masters = masters_of(policy)
    ours = StoreWithBuilder(tmp_path, resident(policy))
    for number in range(3):
        learn(policy, masters, number)
        ours.make(MasterSource(masters, others(policy)))
    published = {name: bits.clone() for name, bits in policy.state_dict().items()}
    ours.close()
    # Another process, which has an earlier checkpoint of the training.
    policy = Policy()
    masters = masters_of(policy)
    ours = StoreWithBuilder(tmp_path, resident(policy))
    assert ours.builder.position is not None and ours.builder.position.version == 2
    for name in masters:
        assert torch.equal(policy.state_dict()[name], published[name])
    learn(policy, masters, 9)
    assert ours.make(MasterSource(masters, others(policy))) is not None
    refreshed = {name: master.bfloat16() for name, master in masters.items()}
    assert all(torch.equal(policy.state_dict()[name], bits) for name, bits in refreshed.items())
    check(ours, ModuleSource(policy))
    ours.close()


def test_resident_snapshot_keeps_the_parameters_when_a_version_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy()
    masters = masters_of(policy)
    ours = StoreWithBuilder(tmp_path, resident(policy))
    ours.make(MasterSource(masters, others(policy)))
    before = {name: bits.clone() for name, bits in policy.state_dict().items()}
    learn(policy, masters, 1)
    with monkeypatch.context() as broken, pytest.raises(StoreError, match="full"):
        broken.setattr(Draft, "seal", full)
        ours.make(MasterSource(masters, others(policy)))
    assert all(torch.equal(policy.state_dict()[name], before[name]) for name in masters)
    assert ours.make(MasterSource(masters, others(policy))) is not None
    check(ours, ModuleSource(policy))
    ours.close()


def test_master_source_refuses_tensors_that_cannot_be_masters() -> None:
    policy = Policy()
    good = masters_of(policy)
    with pytest.raises(UsageError, match="fp32"):
        MasterSource({"up": good["up"].double()})
    with pytest.raises(UsageError, match="both"):
        MasterSource(good, {"up": policy.up})
    with pytest.raises(UsageError, match="bf16"):
        ResidentSnapshot({"scale": policy.scale}, {})
    for wrong in ({"scale": policy.scale}, {"nowhere": good["up"]}, {"up": good["down"]}):
        with pytest.raises(UsageError, match="no bf16 parameter"):
            Publisher(policy, None, masters=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no masters"):
        Publisher(policy, None, resident=True)  # type: ignore[arg-type]


def test_device_path_reads_strided_and_empty_tensors_on_the_host(tmp_path: Path) -> None:
    tensors = {
        TensorSpec(int(TensorKind.TENSOR), "a", "BF16", (30, 20)): torch.randn(20, 30).t(),
        TensorSpec(int(TensorKind.TENSOR), "b", "BF16", (0, 4)): torch.zeros(0, 4),
        TensorSpec(int(TensorKind.TENSOR), "c", "F32", (70, 3)): torch.randn(3, 70).t(),
    }
    ours = StoreWithBuilder(tmp_path)
    path = DevicePath(everywhere=True)
    for _ in range(3):
        for tensor in tensors.values():
            tensor.mul_(1.5)
        source = TensorSource(tensors, path=path)
        assert ours.make(source) is not None
        check(ours, source)
    ours.close()
