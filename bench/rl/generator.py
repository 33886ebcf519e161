"""A rollout actor of a run: a real subscriber and work queue; tokens come at the rate that they are told to.

    python -m p2psync.bench.rl.generator '{…}'     (see `GeneratorTask`)

As an engine that batches continuously, it makes a stretch of tokens for all its slots at a time, under weights that
stand still meanwhile; commits come between two stretches, and answers go on over them. An answer counts as made under
the version that it was begun with. No prompt of a step is begun under a version that would lie more than `staleness`
behind the policy that is to learn from it.

It says `{"up": true}`, and what `ActorResult` names once it is told `stop`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from p2psync.actor.node import ActorConfig
from p2psync.actor.subscriber import Subscriber
from p2psync.actor.work_queue import Work, WorkQueue
from p2psync.bench.rl.scale import FREE
from p2psync.bench.rl.ways import Board, free_position
from p2psync.bench.rl.weights import make_module, sha256
from p2psync.bench.swarm.jsonl import write_line
from p2psync.observe.events import Committed, Event, Warned
from p2psync.protocol.keys import parse_public
from p2psync.protocol.versions import Position

#: How long a stretch of tokens takes (seconds), about what a decoding step takes a GPU.
STRETCH = 0.02
#: How often it is noted how the time was spent (seconds).
_NOTE = 0.1


class GeneratorTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to do. speed: tokens a second here of one slot. token_bytes: of a result, for each token."""

    way: str
    hub: str
    public: str
    store: str
    masters: str
    board: str
    address: str
    region: str
    port: int
    congestion: str
    shapes: list[tuple[int, int]]
    slots: int
    speed: float
    token_bytes: float
    staleness: int


class SlotTimes(msgspec.Struct, frozen=True, array_like=True):
    """How the slots' time was spent up to a moment (time.monotonic), in slot-seconds: making tokens; without a prompt;
    with one that asks for a newer version; waiting for a commit."""

    at: float
    making: float
    without_work: float
    without_version: float
    paused: float


class CommitRecord(msgspec.Struct, frozen=True, array_like=True):
    """A version went live. pause: seconds that generation was kept waiting; taken: seconds from hearing of it."""

    version: int
    at: float
    pause: float
    taken: float


class ActorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor has to tell. sha256: of its weights, which are those of `version`. outcomes: of its results."""

    version: int
    sha256: str
    commits: list[CommitRecord]
    spent: list[SlotTimes]
    outcomes: dict[str, int]


@dataclass
class _Slot:
    """An answer in the making. begun: under which version; None: not yet."""

    work: Work
    tokens: int
    left: float
    begun: Position | None = None


class Generator:
    """What the process does."""

    def __init__(self, task: GeneratorTask) -> None:
        torch.set_num_threads(1)
        self._task = task
        self._module = make_module(task.shapes, Path(task.masters))
        self._board = Board(Path(task.board))
        self._slots: list[_Slot | None] = [None] * task.slots
        self._stop = threading.Event()
        self._commits: list[CommitRecord] = []
        self._spent = [0.0, 0.0, 0.0, 0.0]
        self._notes: list[SlotTimes] = []

    def run(self) -> None:
        """Until it is told to stop."""
        task = self._task
        config = ActorConfig(
            hub_url=task.hub,
            trusted=frozenset({parse_public(task.public)}),
            store=Path(task.store),
            host=task.address,
            port=task.port,
            advertise=task.address,
            region=task.region,
            congestion=task.congestion,
        )
        with Subscriber(self._module, config, on_event=self._hear, adopt=True) as subscriber:
            with subscriber.serving() as first:
                write_line({"up": True})
            threading.Thread(target=self._listen, daemon=True).start()
            with subscriber.work_queue(task.slots) as queue:
                self._generate(subscriber, queue, first)
                outcomes = queue.outcomes
            with subscriber.serving() as position:
                write_line(
                    ActorResult(
                        version=position.version,
                        sha256=sha256(self._module),
                        commits=self._commits,
                        spent=self._notes,
                        outcomes=dict(outcomes),
                    )
                )

    def _generate(self, subscriber: Subscriber, queue: WorkQueue, first: Position) -> None:
        last = note = time.monotonic()
        while not self._stop.is_set():
            asked = time.monotonic()
            with self._serving(subscriber, first) as position:
                paused = time.monotonic() - asked
                time.sleep(STRETCH)
                now = time.monotonic()
                self._advance(queue, position, now - last, paused)
                last = now
            if last >= note:
                self._notes.append(SlotTimes(last, *self._spent))
                note = last + _NOTE

    @contextmanager
    def _serving(self, subscriber: Subscriber, first: Position) -> Iterator[Position]:
        if self._task.way == FREE:
            yield free_position(first, self._board.version)
        else:
            with subscriber.serving() as position:
                yield position

    def _advance(self, queue: WorkQueue, position: Position, elapsed: float, paused: float) -> None:
        """Take all slots on by what they make in this time, less what they were kept waiting."""
        making = elapsed - paused
        self._spent[3] += paused * len(self._slots)
        for i in range(len(self._slots)):
            left = making
            while left > 0:
                slot = self._slots[i] = self._filled(self._slots[i], queue)
                if slot is None or not self._may_begin(slot, position):
                    self._spent[1 if slot is None else 2] += left
                    break
                slot.begun = slot.begun or position
                used = min(left, slot.left / self._task.speed)
                slot.left -= used * self._task.speed
                left -= used
                self._spent[0] += used
                if slot.left <= 1e-6:
                    result = os.urandom(round(slot.tokens * self._task.token_bytes))
                    queue.hand_in(slot.work, result, slot.begun, slot.tokens)
                    self._slots[i] = None

    def _filled(self, slot: _Slot | None, queue: WorkQueue) -> _Slot | None:
        """The slot, or one with the next prompt where it is free, or its prompt need not be answered any more."""
        if slot is not None and queue.needless(slot.work):
            queue.drop(slot.work)
            slot = None
        if slot is not None or (work := queue.take(timeout=0)) is None:
            return slot
        tokens = msgspec.msgpack.decode(work.item.payload, type=int)
        return _Slot(work, tokens, tokens)

    def _may_begin(self, slot: _Slot, position: Position) -> bool:
        return slot.begun is not None or position.version >= slot.work.item.version - self._task.staleness

    def _listen(self) -> None:
        sys.stdin.readline()
        self._stop.set()

    def _hear(self, event: Event) -> None:
        if isinstance(event, Committed):
            said = CommitRecord(event.version, time.monotonic(), event.pause_seconds, event.seconds)
            self._commits.append(said)
        elif isinstance(event, Warned):
            print(f"{time.monotonic():.3f} {event.line()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    Generator(msgspec.json.decode(sys.argv[1], type=GeneratorTask)).run()
