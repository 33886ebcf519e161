"""Goes on from the versions of another run: writes the first version out whole, and drops those of that run."""

from __future__ import annotations

from p2psync.errors import StoreError
from p2psync.membership.runs import run_name
from p2psync.observe.events import Note, Trouble
from p2psync.store.packs import Store
from p2psync.trainer.versions.builder import VersionBuilder


def write_first_version(builder: VersionBuilder, run: str) -> Note:
    """Write the version that `run` (32 hex digits) begins with, another run's, out whole; returns a note on it.

    Blocking. Raises `StoreError`.
    """
    built = builder.make_anchor()
    return Note(f"{run_name(run)} goes on from version {built.position.version} of the run before")


def remove_other_runs(store: Store, run: str) -> Trouble | None:
    """Remove the packs of all runs but `run`; returns what went wrong, if anything did. Blocking."""
    try:
        for pack in store.packs():
            if pack.manifest.run != run:
                store.remove(pack.signed.id)
    except StoreError as error:
        return Trouble(f"versions of the run before are still on the disk: {error}")
    return None
