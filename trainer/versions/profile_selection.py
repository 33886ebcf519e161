"""Selects the profile of each delta of a trainer, and learns from each delta that was built."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from p2psync.membership.records import Announcement, Member
from p2psync.observe.events import Event, ProfileChosen
from p2psync.parallel import thread_count
from p2psync.protocol.lineage import is_squash
from p2psync.store.packs import Store
from p2psync.trainer.versions.builder import BuiltVersion
from p2psync.trainer.versions.profile_choice import ProfileChoice, ProfileChooser, slowest_link
from p2psync.trainer.versions.source import Source


class ProfileSelection:
    """Feeds a `ProfileChooser` with the measurements of one trainer, and tells people when the profile changes."""

    def __init__(self, profile: str, link_mbps: float, on_event: Callable[[Event], None]) -> None:
        """profile: see `ProfileChooser`. link_mbps: megabits a second of the slowest link, 0: as members measure it.

        Raises `UsageError` for an unknown profile.
        """
        self._chooser = ProfileChooser(profile, cores=thread_count())
        self._link_mbps = link_mbps
        self._emit = on_event
        self._current = ""

    def choose(self, source: Source, members: Iterable[Member]) -> ProfileChoice:
        """Returns the profile for a delta of `source`, given what the members measured of their links."""
        link = self._link_mbps / 8e-6 or slowest_link(members)
        return self._chooser.choose(sum(spec.count for spec in source.specs), link)

    def learn_from_store(self, lineage: Iterable[Announcement], store: Store) -> None:
        """Take in the newest delta that an earlier life of the trainer left in the store."""
        deltas = {a.version: a.id for a in lineage if a.base is not None and not is_squash(a)}
        pack = store.get(bytes.fromhex(deltas[max(deltas)])) if deltas else None
        if pack is not None:
            m = pack.manifest
            self._chooser.seen(m.profile, m.total, m.changed, m.payload_bytes)

    def learn(self, built: BuiltVersion, choice: ProfileChoice) -> str | None:
        """Notes the cost of a delta, and emits `ProfileChosen` if its profile is not that of the last one.

        Returns the line about it that goes with the announcement; None for an anchor.
        """
        manifest = built.pack.manifest
        if manifest.base is None:
            return None
        self._chooser.made(
            manifest.profile,
            manifest.total,
            manifest.changed,
            manifest.payload_bytes,
            built.encode_seconds,
            built.apply_seconds,
        )
        if choice.profile != self._current:
            self._current = choice.profile
            self._emit(ProfileChosen(choice.profile, choice.why, {f.profile: f.seconds for f in choice.forecasts}))
        return f"profile {choice.profile}: {choice.why}"
