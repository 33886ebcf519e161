"""Sources of a few tensors, announcements, and a store with versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.tensors import TensorKind, TensorSpec, Units
from p2psync.membership.records import Announcement, Member, NodeInfo
from p2psync.store.packs import Store
from p2psync.trainer.versions.builder import LocalVersionBuilder

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
RUN = "0" * 11 + "1" + "a" * 20


class Arrays:
    """Tensors in memory, as a source."""

    def __init__(self, **shapes: int) -> None:
        self.rng = np.random.default_rng(1)
        self.bits: dict[TensorSpec, Units] = {}
        for name, count in shapes.items():
            self.add(name, count)

    def add(self, name: str, count: int) -> None:
        """Add a tensor of bf16."""
        self.bits[spec(name, count)] = self.rng.integers(0, 1 << 16, count, np.uint16)

    def step(self) -> Arrays:
        """Change about 1 % of the bits, and one at least."""
        for bits in self.bits.values():
            bits[self.rng.random(bits.size) < 0.01] += 1
            bits[:1] += 1
        return self

    @property
    def specs(self) -> Sequence[TensorSpec]:
        """See `Source`."""
        return sorted(self.bits)

    def units(self, wanted: TensorSpec) -> Units:
        """See `Source`."""
        return self.bits[wanted]

    @property
    def digest(self) -> bytes:
        """The digest of all bits."""
        return digest_bytes(sum(digest_units(name, bits) for name, bits in self.bits.items()) % MODULUS)


def spec(name: str, count: int) -> TensorSpec:
    """Returns the spec of a flat bf16 tensor."""
    return TensorSpec(int(TensorKind.TENSOR), name, "BF16", (count,))


class StoreWithBuilder:
    """A store and its version builder, which can be closed and opened again as after a crash."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Lines about damage that the builder told.
        self.told: list[str] = []
        self.open()

    def open(self) -> None:
        """Open store and snapshot."""
        self.store = Store(self.root / "packs")
        try:
            root = self.root / "snapshot"
            self.builder = LocalVersionBuilder(self.store, root, KEY, RUN, 1, on_trouble=self.told.append)
        except BaseException:
            self.store.close()
            raise

    def again(self) -> None:
        """Close and open them, as a restart does."""
        self.builder.snapshot.close()
        self.store.close()
        self.open()

    def holds(self, source: Arrays, version: int) -> None:
        """Check that the snapshot is `source`, as `version`."""
        position = self.builder.position
        assert position is not None
        assert (position.version, position.digest) == (version, source.digest)
        assert list(self.builder.snapshot.specs) == list(source.specs)
        for name, bits in source.bits.items():
            np.testing.assert_array_equal(self.builder.snapshot.units(name), bits)


def announcement(
    version: int, base: int | None = None, size: int = 10, *, epoch: int = 1, fork: str = "", base_fork: str = ""
) -> Announcement:
    """Returns an announcement. fork: tells versions of one number apart."""
    return Announcement(
        id=f"{version}/{base}/{epoch}/{fork}".encode().hex().ljust(64, "0"),
        version=version,
        base=base,
        epoch=epoch,
        digest=f"{version}{fork}",
        base_digest="" if base is None else f"{base}{base_fork}",
        payload_bytes=size,
        manifest_bytes=1,
    )


def member(version: int | None) -> Member:
    """Returns an actor at a version."""
    return Member(info=NodeInfo(node="a", role="actor"), version=version, digest=str(version))
