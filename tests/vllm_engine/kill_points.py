"""Kills a worker in the middle of a stage, a preparation, or a commit: for `kill.py`.

vLLM imports this in each worker (`worker_extension_cls`). P2PSYNC_KILL names a file; once that exists, it says in which
phase, at which call of it, and on which rank the worker is to be killed.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from p2psync.engines.module import staging
from p2psync.engines.module.staging import ModuleStaging
from p2psync.engines.vllm.rank_writer import RankWriter

_calls: Counter[str] = Counter()


class KillPoints:
    """Empty: importing this module installs the kill points."""


def _point(phase: str) -> None:
    try:
        wanted, call, rank = Path(os.environ["P2PSYNC_KILL"]).read_text().split()
    except (OSError, KeyError):
        return
    import torch.distributed as dist

    if wanted == phase and int(rank) == dist.get_rank():
        _calls[phase] += 1
        if _calls[phase] >= int(call):
            os.kill(os.getpid(), signal.SIGKILL)


def _install() -> None:
    staging.WRITE_GROUP_UNITS = 1  # each block is written by a call of its own
    put, translate, prepare, write = ModuleStaging.put, RankWriter._translate, RankWriter.prepare, RankWriter.write

    def putting(self: Any, step: int, chunks: Any) -> None:
        put(self, step, chunks)
        _point("stage")

    def translating(self: Any, edit: Any) -> Any:
        _point("journal")
        return translate(self, edit)

    def preparing(self: Any, edits: Any) -> None:
        prepare(self, edits)
        self._writes = [_followed(one) for one in self._writes]

    def writing(self: Any) -> None:
        _point("agree")
        write(self)
        _point("agree")

    ModuleStaging.put, RankWriter._translate = putting, translating  # type: ignore[method-assign]
    RankWriter.prepare, RankWriter.write = preparing, writing  # type: ignore[method-assign]


def _followed(one: Any) -> Any:
    def write() -> None:
        one()
        _point("commit")

    return write


_install()
