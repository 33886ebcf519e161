"""The rollout ledger in virtual time: how long steps take under which allocation, and whether faults ever break it."""
