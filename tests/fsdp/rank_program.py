"""Ranks of real FSDP2 trainings over gloo: each takes commands, a line each, and answers in JSON.

What takes seconds, to import and to load compiled kernels, is done once: this process forks a rank for each line on
stdin, which holds its arguments, PLACE RANK RANKS and options. A rank talks through the pipes PLACE/in-RANK and
PLACE/out-RANK.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fsdp_model import Policy
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import p2psync.topology.hub_planner  # noqa: F401 (imported when a hub starts)
from p2psync.delta.warm import warm
from p2psync.errors import P2PSyncError
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.fsdp.publisher import FsdpPublisher
from p2psync.trainer.publisher import Publisher

KEY_BYTES = bytes(range(32))


class Training:
    """The training of one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.place = Path(options.place)
        torch.manual_seed(0)
        torch.set_num_threads(1)
        policy = Policy(options.width)
        if options.dtype == "plain":
            policy.to(torch.bfloat16)
        shards = options.ranks // options.replicas
        if options.replicas > 1:
            mesh = init_device_mesh("cpu", (options.replicas, shards), mesh_dim_names=("replicate", "shard"))
        else:
            mesh = init_device_mesh("cpu", (shards,))
        mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in policy.layers:
            fully_shard(layer, mesh=mesh, mp_policy=mixed)
        self.policy = fully_shard(policy, mesh=mesh, mp_policy=mixed)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=options.lr)

    def train(self, step: str) -> None:
        """A real optimizer step."""
        generator = torch.Generator().manual_seed(1000 + int(step))
        tokens = torch.randint(0, self.policy.tokens, (4,), generator=generator)
        self.optimizer.zero_grad()
        self.policy(tokens).float().square().mean().backward()
        self.optimizer.step()

    def disturb(self, step: str) -> None:
        """Bit patterns that training rarely makes: NaN, infinities, zeros of either sign, at random places."""
        rng = np.random.default_rng((int(step), self.options.rank))
        odd = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40])
        with torch.no_grad():
            for tensor in self.policy.parameters():
                local = tensor.to_local().view(-1)
                if local.numel():
                    where = torch.from_numpy(rng.integers(0, local.numel(), 9))
                    local[where] = odd[torch.from_numpy(rng.integers(0, 6, 9))].to(local.dtype)

    def nudge(self, step: str) -> None:
        """Change one in a hundred of the parameters, as a step does, at no cost in memory."""
        rng = np.random.default_rng((int(step), self.options.rank))
        with torch.no_grad():
            for tensor in self.policy.parameters():
                local = tensor.to_local().view(-1)
                where = torch.from_numpy(rng.integers(0, max(1, local.numel()), local.numel() // 100))
                local[where] *= 1.01

    def save(self, name: str) -> None:
        """Save this rank's shards, for the test to put together."""
        held = {}
        for key, tensor in self.policy.state_dict().items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            held[key] = (isinstance(tensor, DTensor), local.clone())
        torch.save(held, self.place / f"{name}-{self.options.rank}.pt")


class Program:
    """The commands."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.training = Training(options)
        self.publisher: FsdpPublisher | None = None
        self.peak = 0

    def open(self) -> dict[str, Any]:
        """Make the publisher and start it."""
        options = self.options
        config = self._config()
        dtype = torch.bfloat16 if options.dtype == "masters" else None
        files = Path(options.place) / "files"
        self.publisher = FsdpPublisher(
            self.training.policy, config, dtype=dtype, files=files if files.exists() else None, timeout=60
        ).__enter__()
        return {"hub": self.publisher.hub_url if options.rank == 0 else ""}

    def _config(self) -> TrainerConfig:
        options = self.options
        return TrainerConfig(
            store=Path(options.place) / "store",
            key=Ed25519PrivateKey.from_private_bytes(KEY_BYTES),
            host="127.0.0.1",
            hub_port=0,
            port=0,
            profile=options.profile,
            anchor_ratio=options.anchor_ratio,
            probe=False,
            plan=bool(options.plan),
        )

    def publish(self) -> dict[str, Any]:
        """Publish, and answer with the event."""
        assert self.publisher is not None
        cpu = resource.getrusage(resource.RUSAGE_SELF)
        began = time.monotonic()
        event = self.publisher.publish(announced=self.options.rank == 0)
        after = resource.getrusage(resource.RUSAGE_SELF)
        made = self._rank_builder()
        return {
            "version": None if event is None else event.version,
            "moved": made.moved_bytes if made else 0,
            "encoded": made.encoded_bytes if made else 0,
            "wall": time.monotonic() - began,
            "cpu": after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime,
        }

    def anchored(self) -> dict[str, Any]:
        """Wait for an anchor that is being made."""
        assert self.publisher is not None
        if self.options.rank == 0:
            self.publisher._loop.call(self.publisher._trainer.anchored())
        return {}

    def sent(self) -> dict[str, Any]:
        """Bytes of chunks that this rank's node has sent."""
        assert self.publisher is not None
        node = self.publisher._node if self.options.rank == 0 else self.publisher._seed
        return {"sent": node.runner.core.swarm.statistics.sent_bytes if node is not None else 0}

    def die_when(self, step: str) -> dict[str, Any]:
        """End this process, as kill -9 does, when it comes to a step of the next version."""
        rank_builder = self._rank_builder()
        assert rank_builder is not None

        def die(*_: object, **__: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if step == "sealed":
            rank_builder.snapshot.begin_change = die
        else:
            setattr(
                rank_builder, {"encoding": "_encode", "signing": "_gather_reports", "applying": "_advance"}[step], die
            )
        return {}

    def close(self) -> dict[str, Any]:
        """Leave the publisher."""
        assert self.publisher is not None
        self.publisher.__exit__(None, None, None)
        self.publisher = None
        return {}

    def rss(self) -> dict[str, Any]:
        """Returns peak resident bytes since the last call, and bytes of anonymous memory now."""
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {
            name: int(lines[name].split()[0]) * 1024 for name in ("VmHWM", "VmRSS", "RssAnon", "RssShmem", "RssFile")
        }

    def reset_peak(self) -> dict[str, Any]:
        """Count the peak from here."""
        Path("/proc/self/clear_refs").write_text("5")
        return {}

    def warm(self) -> dict[str, Any]:
        """Compiles the codec."""
        warm()
        return {}

    def refused(self, what: str) -> dict[str, Any]:
        """Try to publish an unsupported module."""
        from torch import nn
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (self.options.ranks,))
        module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        dtype = torch.float16 if what == "float16" else None
        if what == "columns":
            fully_shard(module, mesh=mesh, shard_placement_fn=lambda tensor: Shard(tensor.ndim - 1))
        elif what == "tensor-parallel":
            module[0].weight = nn.Parameter(distribute_tensor(module[0].weight, mesh, [Shard(1)]))
        elif what == "two-meshes":
            fully_shard(module[0], mesh=mesh)
            fully_shard(module[1], mesh=init_device_mesh("cpu", (1, self.options.ranks), mesh_dim_names=("a", "b")))
        elif what == "one-process":
            fully_shard(module, mesh=mesh)
            Publisher(module, self._config())
        FsdpPublisher(module, self._config(), dtype=dtype)
        return {}

    def _rank_builder(self) -> Any:
        publisher = self.publisher
        if publisher is None or publisher._group.rank is None:
            return None
        return publisher._builder.rank_builder if publisher._builder is not None else publisher._follower.rank_builder

    def do(self, line: str) -> dict[str, Any]:
        """One command."""
        word, *rest = line.split()
        own = getattr(self, word, None)
        if own is None:
            own = getattr(self.training, word)
        try:
            return own(*rest) or {}
        except P2PSyncError as error:
            return {"error": f"{type(error).__name__}: {error}"}


def rank_main(arguments: list[str]) -> None:
    """A rank, from its start to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--dtype", default="masters", choices=("masters", "plain"))
    parser.add_argument("--profile", default="tight")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--anchor-ratio", type=float, default=1e9)
    parser.add_argument("--plan", type=int, default=1)
    options = parser.parse_args(arguments)
    place = Path(options.place)
    log = os.open(place / f"log-{options.rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with (place / f"in-{options.rank}").open() as told, (place / f"out-{options.rank}").open("w") as answers:
        meet = f"file://{place}/meet-{options.ranks}"
        dist.init_process_group("gloo", init_method=meet, rank=options.rank, world_size=options.ranks)
        program = Program(options)
        for line in told:
            print(json.dumps(program.do(line)), file=answers, flush=True)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks are reaped as they end
    warm()
    torch.set_num_threads(1)  # and no thread of torch's, which a fork would not have
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([parameter])  # its imports take longest
    optimizer.step()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                rank_main(json.loads(line))
            except BaseException:
                traceback.print_exc()
            os._exit(0)  # a group that lost a rank waits for it at a usual end
        print(child, flush=True)


if __name__ == "__main__":
    main()
