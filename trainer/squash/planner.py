"""Plans squashes: which members are behind, and whether one delta to the head would save them bytes. Pure.

The bytes of a squash are predicted from its chain. Each of k deltas changes n_i of N units; the same
units change again and again, so that their union is U = (n_1 + … + n_k) · k^−γ, with γ = 0.24 until squashes that were
made tell better (GRPO: the union of 14 steps is 0.53 of their sum). More changes stand closer together, so each of them
takes fewer bits: b + h(U/N) − h(n/N), h(d) being the entropy of "changed or not" for each changed unit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from p2psync.membership.records import Announcement, Member
from p2psync.protocol.lineage import VersionKey, is_squash, missing_bytes, newest_announcement, resolve, target_key
from p2psync.protocol.manifest import Manifest

#: A squash is made if it saves one member this share of the bytes of its path, and so many bytes.
MIN_SAVED_SHARE = 0.2
MIN_SAVED_BYTES = 64 << 10
#: Deltas that it must replace, at least: a member that is only two behind is about to commit.
MIN_REPLACED_DELTAS = 3
#: The next squash from the same version spans so many times as many deltas: members that fetch the earlier one keep it.
GROWTH = 1.5
#: Squashes announced at a time, and starting points that are considered for one more.
MAX_SQUASHES = 8
MAX_STARTS = 8
_RECURRENCE = 0.24
_MIN_BITS = 2.0
_NEW = 0.5


@dataclass(frozen=True, slots=True)
class SquashPlan:
    """A squash to be made: one delta for a chain that ends at the head. expected_bytes: of its chunks."""

    chain: tuple[Announcement, ...]
    expected_bytes: float

    @property
    def chain_bytes(self) -> int:
        """The payload bytes of the chain."""
        return missing_bytes(self.chain, {})


class SquashPlanner:
    """Plans the squashes of one trainer, and learns from those that were made."""

    def __init__(self, min_saved_bytes: int = MIN_SAVED_BYTES) -> None:
        self._min_saved_bytes = min_saved_bytes
        self._recurrence = _RECURRENCE

    def plan(
        self,
        lineage: Sequence[Announcement],
        members: Iterable[Member],
        manifest_of: Callable[[str], Manifest],
        bits_ratio: Callable[[str], float] = lambda profile: 1.0,
    ) -> SquashPlan | None:
        """Returns the squash that saves all members together the most bytes; None if none is worth it.

        manifest_of: returns a manifest by its id (hex). bits_ratio: returns the bits for each change in the profile of
        squashes, relative to those in the given profile. members: count at the version that they report; those without
        one will fetch the newest anchor.
        """
        newest = newest_announcement(lineage)
        if newest is None or sum(is_squash(a) for a in lineage) >= MAX_SQUASHES:
            return None
        target = target_key(newest)
        starts = Counter((m.version, m.digest) if m.version is not None else None for m in members)
        paths = {start: resolve(lineage, start, target) for start in starts}
        chain = _chain_to(lineage, target)
        best: tuple[float, SquashPlan] | None = None
        for base in _bases(paths, starts):
            longest = max((a.version - base[0] for a in lineage if is_squash(a) and a.base == base[0]), default=0)
            if base not in chain or len(chain[base]) < max(MIN_REPLACED_DELTAS, GROWTH * longest):
                continue
            plan = SquashPlan(chain[base], self.predict([manifest_of(a.id) for a in chain[base]], bits_ratio))
            saved = self._saved_bytes(lineage, starts, paths, target, plan)
            if saved > 0 and (best is None or saved > best[0]):
                best = saved, plan
        return best[1] if best is not None else None

    def predict(self, chain: Sequence[Manifest], bits_ratio: Callable[[str], float] = lambda profile: 1.0) -> float:
        """Returns the expected payload bytes of the squash of a chain. bits_ratio: see `plan`."""
        total, last = max(1, chain[-1].total), chain[-1]
        summed = sum(m.changed for m in chain)
        union = min(float(total), summed * math.exp(-self._recurrence * math.log(len(chain))))
        bits = 8 * sum(bits_ratio(m.profile) * m.payload_bytes for m in chain) / max(1, summed)
        mean = summed / len(chain) / total
        bits += _position_bits(union / total) - _position_bits(mean)
        return union * max(_MIN_BITS, bits) / 8 + 64.0 * len(last.sizes) / len(chain)

    def made(self, steps: int, summed: int, union: int) -> None:
        """Take in that a squash of `steps` deltas changes `union` units, and its deltas `summed` in all."""
        if steps > 1 and 0 < union <= summed:
            seen = math.log(summed / union) / math.log(steps)
            self._recurrence = (1 - _NEW) * self._recurrence + _NEW * min(1.0, seen)

    def is_worth(self, plan: SquashPlan, nbytes: int) -> bool:
        """Returns whether a squash that was made and takes `nbytes` is to be announced."""
        saved = plan.chain_bytes - nbytes
        return saved >= max(self._min_saved_bytes, MIN_SAVED_SHARE * plan.chain_bytes)

    def _saved_bytes(
        self,
        lineage: Sequence[Announcement],
        starts: Counter[VersionKey | None],
        paths: dict[VersionKey | None, list[Announcement] | None],
        target: VersionKey,
        plan: SquashPlan,
    ) -> float:
        """Returns the bytes that all members together would save; 0 unless it is worth it for one of them at least."""
        first, last = plan.chain[0], plan.chain[-1]
        edge = Announcement(
            id="",
            version=last.version,
            base=first.base,
            epoch=last.epoch,
            digest=last.digest,
            base_digest=first.base_digest,
            payload_bytes=math.ceil(plan.expected_bytes),
            manifest_bytes=0,
        )
        total, is_worth = 0.0, False
        for start, count in starts.items():
            path = paths[start]
            with_it = resolve([*lineage, edge], start, target)
            if path is None or with_it is None:
                continue
            now = missing_bytes(path, {})
            saved = now - missing_bytes(with_it, {})
            total += count * saved
            is_worth = is_worth or saved >= max(self._min_saved_bytes, MIN_SAVED_SHARE * now)
        return total if is_worth else 0.0


def _chain_to(lineage: Sequence[Announcement], target: VersionKey) -> dict[VersionKey, tuple[Announcement, ...]]:
    """Returns, for each version that leads to the target by published deltas, these deltas in order."""
    leading = {target_key(a): a for a in lineage if a.base is not None and not is_squash(a)}
    chains: dict[VersionKey, tuple[Announcement, ...]] = {}
    place = target
    chain: tuple[Announcement, ...] = ()
    while (delta := leading.get(place)) is not None and delta.base is not None:
        place, chain = (delta.base, delta.base_digest), (delta, *chain)
        chains[place] = chain
    return chains


def _bases(
    paths: dict[VersionKey | None, list[Announcement] | None], starts: Counter[VersionKey | None]
) -> list[VersionKey]:
    """Returns the versions where squashes may begin: those of members, and the anchors that joiners will fetch.

    Versions of more members come first.
    """
    found: Counter[VersionKey] = Counter()
    for start, count in starts.items():
        path = paths[start]
        if path and path[0].base is None:
            found[target_key(path[0])] += count
        elif start is not None:
            found[start] += count
    return [place for place, _ in sorted(found.items(), key=lambda item: (-item[1], item[0]))][:MAX_STARTS]


def _position_bits(density: float) -> float:
    """Returns the bits that the position of each changed unit takes, if they are spread evenly."""
    if not 0 < density < 1:
        return 0.0
    return -math.log2(density) - (1 - density) / density * math.log2(1 - density)
