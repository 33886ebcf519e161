"""kill -9 of a worker of a real vLLM server, at random points of stage, journal and commit.

    python tests/vllm_engine/kill.py --times 20 [--tp 2] [--seed 1]

Each time a server is started from the base model and its store, comes to the newest version by itself, must then hold
just the bits of a fresh load of it, and is killed at a point within the next version, while requests run. Until its
health turns red every answer must be that of one of the two versions, whole.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from kill_points import PHASES
from vllm_parts import PATIENCE, Server, save, save_tokenizer, stepped, trainer


class Trial:
    """One base model, one trainer, one store; a server after the other."""

    def __init__(self, root: Path, tp: int, source: Any) -> None:
        self.root, self.tp, self.source = root, tp, source
        self.model = save("qwen3", root / "0")
        save_tokenizer(self.model)
        source.publish(self.model)
        self.newest, self.number = self.model, 0
        self.arm = root / "kill"
        self.fresh = Server(self.model, root / "fresh.log", {"tensor_parallel_size": str(tp)})
        self.fresh.ready()
        self.said = self.load_fresh(self.model)

    def load_fresh(self, checkpoint: Path) -> Any:
        """What a fresh load of a checkpoint answers, and its checksums."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
        self.fresh.ask("collective_rpc", call)
        self.fresh.ask("reset_prefix_cache", {})
        return self.fresh.complete(), sums(self.fresh)

    def start(self) -> Server:
        """A server that has come to the newest version."""
        join = self.source.join()
        server = Server(
            self.model,
            self.root / f"server-{self.number}.log",
            {"tensor_parallel_size": str(self.tp), "worker_extension_cls": "kill_points.KillPoints"},
            PYTHONPATH=str(Path(__file__).parent),
            VLLM_PLUGINS="p2psync",
            P2PSYNC_KILL=str(self.arm),
            P2PSYNC_VLLM_JOIN=join["hub_url"],
            P2PSYNC_VLLM_TRUST=",".join(join["trust"]),
            P2PSYNC_VLLM_STORE=str(self.root / "store"),
            P2PSYNC_VLLM_HOST="127.0.0.1",
            P2PSYNC_VLLM_HOLD="1",
        )
        try:
            server.ready()
        except BaseException:
            server.close()
            raise
        return server

    def once(self, phase: str, call: int, rank: int) -> tuple[int, int]:
        """Kill once; returns how many answers were of the old and of the new version."""
        self.arm.unlink(missing_ok=True)
        server = self.start()
        try:
            reached(server, self.number)
            assert (server.complete(), sums(server)) == self.said, "a server came back to other weights"
            self.arm.write_text(f"{phase} {call} {rank}")
            self.number += 1
            after = stepped(self.newest, self.root / str(self.number), self.number, 0.2)
            expected = self.load_fresh(after)
            assert expected[0] != self.said[0]
            self.source.publish(after)
            counts = self.watch(server, self.said[0], expected[0])
            self.newest, self.said = after, expected
            return counts
        finally:
            server.close()

    def watch(self, server: Server, old: Any, new: Any) -> tuple[int, int]:
        """Ask until the server is gone."""
        counts, deadline = [0, 0], time.monotonic() + PATIENCE
        while server.healthy():
            assert time.monotonic() < deadline, "the worker was not killed"
            with suppress(OSError):
                said = server.complete()
                assert said in (old, new), f"between two versions: {said}"
                counts[said == new] += 1
        return counts[0], counts[1]


def sums(server: Server) -> Any:
    """vLLM's own checksums."""
    return server.ask("weight_checker", {"action": "checksum"})["checksums"]


def reached(server: Server, version: int) -> None:
    """Wait until a version is live."""
    deadline = time.monotonic() + PATIENCE
    while (status := server.ask("p2psync/status"))[0]["version"] != version:
        assert time.monotonic() < deadline, status
        time.sleep(0.1)


def run(times: int, tp: int, seed: int) -> None:
    """Kill so often. Raises `AssertionError` at the first wrong bit."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="p2psync-kill-") as folder, trainer(Path(folder) / "run") as source:
        trial = Trial(Path(folder), tp, source)
        try:
            for number in range(times):
                phase = dice.choice(list(PHASES))
                call, rank = dice.randint(1, PHASES[phase]), dice.randrange(tp) if phase != "stage" else 0
                old, new = trial.once(phase, call, rank)
                told = f"{number + 1}: killed rank {rank} in {phase} at call {call}"
                print(f"{told}; {old} answers of the old version, {new} of the new", flush=True)
            trial.arm.unlink(missing_ok=True)
            server = trial.start()
            try:
                reached(server, trial.number)
                assert (server.complete(), sums(server)) == trial.said, "the last server came back to other weights"
            finally:
                server.close()
        finally:
            trial.fresh.close()
    print(f"{times} kills, no wrong bit served", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    # Servers are in groups of their own: who ends this ends them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run(args.times, args.tp, args.seed)


if __name__ == "__main__":
    main()
