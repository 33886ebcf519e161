"""Imported last by the fork server (`vllm_forks`): tunes the garbage collector and vLLM's queues for its children.

Their collections skip the imported modules. None of them spins for the second after each message for which vLLM does,
since the other ranks, engines and the trainer of a test need the cores."""

from __future__ import annotations

import gc

from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

#: How long a process that reads messages spins for the next one before it sleeps (seconds).
_SPIN = 0.002


def _spin_less() -> None:
    init = SpinCondition.__init__
    assert init.__defaults__ == (1,), "vLLM waits in another way than this was written for"
    init.__defaults__ = (_SPIN,)


_spin_less()
gc.collect()
gc.freeze()
