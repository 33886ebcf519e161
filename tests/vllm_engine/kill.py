"""kill -9 of a worker of a real vLLM server, at random points of stage, journal and commit.

    python tests/vllm_engine/kill.py --times 20 [--tp 2] [--seed 1] [--seconds 150]

Each time a server is started from the base model and its store, comes to the newest version by itself, must then hold
just the bits of a fresh load of it, and is killed at a point within the next version, while requests run. Until its
health turns red every token must be that of the old version, or of the new one from some token on, and never of
anything in between. Servers are forked from a process that has imported vLLM: all else is as in production.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from vllm_parts import TIMEOUT, Server, save, stepped, trainer

#: For each phase (`kill_points`): about how often it is passed in one version of the model.
PHASES = {"stage": 2, "journal": 25, "commit": 25, "agree": 2}
#: How long a version is served without a kill until that counts as missed (seconds).
_MISSED = 2.0
#: A request that runs when the engine dies may never be answered (seconds).
_HANGS = 5.0


class Trial:
    """One base model, one trainer, one store; a server after the other."""

    def __init__(self, root: Path, tp: int, source: Any) -> None:
        self.root, self.tp, self.source = root, tp, source
        self.model = save("qwen3", root / "0")
        source.publish(self.model)
        self.newest, self.number = self.model, 0
        self.arm = root / "kill"
        self.fresh = Server(self.model, root / "fresh.log", {"tensor_parallel_size": str(tp)})
        self.fresh.ready()
        self.said = self.load_fresh(self.model)

    def load_fresh(self, checkpoint: Path) -> Any:
        """Returns the answer of the fresh server after loading a checkpoint, and its checksums."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
        self.fresh.ask("collective_rpc", call)
        self.fresh.ask("reset_prefix_cache", {})
        return self.fresh.complete(), sums(self.fresh)

    def start(self) -> Server:
        """A server that has come to the newest version and holds just its bits."""
        self.arm.unlink(missing_ok=True)
        join = self.source.join()
        server = Server(
            self.model,
            self.root / "server.log",
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
            reached(server, self.number)
            assert (server.complete(), sums(server)) == self.said, "a server came back to other weights"
        except BaseException:
            server.close()
            raise
        return server

    def once(self, phase: str, call: int, rank: int) -> Counter[str]:
        """Kill once. Returns how many answers were of the old version, of the new one, and went over from one to the
        other; `missed` is in it if the point was not reached."""
        server = self.start()
        try:
            self.arm.write_text(f"{phase} {call} {rank}")
            self.number += 1
            after = stepped(self.newest, self.root / str(self.number), self.number, 0.2)
            new = self.load_fresh(after)
            assert new[0] != self.said[0]
            self.source.publish(after)
            counts = self.watch(server, self.said[0], new[0])
            if self.newest != self.model:
                shutil.rmtree(self.newest)
            self.newest, self.said = after, new
            return counts
        finally:
            server.close()

    def watch(self, server: Server, old: Any, new: Any) -> Counter[str]:
        """Ask until the server is gone."""
        counts: Counter[str] = Counter()
        deadline = time.monotonic() + TIMEOUT
        while server.healthy():
            with suppress(OSError):
                kind = self.kind_of(server.complete(limit=_HANGS), old, new)
                counts[kind] += 1
                if kind != "old":
                    deadline = min(deadline, time.monotonic() + _MISSED)
            if time.monotonic() > deadline:
                assert counts["new"], f"neither killed nor done: {server.told()}"
                counts["missed"] += 1
                break
        return counts

    def kind_of(self, said: Any, old: Any, new: Any) -> str:
        """Returns which version an answer is of. Raises `AssertionError` if there is no such."""
        if said in (old, new):
            return "old" if said == old else "new"
        words, logprobs = said[0].split(), said[1]
        old_words = old[0].split()
        for kept in range(1, len(words)):
            if words[:kept] != old_words[:kept] or logprobs[:kept] != old[1][:kept]:
                break
            # From here on the keys and values were computed again, as those of a prompt are.
            rest = self.fresh.complete(len(words) - kept, " ".join(["t1 t2 t3", *words[:kept]]))
            if (rest[0].split(), rest[1]) == (words[kept:], logprobs[kept:]):
                return "over"
        raise AssertionError(f"between two versions: {json.dumps([said, old, new])}")


def sums(server: Server) -> Any:
    """vLLM's own checksums."""
    return server.ask("weight_checker", {"action": "checksum"})["checksums"]


def reached(server: Server, version: int) -> None:
    """Wait until a version is live."""
    deadline = time.monotonic() + TIMEOUT
    while (status := server.ask("p2psync/status"))[0]["version"] != version:
        assert time.monotonic() < deadline, f"{status}: {server.told()}"
        time.sleep(0.02)


def run(times: int, tp: int, seed: int, seconds: float = float("inf")) -> Counter[str]:
    """Kill so often, but begin nothing after `seconds`. Returns how often in each phase. Raises `AssertionError` at
    the first wrong bit."""
    dice, begun = random.Random(seed), time.monotonic()
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="p2psync-kill-") as folder, trainer(Path(folder) / "run") as source:
        trial = Trial(Path(folder), tp, source)
        try:
            while sum(killed.values()) - killed["missed"] < times and time.monotonic() < begun + seconds:
                phase = dice.choice(list(PHASES))
                call, rank = dice.randint(1, PHASES[phase]), dice.randrange(tp) if phase != "stage" else 0
                since = time.monotonic()
                counts = trial.once(phase, call, rank)
                killed["missed" if counts["missed"] else phase] += 1
                told = "missed" if counts["missed"] else f"killed rank {rank}"
                told += f" in {phase} at call {call}; answers: {counts['old']} of the old version, {counts['new']} of "
                told += f"the new, {counts['over']} went over"
                print(f"{time.monotonic() - begun:.0f} s: {told}; {time.monotonic() - since:.1f} s", flush=True)
            trial.start().close()
        finally:
            trial.fresh.close()
    return killed


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    # Servers are in groups of their own, so this process must end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    killed = run(args.times, args.tp, args.seed, args.seconds)
    print(f"killed in {dict(killed)} with {args.tp} ranks; no wrong bit served")


if __name__ == "__main__":
    main()
