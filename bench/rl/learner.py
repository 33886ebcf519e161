"""The trainer of a run: a real publisher and ledger; an optimizer's step takes the time that the task names.

    python -m p2psync.bench.rl.learner '{…}'     (see `LearnerTask`)

It writes a JSON object a line: `{"ready": URL, "public": KEY}`; `{"all": N}` once so many actors are at version 0; for
each step what `LearnerStep` names; at the end `{"hashes": {version: SHA-256}}`. It is told `go`, and ends with its
standard input. `{"hashes": …, "skipped": N}`: N versions were never sent, for a newer one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from p2psync.bench.rl.broadcast import FinishingBroadcast
from p2psync.bench.rl.scale import FIFO, FREE, FULL_WAYS, SPARSE, STRICT
from p2psync.bench.rl.ways import AnchorVersionBuilder, Board, free_position, rollouts_of
from p2psync.bench.rl.weights import Optimizer, make_module, sha256
from p2psync.bench.swarm.jsonl import write_line
from p2psync.delta.warm import warm
from p2psync.observe.events import Event, Published, Trouble
from p2psync.protocol.keys import public_text
from p2psync.store.packs import Store
from p2psync.trainer.config import TrainerConfig
from p2psync.trainer.ledger.core import LedgerResult
from p2psync.trainer.publisher import Publisher


class LearnerTask(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the process. prompts: tokens of each prompt's answers, by step. learning: seconds here of a step.

    store, masters, board: paths; of each actor's own board, in boards. key: 32 bytes in hex.
    """

    way: str
    store: str
    masters: str
    board: str
    boards: list[str]
    address: str
    region: str
    key: str
    hub_port: int
    port: int
    congestion: str
    shapes: list[tuple[int, int]]
    density: float
    prompts: list[list[int]]
    actors: int
    learning: float
    staleness: int
    seed: int


class LearnerStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step. Moments of time.monotonic: the answers were all there, learning was over, the new version was out (which
    is when `publish` returned), the step was committed to the ledger. tokens: learned from. lags: how many answers were
    made so many versions behind the policy that learns from them. payload_bytes: of the version; 0: nothing travels."""

    step: int
    put: float
    collected: float
    learned: float
    published: float
    committed: float
    tokens: int
    lags: dict[int, int]
    payload_bytes: int


class PacedLearner:
    """Run the process."""

    def __init__(self, task: LearnerTask) -> None:
        torch.set_num_threads(1)
        self._task = task
        self._module = make_module(task.shapes, Path(task.masters))
        self._optimizer = Optimizer(self._module, Path(task.masters), task.density, task.seed)
        self._rollouts = rollouts_of(task.way == FREE, Path(task.store) / "ledger.db", task.staleness)
        self._board = Board(Path(task.board))
        self._hashes = {0: sha256(self._module)}

    def run(self) -> None:
        """Runs until standard input ends."""
        task = self._task
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(task.key))
        config = TrainerConfig(
            store=Path(task.store) / "versions",
            key=key,
            host=task.address,
            hub_port=task.hub_port,
            port=task.port,
            advertise=task.address,
            region=task.region,
            congestion=task.congestion,
            squash=task.way not in FULL_WAYS,
        )

        def make_anchor_builder(store: Store, run: str) -> AnchorVersionBuilder:
            self._anchor_builder = AnchorVersionBuilder(store, config.store / "snapshot", key, run)
            return self._anchor_builder

        waits = task.way in (FIFO, STRICT, SPARSE)
        published = make_module(task.shapes, Path(task.masters)) if waits else self._module
        warm()
        with Publisher(
            published,
            config,
            rollouts=self._rollouts,
            on_event=_hear,
            version_builder=make_anchor_builder if task.way in FULL_WAYS else None,
        ) as publisher:
            first = publisher.publish(announced=True)
            self._payload_bytes = 0 if first is None else first.payload_bytes
            write_line({"ready": publisher.hub_url, "public": public_text(key.public_key().public_bytes_raw())})
            publisher.wait_for_actors(task.actors, 300.0)
            write_line({"all": task.actors})
            sys.stdin.readline()
            skipped = self._finish_each(publisher, published) if waits else self._loop(publisher, None)
            hashes = {str(version): digest for version, digest in self._hashes.items()}
            write_line({"hashes": hashes, "skipped": skipped})
            sys.stdin.read()

    def _finish_each(self, publisher: Publisher, outbox: nn.Module) -> int:
        """The loop with broadcasts that finish."""
        boards = [Board(Path(path)) for path in self._task.boards]

        def publish(version: int) -> None:
            self._anchor_builder.skip_to(version)
            publisher.publish()

        with FinishingBroadcast(outbox, boards, publish, self._task.way == STRICT) as broadcast:
            return self._loop(publisher, broadcast)

    def _loop(self, publisher: Publisher, broadcast: FinishingBroadcast | None) -> int:
        """Runs the training loop of docs/guides/ledger.md; returns how many versions were never sent."""
        prompts, rollouts = self._task.prompts, self._rollouts
        rollouts.put(0, _items(0, prompts[0]))
        for step in range(len(prompts) - 1):
            rollouts.put(step + 1, _items(step + 1, prompts[step + 1]))
            put = time.monotonic()
            results = rollouts.collect(step, len(prompts[step]))
            collected = time.monotonic()
            self._learn(step + 1)
            learned = time.monotonic()
            payload_bytes = self._publish(publisher, broadcast, step + 1)
            published = time.monotonic()
            rollouts.commit_step(step)
            said = LearnerStep(
                step=step,
                put=put,
                collected=collected,
                learned=learned,
                published=published,
                committed=time.monotonic(),
                tokens=sum(done.tokens for done in results),
                lags=_lags(step, results),
                payload_bytes=payload_bytes,
            )
            write_line(said)
        return 0 if broadcast is None else broadcast.skipped

    def _learn(self, version: int) -> None:
        """Makes real new weights, and waits for the end of the time that a step takes."""
        end = time.monotonic() + self._task.learning
        self._optimizer.step()
        if self._task.way != FREE:
            self._hashes[version] = sha256(self._module)
        time.sleep(max(0.0, end - time.monotonic()))

    def _publish(self, publisher: Publisher, broadcast: FinishingBroadcast | None, version: int) -> int:
        """Publishes a version, or lets it wait; returns its bytes (of one that waits: those of the first anchor)."""
        if broadcast is not None:
            if self._task.way != SPARSE or version % (self._task.staleness + 1) == 0:
                broadcast.put(version, self._module)
            return self._payload_bytes
        if self._task.way != FREE:
            event = publisher.publish()
            return 0 if event is None else event.payload_bytes
        first = publisher.position
        assert first is not None
        self._rollouts.admit(free_position(first, version))
        self._board.put_up(version)
        return 0


def _items(step: int, prompts: list[int]) -> list[tuple[str, bytes]]:
    return [(f"{step}/{i}", msgspec.msgpack.encode(tokens)) for i, tokens in enumerate(prompts)]


def _lags(step: int, results: list[LedgerResult]) -> dict[int, int]:
    """The policy that learns in a step is the version of that number."""
    lags: dict[int, int] = {}
    for done in results:
        lags[step - done.version] = lags.get(step - done.version, 0) + 1
    return lags


def _hear(event: Event) -> None:
    if isinstance(event, Trouble | Published):
        print(f"{time.monotonic():.3f} {event.line()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    PacedLearner(msgspec.json.decode(sys.argv[1], type=LearnerTask)).run()
