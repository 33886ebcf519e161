"""Random histories: each path to a later version takes the fewest bytes and gives every bit exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from trainer_parts import KEY, Arrays, StoreWithBuilder, spec

from p2psync.delta.algebra import apply_block
from p2psync.delta.container import decode_chunk
from p2psync.delta.digest import MODULUS, digest_bytes, digest_units
from p2psync.delta.tensors import TensorSpec, Units
from p2psync.membership.records import Announcement
from p2psync.protocol.lineage import VersionKey, is_squash, resolve, target_key
from p2psync.store.pack import Pack
from p2psync.trainer.squash.planner import SquashPlan, SquashPlanner
from p2psync.trainer.squash.squasher import Squasher
from p2psync.trainer.versions.builder import announcement_of

Bits = dict[TensorSpec, Units]


class AlwaysWorthPlanner(SquashPlanner):
    """A planner to which every squash is worth it."""

    def is_worth(self, plan: SquashPlan, nbytes: int) -> bool:
        """True."""
        return True


class RandomTrainer:
    """A trainer that publishes, squashes, writes anchors and restarts at random."""

    def __init__(self, root: Path, seed: int) -> None:
        self.trainer = StoreWithBuilder(root)
        self.random = random.Random(seed)
        self.source = Arrays(a=70_000, b=3000, c=9)
        self.source.rng = np.random.default_rng(seed)
        self.published_bits: list[Bits] = []
        self.publish()

    def step(self) -> None:
        """Carries out one random operation."""
        often = ["train"] * 3 + ["squash"] * 2
        what = self.random.choice([*often, "revert", "come", "go", "anchor", "restart"])
        if what == "anchor":
            self.trainer.builder.make_anchor()
        elif what == "squash":
            self.squash()
        elif what == "restart":
            self.trainer.again()
        else:
            getattr(self, what)()
            self.publish()

    def train(self) -> None:
        """Change a share of all units."""
        share = self.random.choice([0.001, 0.01, 0.3])
        for bits in self.source.bits.values():
            where = self.source.rng.random(bits.size) < share
            bits[where] += self.source.rng.choice(np.array([1, 0xFFFF, 700], np.uint16), int(where.sum()))

    def revert(self) -> None:
        """Set some tensors back to earlier bits."""
        earlier = self.random.choice(self.published_bits)
        for name in self.source.bits.keys() & earlier.keys():
            if self.random.random() < 0.6:
                self.source.bits[name] = earlier[name].copy()

    def come(self) -> None:
        """Add a tensor, perhaps one that was there before."""
        self.source.add(self.random.choice("defg"), self.random.choice([0, 5, 2000]))

    def go(self) -> None:
        """Remove a tensor."""
        names = sorted(self.source.bits)
        if len(names) > 1:
            del self.source.bits[self.random.choice(names)]

    def publish(self) -> None:
        """Publish the source as it is now."""
        if self.trainer.builder.make(self.source, profile=self.random.choice(["fast", "tight"])) is not None:
            self.published_bits.append({name: bits.copy() for name, bits in self.source.bits.items()})

    def squash(self) -> None:
        """Squash any piece of the chain."""
        chain = sorted((a for a in self.lineage() if a.base is not None and not is_squash(a)), key=lambda a: a.version)
        if len(chain) < 2:
            return
        first, last = sorted(self.random.sample(range(len(chain)), 2))
        last = self.random.choice([last, len(chain) - 1])
        piece = tuple(chain[first : last + 1])
        if any((a.base, a.version) == (piece[0].base, piece[-1].version) for a in self.lineage()):
            return
        live = self.trainer.builder.position
        at_head = live is not None and live.version == piece[-1].version and self.random.random() < 0.5
        bits = self.trainer.builder.snapshot.units if at_head else None
        made = Squasher(self.trainer.store, self.trainer.builder.delta_records, KEY, AlwaysWorthPlanner()).make(
            SquashPlan(piece, 0.0), bits
        )
        assert made is not None

    def lineage(self) -> list[Announcement]:
        """Returns the announcements of all packs in the store."""
        return [announcement_of(p.signed, p.manifest) for p in self.trainer.store.packs()]


def fewest(lineage: Sequence[Announcement], start: VersionKey | None, target: VersionKey) -> int | None:
    """Returns the bytes of the best path, computed version by version."""
    cost: dict[VersionKey, int] = {} if start is None else {start: 0}
    for a in sorted(lineage, key=lambda a: (a.version, a.base is not None)):
        before = 0 if a.base is None else cost.get((a.base, a.base_digest))
        if before is not None:
            root = target_key(a)
            cost[root] = min(cost.get(root, before + a.payload_bytes), before + a.payload_bytes)
    return cost.get(target)


def follow(packs: Sequence[Pack], bits: Bits) -> Bits:
    """Apply a path to the bits that it starts from, chunk by chunk as an actor does."""
    for pack in packs:
        m = pack.manifest
        rows = m.rows()
        bits = {} if m.base is None else dict(bits)
        old = {row.spec: bits.get(row.spec, np.zeros(row.spec.count, row.spec.unit)) for row in rows}
        new = {name: units.copy() for name, units in old.items()}
        for index in range(m.chunks):
            data = pack.read(index)
            assert data is not None
            for block in decode_chunk(data, rows, m.block_units, lambda i, rows=rows, old=old: old[rows[i].spec]):  # type: ignore[misc]
                apply_block(new[rows[block.row].spec], block)
        assert not any(new[row.spec].any() for row in rows if not row.after)
        bits = {row.spec: new[row.spec] for row in rows if row.after}
        assert digest_bytes(sum(digest_units(name, units) for name, units in bits.items()) % MODULUS) == m.digest
    return bits


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_resolve_to_fewest_bytes_and_exact_bits(tmp_path: Path, seed: int) -> None:
    history = RandomTrainer(tmp_path, seed)
    for _ in range(26):
        history.step()
    lineage = history.lineage()
    packs = {pack.signed.id.hex(): pack for pack in history.trainer.store.packs()}
    places = {a.version: target_key(a) for a in lineage}
    assert len(places) == len(history.published_bits) > 5
    used: set[str] = set()
    for target in places:
        for start in [None, *range(target)]:
            root = places[start] if start is not None else None
            path = resolve(lineage, root, places[target])
            assert path is not None
            assert sum(a.payload_bytes for a in path) == fewest(lineage, root, places[target])
            reached = follow([packs[a.id] for a in path], history.published_bits[start] if start is not None else {})
            wanted = history.published_bits[target]
            assert reached.keys() == wanted.keys()
            assert all(np.array_equal(reached[name], wanted[name]) for name in wanted)
            used |= {"squash" if is_squash(a) else "anchor" if a.base is None else a.profile for a in path}
    assert {"fast", "tight", "anchor"} <= used
    if any(is_squash(a) for a in lineage):
        assert "squash" in used


def test_squashes_of_the_same_bits_are_empty(tmp_path: Path) -> None:
    trainer = StoreWithBuilder(tmp_path)
    source = Arrays(a=5000)
    first = source.bits[spec("a", 5000)].copy()
    for bits in (first, first + 1, first):
        source.bits[spec("a", 5000)] = bits.copy()
        trainer.builder.make(source, profile="tight")
    chain = tuple(announcement_of(p.signed, p.manifest) for p in trainer.store.packs() if p.manifest.base is not None)
    made = Squasher(trainer.store, trainer.builder.delta_records, KEY, AlwaysWorthPlanner()).make(
        SquashPlan(chain, 0.0)
    )
    assert made is not None and made.pack.manifest.chunks == 0
    announced = announcement_of(made.pack.signed, made.pack.manifest)
    digest = source.digest.hex()
    assert resolve([announced], (0, digest), (2, digest)) == [announced]
