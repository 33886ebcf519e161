"""What the trainer keeps: enough for every live member and every joiner, and no more. Pure.

The versions that lead to the head by deltas alone are its *chain*. A delta is of use only to who would rather go along
the chain than take the newest anchor, which is whoever is so near the head that the way there is fewer bytes. So what
members need is bounded by the size of a model, however far behind one of them stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p2psync.membership.records import Announcement, Member
from p2psync.protocol.lineage import head, is_squash, place_after, resolve


def anchor_due(lineage: Sequence[Announcement], ratio: float) -> bool:
    """Whether the deltas since the newest anchor have grown past `ratio` of it in bytes, or there is no way from it.

    From there on, a joiner would fetch less by a fresh anchor than by the old one and the chain.
    """
    newest = head(lineage)
    if newest is None:
        return False
    anchor = _newest_anchor(lineage)
    if anchor is None or resolve(lineage, None, place_after(newest)) is None:
        return True
    since = sum(a.payload_bytes for a in _chain(lineage) if a.version > anchor.version)
    return since > ratio * anchor.payload_bytes


def to_retire(lineage: Sequence[Announcement], members: Iterable[Member], keep: int) -> list[Announcement]:
    """Manifests that nobody needs: older anchors, deltas before every use, squashes, and what a fork left behind.

    A delta of the chain is kept for the live `members` that run its base or an earlier version and would use it; for
    joiners, who fetch an anchor and go on from it; and, for `keep` versions back, for whoever was away. While a member
    runs nothing yet, it may be fetching the anchor before the newest one, which is kept until it is done; and while one
    runs the base of the newest delta, it may be fetching that, even if a new anchor is less.

    A squash is kept while it is on the best way of some member; and while one may be fetching it, having been told of
    it, as long as it leads past the newest anchor.
    """
    anchor = _newest_anchor(lineage)
    if anchor is None:
        return []
    members = list(members)
    anchors = {anchor.id: anchor}
    if any(member.version is None for member in members):
        older = [a for a in lineage if a.base is None and (a.epoch, a.version) < (anchor.epoch, anchor.version)]
        if older:
            before = max(older, key=lambda a: (a.epoch, a.version))
            anchors[before.id] = before
    chain = _chain(lineage)
    start = min(a.version for a in anchors.values())
    wanted = [version for member in members if (version := member.version) is not None]
    newest = chain[0].version if chain else anchor.version
    floor = min([newest - keep, *wanted])
    needed = set(anchors)
    bytes_left = anchor.payload_bytes + sum(a.payload_bytes for a in chain if a.version > anchor.version)
    for delta in chain:  # from the head backwards
        bytes_left -= delta.payload_bytes
        base = -1 if delta.base is None else delta.base
        under_way = delta is chain[0] and base in wanted
        if base >= start or under_way or (base >= floor and bytes_left >= 0):
            needed.add(delta.id)
    needed |= _squashes_in_use(lineage, members, anchor)
    return [a for a in lineage if a.id not in needed]


def _squashes_in_use(lineage: Sequence[Announcement], members: Sequence[Member], anchor: Announcement) -> set[str]:
    newest = head(lineage)
    squashes = [a for a in lineage if is_squash(a)]
    if newest is None or not squashes:
        return set()
    starts = {(m.version, m.digest) if m.version is not None else None for m in members}
    ways = [resolve(lineage, start, place_after(newest)) or [] for start in starts]
    used = {a.id for way in ways for a in way}
    first = min((place[0] if place is not None else anchor.version for place in starts), default=newest.version)
    return {a.id for a in squashes if a.id in used or (first <= (a.base or 0) and a.version > anchor.version)}


def _newest_anchor(lineage: Sequence[Announcement]) -> Announcement | None:
    return max((a for a in lineage if a.base is None), key=lambda a: (a.epoch, a.version), default=None)


def _chain(lineage: Sequence[Announcement]) -> list[Announcement]:
    """The deltas that lead to the head, the last one first."""
    leading = {place_after(a): a for a in lineage if a.base is not None and not is_squash(a)}
    newest = head(lineage)
    chain: list[Announcement] = []
    place = place_after(newest) if newest is not None else None
    while place is not None and (delta := leading.get(place)) is not None and delta.base is not None:
        chain.append(delta)
        place = (delta.base, delta.base_digest)
    return chain
