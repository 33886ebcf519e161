"""Decides which manifests the trainer keeps: those that a live member or a joiner needs, and no more. Pure.

The versions that lead to the head by deltas alone are its *chain*. Only members near the head fetch deltas of the
chain: for the others the newest anchor is fewer bytes. So the bytes that members need are bounded by the size of a
model, however far behind one of them stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p2psync.membership.lineage import MAX_MANIFEST_BYTES, MAX_MANIFESTS
from p2psync.membership.records import Announcement, Member
from p2psync.protocol.lineage import base_key, is_squash, newest_announcement, resolve, target_key

#: An anchor is due after so many deltas, however small: every node is shown all of them with each new version, and a
#: joiner fetches them one by one.
ANCHOR_DELTAS = 256
#: And so long after the last one (seconds), if anything was published since: no joiner should depend on old disks
#: alone.
ANCHOR_SECONDS = 86400.0
#: Manifests, and their bytes, that a trainer has announced at a time: half of what a hub takes, which may still hold
#: those of an earlier trainer.
MAX_ANNOUNCED, MAX_ANNOUNCED_BYTES = MAX_MANIFESTS // 2, MAX_MANIFEST_BYTES // 2


def anchor_due(
    lineage: Sequence[Announcement],
    ratio: float,
    *,
    deltas: int = ANCHOR_DELTAS,
    seconds: float = ANCHOR_SECONDS,
    age: float = 0.0,
) -> str:
    """Returns why the newest version is to be written out whole, in words for people; "" if it is not.

    An anchor is due if no path leads to the newest version; if the deltas since the newest anchor weigh more than
    `ratio` of it in bytes, so that a joiner would fetch less by a fresh one; if they are more than `deltas`; and if
    that anchor's `age` (seconds) is more than `seconds`.
    """
    newest = newest_announcement(lineage)
    if newest is None:
        return ""
    anchor = newest_anchor(lineage)
    if anchor is None:
        return "there is no anchor yet"
    if target_key(anchor) == target_key(newest):
        return ""
    chain = _chain(lineage)
    since = [a for a in chain if a.version > anchor.version]
    if (not since or base_key(since[-1]) != target_key(anchor)) and (
        resolve(lineage, None, target_key(newest)) is None
    ):
        return "no anchor leads to the newest version"
    if sum(a.payload_bytes for a in since) > ratio * anchor.payload_bytes:
        return f"the deltas since version {anchor.version} outweigh that anchor"
    if len(since) > deltas:
        return f"there are {len(since)} deltas since the anchor of version {anchor.version}"
    if age > seconds:
        return f"the anchor of version {anchor.version} is {age / 3600:.0f} hours old"
    return ""


def to_retire(
    lineage: Sequence[Announcement],
    members: Iterable[Member],
    keep: int,
    *,
    most: int = MAX_ANNOUNCED,
    max_bytes: int = MAX_ANNOUNCED_BYTES,
) -> list[Announcement]:
    """Returns the manifests that nobody needs: old anchors, deltas, squashes, and those of an abandoned fork.

    A delta of the chain is kept for live `members` that run its base or an earlier version and would use it; for
    joiners, which fetch an anchor and go on from it; and, for `keep` versions back, for members that were away. While a
    member runs nothing yet, it may be fetching the anchor before the newest one, which is kept until then; and while
    one runs the base of the newest delta, it may be fetching that, even if a new anchor is less.

    A squash is kept while it is on the best path of some member, and, as long as it leads past the newest anchor, while
    a member may be fetching it.

    A member that stays behind holds at most `keep` or `ANCHOR_DELTAS` deltas, whatever they weigh. If more than `most`
    manifests, or `max_bytes` bytes of them, are left, the oldest go too: a new version is announced in any case, and
    members that needed the old ones wait for the next anchor.
    """
    anchor = newest_anchor(lineage)
    if anchor is None:
        return _oldest_over(lineage, most, max_bytes)
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
    for steps, delta in enumerate(chain):  # from the head backwards
        bytes_left -= delta.payload_bytes
        base = -1 if delta.base is None else delta.base
        under_way = delta is chain[0] and base in wanted
        is_on_path = bytes_left >= 0 and steps < max(keep, ANCHOR_DELTAS)
        if base >= start or under_way or (base >= floor and is_on_path):
            needed.add(delta.id)
    needed |= _squashes_in_use(lineage, members, anchor)
    over = {a.id for a in _oldest_over([a for a in lineage if a.id in needed], most, max_bytes)}
    return [a for a in lineage if a.id not in needed or a.id in over]


def newest_anchor(lineage: Sequence[Announcement]) -> Announcement | None:
    """Returns the anchor of the newest version that has one; None if no version has."""
    return max((a for a in lineage if a.base is None), key=lambda a: (a.epoch, a.version), default=None)


def _oldest_over(kept: Sequence[Announcement], most: int, max_bytes: int) -> list[Announcement]:
    """Returns the oldest manifests beyond these bounds; never the newest anchor, nor one that leads to the head."""
    newest, anchor = newest_announcement(kept), newest_anchor(kept)
    over = []
    count, nbytes = len(kept), sum(a.manifest_bytes for a in kept)
    for a in sorted(kept, key=lambda a: (a.epoch, a.version, a.base is None)):
        if count <= most and nbytes <= max_bytes:
            break
        if a is not anchor and newest is not None and target_key(a) != target_key(newest):
            over.append(a)
            count, nbytes = count - 1, nbytes - a.manifest_bytes
    return over


def _squashes_in_use(lineage: Sequence[Announcement], members: Sequence[Member], anchor: Announcement) -> set[str]:
    newest = newest_announcement(lineage)
    squashes = [a for a in lineage if is_squash(a)]
    if newest is None or not squashes:
        return set()
    starts = {(m.version, m.digest) if m.version is not None else None for m in members}
    paths = [resolve(lineage, start, target_key(newest)) or [] for start in starts]
    used = {a.id for path in paths for a in path}
    first = min((place[0] if place is not None else anchor.version for place in starts), default=newest.version)
    return {a.id for a in squashes if a.id in used or (first <= (a.base or 0) and a.version > anchor.version)}


def _chain(lineage: Sequence[Announcement]) -> list[Announcement]:
    """Returns the deltas that lead to the head, the last one first."""
    leading = {target_key(a): a for a in lineage if a.base is not None and not is_squash(a)}
    newest = newest_announcement(lineage)
    chain: list[Announcement] = []
    place = target_key(newest) if newest is not None else None
    while place is not None and (delta := leading.get(place)) is not None and delta.base is not None:
        chain.append(delta)
        place = (delta.base, delta.base_digest)
    return chain
