"""The epoch that a trainer claims next: above all that it knows of, and never used before. Pure.

An epoch is a time in its upper bits and random bits below. A trainer whose store was restored from a backup, with a hub
that knows nothing (it is embedded, or was restarted too), does not know which epochs were used since the backup; the
time is above them all. Where the clock went back as well, the random bits distinguish the epoch from earlier ones, so
that no two versions have the same name.
"""

from __future__ import annotations

#: The second (Unix time) from which epochs count: the start of 2025, so that epochs stay short.
EPOCH_ZERO = 1735689600
#: Time steps of an epoch in a second: fewer could order two trainers by their random bits alone, where the second one
#: takes over within one step.
STEPS_PER_SECOND = 1024
#: Bits of an epoch below the time steps. All together stay below 2^53, the hub's bound, until the year 2297.
RANDOM_BITS = 10
#: The highest epoch that a clock can give: a clock that is centuries ahead leaves epochs for later claims.
_MAX_TIMED_EPOCH = 1 << 52


def next_epoch(own: int, known: int, unix_seconds: float, random_bits: int) -> int:
    """Returns the epoch to claim.

    own: the last epoch that this store used. known: the run's epoch at the hub, 0 if the hub does not know the run.
    random_bits: `RANDOM_BITS` random bits.
    """
    steps = max(0, int((unix_seconds - EPOCH_ZERO) * STEPS_PER_SECOND))
    timed = (steps << RANDOM_BITS) | (random_bits & ((1 << RANDOM_BITS) - 1))
    return max(own + 1, known + 1, min(timed, _MAX_TIMED_EPOCH))
