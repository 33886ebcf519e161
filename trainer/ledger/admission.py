"""The versions under which results count: the newest, and those within the staleness bound, each with its digest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from p2psync.errors import UsageError
from p2psync.membership.work import Verdict


class VersionAdmission:
    """The admitted versions. head: the newest one, None before the first."""

    def __init__(self, max_staleness: int) -> None:
        self.head: int | None = None
        self._staleness = max_staleness
        self._digests: OrderedDict[int, str] = OrderedDict()

    @property
    def oldest(self) -> int:
        """The oldest version that is within the bound. Only after the first version was admitted."""
        assert self.head is not None
        return self.head - self._staleness

    def restore(self, versions: Iterable[tuple[int, str]]) -> None:
        """Begin with these (version, digest), ascending."""
        self._digests = OrderedDict(versions)
        if self._digests:
            self.head = next(reversed(self._digests))

    def admit(self, version: int, digest: str) -> bool:
        """Admit `version` as the newest; returns False if it is that. Raises `UsageError` unless versions rise."""
        if self.head is not None and version <= self.head:
            if self._digests.get(version) == digest:
                return False
            raise UsageError(f"version {version} after version {self.head}: versions only rise in a ledger; start over")
        self.head = version
        self._digests[version] = digest
        while next(iter(self._digests)) < self.oldest:
            self._digests.popitem(last=False)
        return True

    def objection(self, version: int, digest: str) -> Verdict | None:
        """Returns why a result made under `version` with `digest` does not count; None if it counts."""
        if self.head is not None and version < self.oldest:
            return "stale"
        if version not in self._digests:
            return "unknown_version"
        return None if digest == self._digests[version] else "wrong_digest"
