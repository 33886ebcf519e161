"""Views in short: who knows one revision is told what changed since, and puts it to what it knows. Pure.

In a swarm of n members each version is told to all n; with all members in each view, the hub would send n times n.
"""

from __future__ import annotations

from collections import deque

import msgspec

from p2psync.errors import FormatError
from p2psync.membership.records import View

#: Changes that are remembered: who knows an older revision is told everything.
MAX_CHANGES = 1024


class ChangeLog:
    """Names of what changed, came or went, and at which revision: the last `most` changes."""

    def __init__(self, most: int = MAX_CHANGES) -> None:
        self._most = most
        self._changes: deque[tuple[int, str]] = deque()
        self._complete_after = -1

    def add(self, revision: int, name: str) -> None:
        """The first revision that shows this change; no lower than the last one."""
        self._changes.append((revision, name))
        if len(self._changes) > self._most:
            self._complete_after = self._changes.popleft()[0]

    def forget(self, revision: int) -> None:
        """So much changed at this revision that nothing is told in short to who knows an earlier one."""
        self._changes.clear()
        self._complete_after = revision

    def since(self, revision: int) -> set[str] | None:
        """What changed after this revision; None if that is not remembered any more."""
        if revision < self._complete_after:
            return None
        names: set[str] = set()
        for changed, name in reversed(self._changes):
            if changed <= revision:
                break
            names.add(name)
        return names


def merge_views(before: View | None, view: View) -> View:
    """The whole view, from one that may tell only what changed since `before`.

    Raises `FormatError` if that is not what it goes on from.
    """
    if view.since is None:
        return view
    if before is None or (before.instance, before.revision) != (view.instance, view.since):
        raise FormatError("the hub tells what changed since a view that this node does not have; it asks for all of it")
    members = {member.info.node: member for member in before.members}
    for node in view.gone:
        members.pop(node, None)
    members.update((member.info.node, member) for member in view.members)
    other = {a.id for a in view.lineage} | set(view.retired)
    # What was inlined was news then; who did not take it gets it by its id.
    lineage = [msgspec.structs.replace(a, inline=None) for a in before.lineage if a.id not in other] + view.lineage
    whole = [members[node] for node in sorted(members)]
    return msgspec.structs.replace(view, members=whole, lineage=lineage, since=None, gone=[], retired=[])
