"""A rollout actor of a run: a real subscriber and work queue; tokens are arithmetic, so much for each.

    python -m p2psync.bench.rl.generator '{…}'     (see `GeneratorTask`)

As an engine that batches continuously, it makes a stretch of tokens for all its slots at a time, under weights that
stand still meanwhile; commits come between two stretches, and answers go on over them. A stretch's tokens count once
its arithmetic is done. That takes a part of one core: an actor here stands for a machine of several, made slower by as
much as the links. The stretch lasts longer where the arithmetic is late, for want of a core; and by what staging and
the writes of a pause would take of the machine that the actor stands for, of a model of the real size.

An answer counts as made under the version that it was begun with. No prompt of a step is begun under a version that
would lie more than `staleness` behind the policy that is to learn from it.

It writes `{"up": true}`, and an `ActorResult` once it reads `stop`.
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
from p2psync.actor.work_queue import ClaimedItem, WorkQueue
from p2psync.bench.rl.arithmetic import Burner, Owed, meter_staging
from p2psync.bench.rl.scale import FREE
from p2psync.bench.rl.ways import Board, free_position
from p2psync.bench.rl.weights import make_module, sha256
from p2psync.bench.swarm.jsonl import write_line
from p2psync.observe.events import Committed, Event, Warned
from p2psync.parallel import limit_threads
from p2psync.protocol.keys import parse_public
from p2psync.protocol.versions import Position

#: How long a stretch of tokens takes (seconds), about what a decoding step takes a GPU.
STRETCH = 0.02
#: How often it is noted how the time was spent (seconds).
_NOTE = 0.1


class GeneratorTask(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the process. speed: tokens a second here of one slot. token_bytes: of a result, for each token.

    rounds_per_token: of arithmetic (`Burner`). staging_cost: seconds without tokens for a processor second of staging.
    write_seconds, copy_seconds: the same for an element that a delta or an anchor writes in a pause, beyond what the
    write really took. own_board: where the actor puts up the version that it runs.
    """

    way: str
    hub: str
    public: str
    store: str
    masters: str
    board: str
    own_board: str
    address: str
    region: str
    port: int
    congestion: str
    shapes: list[tuple[int, int]]
    slots: int
    speed: float
    token_bytes: float
    staleness: int
    rounds_per_token: float = 0.0
    staging_cost: float = 0.0
    write_seconds: float = 0.0
    copy_seconds: float = 0.0


class SlotTimes(msgspec.Struct, frozen=True, array_like=True):
    """The slot-seconds of each activity up to a moment (time.monotonic): making tokens; without a prompt; with one that
    asks for a newer version; waiting for a commit; lost to staging; lost for want of a core."""

    at: float
    making: float
    without_work: float
    without_version: float
    paused: float
    staging: float = 0.0
    behind: float = 0.0


class CommitRecord(msgspec.Struct, frozen=True, array_like=True):
    """A version went live. pause: seconds here that generation was kept waiting; taken: seconds from hearing of it."""

    version: int
    at: float
    pause: float
    taken: float


class ActorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an actor. sha256: of its weights, which are those of `version`. outcomes: of its results."""

    version: int
    sha256: str
    commits: list[CommitRecord]
    spent: list[SlotTimes]
    outcomes: dict[str, int]


@dataclass
class _Slot:
    """An answer in the making. begun: under which version; None: not yet."""

    work: ClaimedItem
    tokens: int
    left: float
    begun: Position | None = None


class Generator:
    """Run the process."""

    def __init__(self, task: GeneratorTask) -> None:
        torch.set_num_threads(1)
        self._task = task
        self._module = make_module(task.shapes, Path(task.masters))
        limit_threads(1)  # so that staging's processor time is that of the thread that stages
        self._board = Board(Path(task.board))
        self._own_board = Board(Path(task.own_board))
        self._burner = Burner()
        self._owed_staging, self._owed_pause = Owed(), Owed()
        self._slots: list[_Slot | None] = [None] * task.slots
        self._stop = threading.Event()
        self._commits: list[CommitRecord] = []
        self._spent = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
        self._notes: list[SlotTimes] = []

    def run(self) -> None:
        """Runs until it reads `stop`."""
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
        subscriber = Subscriber(self._module, config, on_event=self._hear, adopt=True)
        meter_staging(subscriber.engine, lambda seconds: self._owed_staging.add(seconds * task.staging_cost))
        with subscriber:
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
        due = note = time.monotonic()
        while not self._stop.is_set():
            asked = time.monotonic()
            with self._serving(subscriber, first) as position:
                paused = time.monotonic() - asked + self._owed_pause.take(STRETCH)
                staging = self._owed_staging.take(STRETCH)
                # A sleep that ends late costs nothing: the next stretch is that much shorter.
                due += STRETCH + paused + staging
                by_sync, by_others = self._make_stretch(queue, position, due)
                due += by_sync + by_others
                self._advance(queue, position, STRETCH)
            for i, lost in ((3, paused), (4, staging + by_sync), (5, by_others)):
                self._spent[i] += lost * len(self._slots)
            if due >= note:
                self._notes.append(SlotTimes(due, *self._spent))
                note = due + _NOTE

    def _make_stretch(self, queue: WorkQueue, position: Position, due: float) -> tuple[float, float]:
        """Does a stretch's arithmetic and waits until it is due; returns by how much the arithmetic was late (seconds):
        for as much as the process's other threads used a core meanwhile, and for the rest, which others used."""
        making = sum(self._is_making(i, queue, position) for i in range(len(self._slots)))
        whole, own = time.process_time(), time.thread_time()
        self._burner.burn(making * self._task.speed * STRETCH * self._task.rounds_per_token)
        late = max(0.0, time.monotonic() - due)
        others = time.process_time() - whole - (time.thread_time() - own)
        time.sleep(max(0.0, due - time.monotonic()))
        by_sync = min(late, max(0.0, others))
        return by_sync, late - by_sync

    def _is_making(self, i: int, queue: WorkQueue, position: Position) -> bool:
        """Returns whether a slot has an answer in the making, or begins one now."""
        slot = self._slots[i] = self._filled(self._slots[i], queue)
        return slot is not None and self._may_begin(slot, position)

    @contextmanager
    def _serving(self, subscriber: Subscriber, first: Position) -> Iterator[Position]:
        if self._task.way == FREE:
            yield free_position(first, self._board.version)
        else:
            with subscriber.serving() as position:
                yield position

    def _advance(self, queue: WorkQueue, position: Position, making: float) -> None:
        """Advances all slots by the tokens of `making` seconds."""
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
            each = self._task.copy_seconds if event.since is None else self._task.write_seconds
            self._owed_pause.add(each * event.changed)
            self._own_board.put_up(event.version)
        elif isinstance(event, Warned):
            print(f"{time.monotonic():.3f} {event.line()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    Generator(msgspec.json.decode(sys.argv[1], type=GeneratorTask)).run()
