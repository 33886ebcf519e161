"""When to squash: which members are behind, and whether one delta to the head would spare them bytes. Pure.

What a squash will weigh is predicted from what is known of its chain. Each of k deltas changes n_i of N units; the same
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
from p2psync.protocol.lineage import Place, head, is_squash, missing_bytes, place_after, resolve
from p2psync.protocol.manifest import Manifest

#: A squash is made if it spares one member this share of the bytes of its way, and so many of them.
LEAST_SHARE = 0.2
LEAST_BYTES = 64 << 10
#: Deltas that it must take the place of: who is only two behind is about to commit.
LEAST_STEPS = 3
#: So much longer than the longest squash from the same version the next one is: those who fetch that one keep it.
GROWTH = 1.5
#: Squashes that stand at a time, and starting points that are looked at for one more.
MAX_SQUASHES = 8
MAX_STARTS = 8
_RECURRENCE = 0.24
_LEAST_BITS = 2.0
_NEW = 0.5


@dataclass(frozen=True, slots=True)
class SquashPlan:
    """Make one delta of a chain, which ends at the head. expected_bytes: of its chunks."""

    chain: tuple[Announcement, ...]
    expected_bytes: float

    @property
    def chain_bytes(self) -> int:
        """Payload bytes of the chain."""
        return missing_bytes(self.chain, {})


class SquashPlanner:
    """Decides for one trainer; told how squashes turned out."""

    def __init__(self, least_bytes: int = LEAST_BYTES) -> None:
        self._least_bytes = least_bytes
        self._recurrence = _RECURRENCE

    def plan(
        self,
        lineage: Sequence[Announcement],
        members: Iterable[Member],
        manifest_of: Callable[[str], Manifest],
        bits_ratio: Callable[[str], float] = lambda profile: 1.0,
    ) -> SquashPlan | None:
        """The squash that spares all members together the most, None if none is worth it.

        manifest_of: a manifest by its id (hex). bits_ratio: bits for each change in the profile of squashes, relative
        to those in the profile named. Members count where they say they are; those with nothing will come from the
        newest anchor.
        """
        newest = head(lineage)
        if newest is None or sum(is_squash(a) for a in lineage) >= MAX_SQUASHES:
            return None
        target = place_after(newest)
        starts = Counter((m.version, m.digest) if m.version is not None else None for m in members)
        paths = {start: resolve(lineage, start, target) for start in starts}
        chain = _chain_to(lineage, target)
        best: tuple[float, SquashPlan] | None = None
        for base in _bases(paths, starts):
            longest = max((a.version - base[0] for a in lineage if is_squash(a) and a.base == base[0]), default=0)
            if base not in chain or len(chain[base]) < max(LEAST_STEPS, GROWTH * longest):
                continue
            plan = SquashPlan(chain[base], self.predict([manifest_of(a.id) for a in chain[base]], bits_ratio))
            saved = self._saved_bytes(lineage, starts, paths, target, plan)
            if saved > 0 and (best is None or saved > best[0]):
                best = saved, plan
        return best[1] if best is not None else None

    def predict(self, chain: Sequence[Manifest], bits_ratio: Callable[[str], float] = lambda profile: 1.0) -> float:
        """Payload bytes of the squash of a chain."""
        total, last = max(1, chain[-1].total), chain[-1]
        summed = sum(m.changed for m in chain)
        union = min(float(total), summed * math.exp(-self._recurrence * math.log(len(chain))))
        bits = 8 * sum(bits_ratio(m.profile) * m.payload_bytes for m in chain) / max(1, summed)
        mean = summed / len(chain) / total
        bits += _position_bits(union / total) - _position_bits(mean)
        return union * max(_LEAST_BITS, bits) / 8 + 64.0 * len(last.sizes) / len(chain)

    def made(self, steps: int, summed: int, union: int) -> None:
        """A squash of so many deltas changes `union` units, they `summed`."""
        if steps > 1 and 0 < union <= summed:
            seen = math.log(summed / union) / math.log(steps)
            self._recurrence = (1 - _NEW) * self._recurrence + _NEW * min(1.0, seen)

    def is_worth(self, plan: SquashPlan, nbytes: int) -> bool:
        """Whether a squash that was made is still to be announced, now that its size is known."""
        saved = plan.chain_bytes - nbytes
        return saved >= max(self._least_bytes, LEAST_SHARE * plan.chain_bytes)

    def _saved_bytes(
        self,
        lineage: Sequence[Announcement],
        starts: Counter[Place | None],
        paths: dict[Place | None, list[Announcement] | None],
        target: Place,
        plan: SquashPlan,
    ) -> float:
        """Bytes that all members together would fetch less; 0 unless it is worth it for one of them at least."""
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
            is_worth = is_worth or saved >= max(self._least_bytes, LEAST_SHARE * now)
        return total if is_worth else 0.0


def _chain_to(lineage: Sequence[Announcement], target: Place) -> dict[Place, tuple[Announcement, ...]]:
    """For each place that leads to the target by published deltas: these, in order."""
    leading = {place_after(a): a for a in lineage if a.base is not None and not is_squash(a)}
    chains: dict[Place, tuple[Announcement, ...]] = {}
    place = target
    chain: tuple[Announcement, ...] = ()
    while (delta := leading.get(place)) is not None and delta.base is not None:
        place, chain = (delta.base, delta.base_digest), (delta, *chain)
        chains[place] = chain
    return chains


def _bases(paths: dict[Place | None, list[Announcement] | None], starts: Counter[Place | None]) -> list[Place]:
    """Where squashes may begin: where members are, most of them first, and at the anchors that others will come to."""
    found: Counter[Place] = Counter()
    for start, count in starts.items():
        path = paths[start]
        if path and path[0].base is None:
            found[place_after(path[0])] += count
        elif start is not None:
            found[start] += count
    return [place for place, _ in sorted(found.items(), key=lambda item: (-item[1], item[0]))][:MAX_STARTS]


def _position_bits(density: float) -> float:
    """Bits for each changed unit to tell where it is, if they are spread evenly."""
    if not 0 < density < 1:
        return 0.0
    return -math.log2(density) - (1 - density) / density * math.log2(1 - density)
