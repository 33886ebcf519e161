"""An actor: vLLM follows the run, takes prompts from its ledger, and hands the answers in.

    python generate.py --model MODEL --join http://TRAINER:7070 --trust ed25519:…       # an engine of this process
    python generate.py --server http://127.0.0.1:8000 --join … --trust …                # a vLLM server

It goes on until SIGTERM or Ctrl-C. Versions are fetched and staged while answers are generated; a commit is a pause of
milliseconds, and what is in flight stays.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
if not torch.cuda.is_available():
    # On few CPUs: no threads that spin, and no worker process besides the engine's, whose loop spins as well.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import msgspec
from engines import RolloutEngine, in_process, served
from wire import Prompt, Rollout

from p2psync.actor.vllm.work import EngineWork
from p2psync.engines.vllm.conductor import ConductedCommit
from p2psync.errors import P2PSyncError
from p2psync.membership.work import WorkGrant

#: Seconds until the hub is asked again after it could not be reached.
PAUSE = 1.0


class Actor:
    """Workers: each takes a prompt, has it answered, and hands the answers in; vLLM batches their requests."""

    def __init__(self, name: str, engine: RolloutEngine, work: EngineWork, pauses: list[float]) -> None:
        """pauses: the engine's, in seconds; whoever conducts it adds to them."""
        self.name, self.engine, self.work, self.pauses = name, engine, work, pauses
        self.verdicts: dict[str, int] = {}

    async def run(self, concurrency: int) -> None:
        """Runs so many workers until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._worker())

    async def _worker(self) -> None:
        while True:
            try:
                await self._answer(await self.work.lease())
            except P2PSyncError as error:  # the hub is away, or no version is live yet
                print(f"{self.name}: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(PAUSE)

    async def _answer(self, grant: WorkGrant) -> None:
        for item in grant.items:
            begun = await self.work.begin(grant, item)
            samples = await self.engine.answer(msgspec.msgpack.decode(item.payload, type=Prompt))
            ended = await self.work.live.read()
            pause = self.pauses[-1] if self.pauses else 0.0
            rollout = Rollout(self.name, begun.position.version, ended.position.version, pause, samples)
            tokens = sum(len(sample.tokens) for sample in samples)
            body = msgspec.msgpack.encode(rollout)
            receipt = await self.work.deliver(grant.work, item.item, body, begun.position, tokens)
            self.verdicts[receipt.verdict] = self.verdicts.get(receipt.verdict, 0) + 1


async def check(actor: Actor, checkpoint: Path) -> bool:
    """Returns whether the live weights are those of a checkpoint, by vLLM's own loader and sums."""
    live, version = await actor.engine.checksums(), (await actor.work.live.read()).position.version
    await actor.engine.reload(checkpoint)
    same = live == await actor.engine.checksums()
    said = "are" if same else "ARE NOT"
    print(
        f"{actor.name}: version {version}; vLLM's checksums of all {len(live)} parameters {said} those of the "
        f"trainer's policy; answers: {actor.verdicts}; longest pause {1e3 * max(actor.pauses, default=0.0):.1f} ms",
        flush=True,
    )
    return same


async def run(args: argparse.Namespace) -> bool:
    """The actor's life."""
    ended, pauses = asyncio.Event(), list[float]()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with tempfile.TemporaryDirectory(prefix="p2psync-actor-") as temporary:
        init: dict[str, Any] = {"hub_url": args.join, "trust": [args.trust], "store": str(args.store or temporary)}
        init |= {"port": args.port, "region": args.region}

        def on_commit(swap: ConductedCommit) -> None:
            pauses.append(swap.pause_seconds)
            print(f"{args.name}: version {swap.version} after a pause of {1e3 * swap.pause_seconds:.1f} ms", flush=True)

        if args.server is not None:
            following = served(args.server, init, on_commit)
        else:
            following = in_process(args.model, args.vllm, init, on_commit)
        async with following as engine, EngineWork(engine.controls, args.join) as work:
            actor = Actor(args.name, engine, work, pauses)
            task = asyncio.create_task(actor.run(args.concurrency))
            until = asyncio.create_task(ended.wait())
            await asyncio.wait([task, until], return_when=asyncio.FIRST_COMPLETED)
            until.cancel()
            if not ended.is_set():
                await task  # raises why it ended
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            return args.check is None or await check(actor, args.check)


def main() -> None:
    """The process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, help="directory of the base model")
    which.add_argument("--server", help="URL of a vLLM server, started with VLLM_SERVER_DEV_MODE=1")
    parser.add_argument("--join", required=True, help="the trainer's hub")
    parser.add_argument("--trust", required=True, help="the trainer's public key")
    parser.add_argument("--store", type=Path, help="chunks, kept over restarts; by default a temporary directory")
    parser.add_argument("--port", type=int, default=0, help="for other actors; -1: dial out only")
    parser.add_argument("--region", default="")
    parser.add_argument("--name", default=f"actor-{os.getpid()}")
    parser.add_argument("--concurrency", type=int, default=4, help="prompts answered at a time")
    parser.add_argument("--vllm", default="{}", help="further engine arguments, as JSON")
    parser.add_argument(
        "--check", type=Path, help="at the end, compare the weights with this checkpoint; exit 1 if not"
    )
    sys.exit(0 if asyncio.run(run(parser.parse_args())) else 1)


if __name__ == "__main__":
    main()
