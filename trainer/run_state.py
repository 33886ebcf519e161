"""The state that a trainer keeps over restarts: its run, its epoch, its name in the swarm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from p2psync.membership.epochs import next_epoch
from p2psync.membership.records import View, new_run
from p2psync.membership.runs import is_newer, later_run
from p2psync.store.packs import Store
from p2psync.store.records import recover_record, save_record


class RunState(msgspec.Struct, frozen=True):
    """run: 32 hex digits. epoch: the last one that was used. node: 32 hex digits."""

    run: str
    epoch: int
    node: str

    def superseding(self, than: str, unix_ms: int, randomness: bytes) -> RunState:
        """Returns this state if its run is newer than the run whose id begins with `than`; else one of a newer run.

        The new run goes on from the store's versions. randomness: 10 bytes. Raises `UsageError`: see `later_run`.
        """
        if is_newer(self.run, than):
            return self
        return msgspec.structs.replace(self, run=later_run(max(self.run, than), unix_ms, randomness))

    def next_epoch(self, view: View, unix_seconds: float, drawn: int) -> RunState:
        """Returns the same run, at an epoch that was never used: above every one that this store or the hub knows.

        See `membership.epochs`. unix_seconds: the time; drawn: random bits.
        """
        known = view.epoch if view.run == self.run else 0
        return RunState(self.run, next_epoch(self.epoch, known, unix_seconds, drawn), self.node)


def load_run(path: Path, store: Store, tell: Callable[[str], None]) -> RunState:
    """Returns the run in the file at `path`, or a new one at epoch 0, which is not written yet. Raises `StoreError`.

    Where the file is damaged or gone, the run and epoch are those of the newest version in `store`. tell: takes a line
    about that. The hub knows later epochs, see `next_epoch`.
    """
    damage: list[str] = []
    state = recover_record(path, RunState, damage.append, "the run is taken from the versions in the store")
    for line in damage:
        tell(line)
    if state is not None:
        return state
    newest = max((pack.manifest for pack in store.packs()), key=lambda m: (m.run, m.epoch), default=None)
    node = os.urandom(16).hex()
    if newest is None:
        return RunState(new_run(int(time.time() * 1000), os.urandom(10)), 0, node)
    if not damage:
        tell(f"{path} is gone: going on with run {newest.run[:12]}, as the versions in the store say")
    return RunState(newest.run, newest.epoch, node)


def save_run(path: Path, state: RunState) -> None:
    """Write the state to `path`, durably. Raises `StoreError`."""
    save_record(path, state)
