"""What the trainer keeps: enough for every live member and every joiner, and no more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p2psync.membership.records import Announcement


def anchor_due(lineage: Sequence[Announcement], ratio: float) -> bool:
    """Whether the deltas since the newest anchor have grown past `ratio` of it in bytes.

    From there on, a joiner would fetch less by a fresh anchor than by the old one and the chain.
    """
    anchor = max((a for a in lineage if a.base is None), key=lambda a: (a.epoch, a.version), default=None)
    if anchor is None:
        return False
    since = sum(a.payload_bytes for a in lineage if a.base is not None and a.version > anchor.version)
    return since > ratio * anchor.payload_bytes


def to_retire(lineage: Sequence[Announcement], members: Iterable[int | None], keep: int) -> list[Announcement]:
    """Manifests that nobody needs: anchors before the newest, and deltas before every use.

    A delta is of use to whoever runs its base or an earlier version: the live `members` (their versions; None: one that
    starts from nothing), joiners who fetch the newest anchor, and, for `keep` versions back, whoever was away.
    """
    anchors = [a for a in lineage if a.base is None]
    if not anchors:
        return []
    newest_anchor = max(anchors, key=lambda a: (a.epoch, a.version))
    head = max(a.version for a in lineage)
    first_needed = min([newest_anchor.version, head - keep, *(v for v in members if v is not None)])
    stale = [a for a in anchors if a is not newest_anchor and a.version < newest_anchor.version]
    return stale + [a for a in lineage if a.base is not None and a.base < first_needed]
