"""The states of a follower, and every transition between them. Any other pair is an error in the code."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType


class SyncState(Enum):
    """The states of a follower."""

    IDLE = "idle"  # no attempt: nothing is newer, or a pause lasts
    GATHER = "gather"  # manifests of the path are on their way
    ADOPT = "adopt"  # the engine compares its weights with a version's digest
    OPEN = "open"  # the engine opens a stage
    FETCH = "fetch"  # chunks come, and go into the stage in the order of the path's steps
    COMMIT = "commit"  # the engine makes the stage live


class SyncEvent(Enum):
    """The events that end a state."""

    PATH_CHOSEN = "path chosen"
    LOCAL_COPY_KNOWN = "local copy known"
    PATH_CHECKED = "path checked"
    ADOPTED = "adopted"
    STAGE_OPENED = "stage opened"
    ALL_STAGED = "all staged"
    COMMITTED = "committed"
    GIVEN_UP = "given up"


TRANSITIONS = MappingProxyType(
    {
        (SyncState.IDLE, SyncEvent.PATH_CHOSEN): SyncState.GATHER,
        (SyncState.GATHER, SyncEvent.LOCAL_COPY_KNOWN): SyncState.ADOPT,
        (SyncState.GATHER, SyncEvent.PATH_CHECKED): SyncState.OPEN,
        (SyncState.GATHER, SyncEvent.GIVEN_UP): SyncState.IDLE,
        (SyncState.ADOPT, SyncEvent.ADOPTED): SyncState.IDLE,
        (SyncState.ADOPT, SyncEvent.GIVEN_UP): SyncState.IDLE,
        (SyncState.OPEN, SyncEvent.STAGE_OPENED): SyncState.FETCH,
        (SyncState.OPEN, SyncEvent.GIVEN_UP): SyncState.IDLE,
        (SyncState.FETCH, SyncEvent.ALL_STAGED): SyncState.COMMIT,
        (SyncState.FETCH, SyncEvent.GIVEN_UP): SyncState.IDLE,
        (SyncState.COMMIT, SyncEvent.COMMITTED): SyncState.IDLE,
        (SyncState.COMMIT, SyncEvent.GIVEN_UP): SyncState.IDLE,
    }
)
#: States in which an attempt may be given up without asking the engine; a commit takes its outcome from the engine.
INTERRUPTIBLE = frozenset({SyncState.GATHER, SyncState.ADOPT, SyncState.OPEN, SyncState.FETCH})
#: States in which the engine has, or is about to have, an open stage.
STAGING = frozenset({SyncState.OPEN, SyncState.FETCH})
