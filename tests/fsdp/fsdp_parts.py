"""Real ranks in processes of their own, and the same versions made by one process."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from p2psync.protocol.manifest import Manifest
from p2psync.store.pack import Pack
from p2psync.store.packs import Store
from p2psync.trainer.versions.builder import LocalVersionBuilder
from p2psync.trainer.versions.tensors import MasterSource

HERE = Path(__file__).parent
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TRUSTED = frozenset({KEY.public_key().public_bytes_raw()})


class _Forker:
    """The process that the ranks are forked from, one for all tests."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, HERE / "rank_program.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        atexit.register(self._process.kill)

    def fork(self, arguments: Sequence[str]) -> int:
        """Start a rank; returns its pid."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


_forker = functools.cache(_Forker)


@dataclass
class _Rank:
    """A rank, and the pipes to and from it."""

    pid: int
    told: TextIO
    answers: TextIO


class RankProcesses:
    """The ranks of one training. A context manager: whatever happens, none outlives it."""

    def __init__(self, place: Path, ranks: int, *options: str) -> None:
        self.place, self.ranks, self.options = place, ranks, options
        self._processes: list[_Rank] = []

    def __enter__(self) -> RankProcesses:
        self.place.mkdir(exist_ok=True)
        for stale in [*self.place.glob("meet-*"), *self.place.glob("in-*"), *self.place.glob("out-*")]:
            stale.unlink()
        for rank in range(self.ranks):
            pipes = self.place / f"in-{rank}", self.place / f"out-{rank}"
            for pipe in pipes:
                os.mkfifo(pipe)
            pid = _forker().fork([str(self.place), str(rank), str(self.ranks), *self.options])
            self._processes.append(_Rank(pid, pipes[0].open("w"), pipes[1].open()))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.answers.close()
            with suppress(BrokenPipeError):
                process.told.close()

    def tell(self, command: str, ranks: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Send a command to all ranks, or these; returns their answers, {"gone": True} of a rank that ended."""
        told = [self._processes[rank] for rank in (range(self.ranks) if ranks is None else ranks)]
        for process in told:
            with suppress(BrokenPipeError):
                process.told.write(command + "\n")
                process.told.flush()
        return [self._answer(process) for process in told]

    def fine(self, command: str) -> list[dict[str, Any]]:
        """Send a command that must succeed at all ranks."""
        answers = self.tell(command)
        assert not any("error" in answer or "gone" in answer for answer in answers), (answers, self.logs())
        return answers

    def logs(self) -> str:
        """Returns the end of the ranks' output."""
        return "\n".join((self.place / f"log-{rank}").read_text()[-2000:] for rank in range(self.ranks))

    def full(self, name: str) -> dict[str, torch.Tensor]:
        """Returns the whole tensors that ranks saved under a name."""
        held = [torch.load(self.place / f"{name}-{rank}.pt", weights_only=True) for rank in range(self.ranks)]
        return {
            key: torch.cat([theirs[key][1] for theirs in held]) if sharded else local
            for key, (sharded, local) in held[0].items()
        }

    @staticmethod
    def _answer(process: _Rank) -> dict[str, Any]:
        line = process.answers.readline()
        return cast(dict[str, Any], json.loads(line)) if line else {"gone": True}


class OneProcess:
    """The versions that one process makes of whole tensors."""

    def __init__(self, place: Path, run: str, epoch: int, profile: str, files: Path | None = None) -> None:
        self.store = Store(place / "packs")
        self.builder = LocalVersionBuilder(self.store, place / "snapshot", KEY, run, epoch)
        self.profile, self.files = profile, files

    def publish(self, full: dict[str, torch.Tensor]) -> Pack:
        """Publish whole tensors, fp32 ones that are trained rounded to bf16."""
        untied = {name: tensor for name, tensor in full.items() if name != "head.weight"}
        masters = {name: tensor for name, tensor in untied.items() if tensor.dtype == torch.float32}
        others = {name: tensor for name, tensor in untied.items() if name not in masters}
        made = self.builder.make(MasterSource(masters, others, self.files), profile=self.profile)
        assert made is not None
        return made.pack

    def close(self) -> None:
        """Close the builder and the store."""
        self.builder.close()
        self.store.close()


def packs_of(place: Path, ranks: int) -> list[list[Pack]]:
    """The sealed packs of each rank, read while the processes run."""
    from p2psync.store.pack import open_pack
    from p2psync.store.payloads import OpenPayloads

    found = []
    for rank in range(ranks):
        packs = [
            open_pack(path, OpenPayloads()) for path in (place / "store" / f"rank-{rank}" / "packs").glob("?" * 64)
        ]
        sealed = [pack for pack in packs if pack is not None and pack.sealed]
        found.append(sorted(sealed, key=lambda pack: (pack.manifest.version, pack.manifest.base or -1)))
    return found


def same_manifest(one: Manifest, two: Manifest) -> None:
    """Check that two manifests are equal in everything but the time of day."""
    for name in one.__struct_fields__:
        if name != "created":
            assert getattr(one, name) == getattr(two, name), name


def same_chunks(parts: Sequence[Pack], whole: Pack) -> None:
    """Check that every chunk is at exactly one rank, byte for byte that of one process."""
    for index in range(whole.manifest.chunks):
        held = [pack for pack in parts if pack.have[index]]
        assert len(held) == 1, index
        assert held[0].read(index) == whole.read(index), index
