"""Incremental views: a node that has one revision receives only what changed since, and merges it. Pure.

In a swarm of n members each version is announced to all n; with all members in each view the hub would send O(n²)
entries.
"""

from __future__ import annotations

from collections import deque

import msgspec

from p2psync.errors import FormatError
from p2psync.membership.records import View

#: Changes that the log keeps. A node with an older revision receives the whole view; a longer log costs memory.
MAX_CHANGES = 1024


class ChangeLog:
    """Names that were added, changed or removed, and the revision of each change: the last `most` changes."""

    def __init__(self, most: int = MAX_CHANGES) -> None:
        self._most = most
        self._changes: deque[tuple[int, str]] = deque()
        self._complete_after = -1

    def add(self, revision: int, name: str) -> None:
        """Records a change under the first revision that shows it; revisions must not fall."""
        self._changes.append((revision, name))
        if len(self._changes) > self._most:
            self._complete_after = self._changes.popleft()[0]

    def forget(self, revision: int) -> None:
        """Discards the log: nodes with a revision before this one must receive the whole view."""
        self._changes.clear()
        self._complete_after = revision

    def since(self, revision: int) -> set[str] | None:
        """Returns the names that changed after this revision; None if the log no longer reaches back to it."""
        if revision < self._complete_after:
            return None
        names: set[str] = set()
        for changed, name in reversed(self._changes):
            if changed <= revision:
                break
            names.add(name)
        return names


def merge_views(before: View | None, view: View) -> View:
    """Returns the whole view, from a view that may hold only the changes since `before`.

    Raises `FormatError` if the changes do not continue `before`.
    """
    if view.since is None:
        return view
    if before is None or (before.instance, before.revision) != (view.instance, view.since):
        raise FormatError("the hub sent changes to a view that this node does not have; it requests the whole view")
    members = {member.info.node: member for member in before.members}
    for node in view.gone:
        members.pop(node, None)
    members.update((member.info.node, member) for member in view.members)
    other = {a.id for a in view.lineage} | set(view.retired)
    # Inlined manifests were new at that time; a node that missed one fetches it by its id.
    lineage = [msgspec.structs.replace(a, inline=None) for a in before.lineage if a.id not in other] + view.lineage
    whole = [members[node] for node in sorted(members)]
    return msgspec.structs.replace(view, members=whole, lineage=lineage, since=None, gone=[], retired=[])
