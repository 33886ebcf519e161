"""Settings of the synchronizer. Seconds and bytes."""

from __future__ import annotations

#: Pauses after failed attempts, doubled from the first to the longest. Longer ones spare the hub and delay a version
#: that could be had again.
RETRY_MIN_SECONDS = 0.5
RETRY_MAX_SECONDS = 30.0
#: After this many failures a manifest is avoided as long as another path exists: one failure may be the network's. More
#: waste attempts on a manifest that cannot be applied.
FAILURES_TO_AVOID = 2
#: The follower switches to another path if that needs at most this share of the bytes that are missing of the path
#: begun and of those after it, and saves so many bytes: the engine must start again. Larger shares and fewer bytes
#: switch for less.
SWITCH_MAX_SHARE = 0.75
SWITCH_MIN_BYTES = 256 << 10
#: Switches between two commits: however fast versions come, the follower gets somewhere. More follow cheaper paths and
#: delay the commit.
MAX_SWITCHES = 2
#: Damages of the live version that are repaired at once. Each further one within `QUIET_SECONDS` of the one before
#: waits twice as long, at most `REPAIR_MAX_SECONDS`: each repair may fetch a whole model, and a disk may damage all it
#: is given.
IMMEDIATE_REPAIRS = 4
QUIET_SECONDS = 600.0
REPAIR_MAX_SECONDS = 300.0
#: Versions kept that only peers told of; beyond it the oldest is forgotten. It bounds memory against a chatty
#: publisher.
MAX_GOSSIPED = 8
