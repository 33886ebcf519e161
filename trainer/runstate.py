"""What a trainer must remember over restarts: its run, its epoch, its name in the swarm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from p2psync.errors import StoreError
from p2psync.membership.epochs import next_epoch
from p2psync.membership.records import View, new_run
from p2psync.store.disk import disk_errors, write_durably


class RunState(msgspec.Struct, frozen=True):
    """run: 32 hex digits. epoch: the last one that was used. node: 32 hex digits."""

    run: str
    epoch: int
    node: str

    def next_epoch(self, view: View, unix_seconds: float, drawn: int) -> RunState:
        """The same run, at an epoch above every one that this store or the hub knows, and never one of before.

        See `membership.epochs`. unix_seconds: the time; drawn: random bits.
        """
        known = view.epoch if view.run == self.run else 0
        return RunState(self.run, next_epoch(self.epoch, known, unix_seconds, drawn), self.node)


def load_run(path: Path) -> RunState:
    """The run that `path` remembers, or a new one at epoch 0, which is not written yet. Raises `StoreError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunState)
    except FileNotFoundError:
        return RunState(new_run(int(time.time() * 1000), os.urandom(10)), 0, os.urandom(16).hex())
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} cannot be read ({error}): restore it, or start with an empty --store") from None


def save_run(path: Path, state: RunState) -> None:
    """Durable once it returns. Raises `StoreError`."""
    with disk_errors(path):
        write_durably(path, msgspec.json.encode(state))
